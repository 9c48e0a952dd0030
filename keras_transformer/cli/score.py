r"""Scores given translations: the log-probability of each target given its source.

Examples:
    keras-transformer score --model_dir=build/run --source=test.en --target=test.de >scores.tsv
    paste test.en test.de | keras-transformer score --model_dir=build/run --format=jsonl

Without files, pairs are read from standard input: source, TAB, target. Each pair gives one line of
standard output or --output, in the same order. Logarithms are natural, and the end token counts.
The columns of --format=tsv are

    log P    tokens    perplexity    log P / ((5 + tokens) / 6) ^ length_penalty

The last is log P / tokens ^ length_penalty with --set=decoding.length_penalty_formula=power.

With --format=jsonl, the output also has the tokens of the target and their log-probabilities. The
last line of standard error is the perplexity over all targets.

An empty target consists of the end token. Pairs with an empty source are scored, and a source of
more than decoding.max_source_tokens is truncated. Both are reported on standard error, and the exit
code is then 3. A target of more than 4,096 tokens is an error before anything is scored. With
--output, the same command resumes after a kill.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags
from keras_transformer.data.workers import run_tasks
from keras_transformer.errors import InputError, StoppedError, require
from keras_transformer.inference import Languages

if TYPE_CHECKING:
    from keras_transformer.inference.scoring import Scorer

FLAGS = flags.FLAGS
_BLOCK_PAIRS = 4096


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "a run, RUN@WEIGHTS, or RUN,RUN", required=True)
    config_flags.define_path_flags("source", "target", "output")
    config_flags.define_option_flags("source_language", "target_language")
    config_flags.define_format_flag("tsv", "jsonl")
    config_flags.define_cluster_flags()
    config_flags.define_config_flags("length_penalty")


def _read_pairs() -> tuple[list[str], list[str]]:
    """Returns sources and targets."""
    from keras_transformer.data.corpus import ParallelFiles
    from keras_transformer.data.reading import decode_lines

    if (FLAGS.source is None) != (FLAGS.target is None):
        raise InputError("Give both --source and --target, or neither for standard input.")
    if FLAGS.source is not None:
        files = ParallelFiles(Path(FLAGS.source), Path(FLAGS.target))
        pairs = [[text.decode() for text in pair] for pair in files.pairs()]
    else:
        lines = decode_lines(app.read_input(None), "standard input")
        pairs = [line.split("\t") for line in lines]
        for number, pair in enumerate(pairs, start=1):
            message = f"standard input, line {number} has {len(pair) - 1} tabs instead of one."
            require(len(pair) == 2, message)
    require(len(pairs) > 0, "standard input is empty. Give a source, a tab and a target per line.")
    return [source for source, _ in pairs], [target for _, target in pairs]


def main() -> int:
    """Scores the pairs of the flags. Returns 3 if a source was empty or truncated."""
    app.load_tensorflow()
    from keras_transformer.inference import loading, scoring  # slow to import

    sources, targets = _read_pairs()
    members = loading.members(FLAGS.model_dir)
    vocabulary = members[0][0].tokenizer().vocabulary
    scoring.check_targets(vocabulary, targets, f"{FLAGS.target or 'standard input'}, line")
    parts = FLAGS.model_dir.split(",") if len(members) > 1 else [FLAGS.model_dir]
    model = (
        ",".join(part if "://" in part else str(Path(part).absolute()) for part in parts),
        tuple(run.weights_crc32(name) for run, name in members),
        json.dumps(config_flags.config_settings()),
        config_flags.languages(),
    )
    workers = config_flags.workers() or 1
    if workers == 1:
        _scorer(*model)  # loading it is not a part of the time
    with _output([sources, targets, model, FLAGS.format]) as (saved, save):
        done, log_prob, tokens, warned, seconds = saved or (0, 0.0, 0, False, 0.0)
        start = time.perf_counter() - seconds
        tasks = (
            (f"the block after pair {i:,}", i, sources[i:end], targets[i:end], model, FLAGS.format)
            for i in range(done, len(sources), _BLOCK_PAIRS)
            for end in [i + _BLOCK_PAIRS]
        )
        scored = run_tasks(score_block, tasks, workers, None, uses_all_cores=True)
        with console.progress_bar(len(sources), "pairs", initial=done) as bar:
            for lines, results, warnings in scored:
                for warning in warnings:
                    console.warn(warning)
                done += len(results)
                log_prob += sum(float(row.sum()) for row in results)
                tokens += sum(map(len, results))
                warned = warned or bool(warnings)
                seconds = time.perf_counter() - start
                save([lines.encode()], [done, log_prob, tokens, warned, seconds])
                bar.update(len(results))
    console.info(scoring.summary(log_prob, tokens, done, seconds))
    return 3 if warned else 0


@contextlib.contextmanager
def _output(inputs: Any) -> Iterator[tuple[Any, Callable[[Sequence[bytes], Any], object]]]:
    """Yields what `growing_files` yields. A file continues if it was interrupted with the inputs,
    but no other output does.
    """
    from keras_transformer.runs import atomic  # imports the progress bar

    if FLAGS.output is None or not atomic.is_replaced(FLAGS.output):
        with atomic.output_file(FLAGS.output) as file:
            yield None, lambda texts, _: file.writelines(texts)
        return
    fingerprint = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    with (
        atomic.work_directory(Path(FLAGS.output), fingerprint, "scores") as directory,
        atomic.growing_files(directory, ["scores"]) as saved_and_save,
    ):
        yield saved_and_save


def score_block(
    name: str, first: int, sources: list[str], targets: list[str], model: tuple[Any, ...], form: str
) -> tuple[str, list[np.ndarray], list[str]]:
    """Returns the lines, log-probabilities and warnings of pairs that come after the first ones."""
    from keras_transformer.inference import batching, scoring

    scorer = _scorer(*model)
    translator = scorer.translator
    ids = translator.tokenizer.vocabulary.encode_pairs(sources, targets)[1]
    results = scoring.score_ids(scorer, sources, ids, first + 1)
    known = translator.tokenizer.vocabulary.pieces()[1]
    pieces = [[known[i] for i in row] for row in ids] if form == "jsonl" else []
    counts = batching.token_counts(translator.lengths, sources)
    warnings = batching.source_warnings(counts, first_line=first + 1)
    return scoring.format_scores(results, translator.config, pieces), results, warnings


@functools.lru_cache(maxsize=1)
def _scorer(
    model_dir: str, weights: tuple[int, ...], settings: str, languages: Languages
) -> Scorer:
    """Loads the model once per process. Its weights must have these checksums."""
    app.load_tensorflow()
    from keras_transformer.inference import loading, scoring

    if weights != tuple(run.weights_crc32(name) for run, name in loading.members(model_dir)):
        raise StoppedError(f"{model_dir} has other weights here than where the command runs.")
    translator = loading.load_translator(model_dir, json.loads(settings))
    return scoring.Scorer(translator.with_languages(*languages))


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("score")
