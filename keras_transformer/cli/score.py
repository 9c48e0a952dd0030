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
code is then 3. A target of more than 4,096 tokens is refused.
"""

from __future__ import annotations

import time
from pathlib import Path

from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    model_help = "a run directory, RUN@WEIGHTS, or RUN,RUN"
    flags.DEFINE_string("model_dir", None, model_help, required=True)
    config_flags.define_path_flags("source", "target", "output")
    flags.DEFINE_string("pairs", None, "file with both sides: source, TAB, target")
    config_flags.define_choice_flag("format", "tsv", "jsonl")
    config_flags.define_config_flags("length_penalty")


def _read_pairs() -> tuple[list[str], list[str]]:
    """Returns sources and targets."""
    from keras_transformer.data.corpus import ParallelFiles
    from keras_transformer.data.reading import decode_lines, read_text
    from keras_transformer.inference import scoring

    given = {name for name in ("source", "target", "pairs") if FLAGS[name].value is not None}
    if given not in ({"source", "target"}, {"pairs"}, set()):
        raise InputError(
            f"Pairs are given by --{' and --'.join(sorted(given))}. Use --source and --target, or "
            "--pairs, or none of them for standard input."
        )
    if "source" in given:
        pairs = list(ParallelFiles(Path(FLAGS.source), Path(FLAGS.target)).pairs())
        sources, targets = ([text.decode() for text in side] for side in zip(*pairs, strict=True))
        return sources, targets
    if "pairs" in given:
        return scoring.split_pairs(read_text(FLAGS.pairs), FLAGS.pairs)
    name = "standard input"
    return scoring.split_pairs(decode_lines(app.read_input(None), name), name)


def main() -> int:
    """Scores the pairs of the flags. Returns 3 if a source was empty or truncated."""
    app.load_tensorflow()
    from keras_transformer.inference import batching, scoring  # late, so that --help is fast
    from keras_transformer.runs import atomic

    sources, targets = _read_pairs()
    scorer = scoring.load_scorer(FLAGS.model_dir, config_flags.config_settings())
    start = time.perf_counter()
    with atomic.output_file(FLAGS.output) as file:
        results = scoring.score_pairs(scorer, sources, targets)
        if FLAGS.format == "tsv":
            text = scoring.format_tsv(results, scorer.translator.config)
        else:
            text = scoring.format_json_lines(scorer, results)
        file.write(text.encode())
    seconds = time.perf_counter() - start
    counts = batching.token_counts(scorer.translator.lengths, sources)
    warnings = batching.source_warnings(counts)
    for warning in warnings:
        console.warn(warning)
    console.say(scoring.summary(results, seconds))
    return 3 if warnings else 0
