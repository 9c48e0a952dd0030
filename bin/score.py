#!/usr/bin/env python3
r"""Scores given translations: the log-probability of each target after its source.

Examples:
    bin/score.py --model_dir=build/run --source=test.en --target=test.de >scores.tsv
    paste test.en test.de | bin/score.py --model_dir=build/run --format=jsonl

Without files, pairs are read from standard input: source, tab, target. Each
gives one line, in the same order; logarithms are natural, and the end token
counts. With --format=tsv the columns are

    log P    tokens    perplexity    log P / ((5 + tokens) / 6) ^ length_penalty

and with --format=jsonl the objects also hold the pieces of the target and the
log-probability of each. The last line of standard error has the perplexity of
all targets together.

An empty target is the end token alone. An empty source is scored as it is, and
of a source of more than decoding.max_source_tokens the first so many are used.
Both are told on standard error, and the exit code is then 3, after all pairs
were scored. Targets are never cut; one of more than 4,096 tokens is refused.

A text is split into pieces as SentencePiece does it, and a search may have
found it in others. With --target_ids targets are ids, scored as they stand.
"""

import sys
import time
from pathlib import Path

import command_line

from absl import flags

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS

flags.DEFINE_string("model_dir", None, "a run directory, RUN@WEIGHTS, or RUN,RUN", required=True)
flags.DEFINE_string("source", None, "sources, one sentence a line")
flags.DEFINE_string("target", None, "their targets, line by line")
flags.DEFINE_string("pairs", None, "or both in one file: source, tab, target")
flags.DEFINE_boolean(
    "target_ids", False, "targets are token ids with spaces between, the end id included"
)
flags.DEFINE_enum("format", "tsv", ["tsv", "jsonl"], "columns with tabs between, or JSON lines")
command_line.define_path_flags("output")
command_line.define_config_flags("length_penalty")


def _read_pairs() -> tuple[list[str], list[str], str]:
    """Returns sources, targets, and the name of what holds the targets."""
    from keras_transformer.data.corpora.corpus import ParallelFiles
    from keras_transformer.data.corpora.reading import read_text
    from keras_transformer.inference import scoring, translate

    given = {name for name in ("source", "target", "pairs") if FLAGS[name].value is not None}
    if given not in ({"source", "target"}, {"pairs"}, set()):
        raise InputError(
            f"pairs are given by --{' and --'.join(sorted(given))}; expected --source and "
            "--target, or --pairs, or none of them for standard input"
        )
    if "source" in given:
        pairs = list(ParallelFiles(Path(FLAGS.source), Path(FLAGS.target)).pairs())
        sources, targets = ([text.decode() for text in side] for side in zip(*pairs, strict=True))
        return sources, targets, FLAGS.target
    if "pairs" in given:
        return *scoring.split_pairs(read_text(FLAGS.pairs), FLAGS.pairs), FLAGS.pairs
    name = "standard input"
    lines = translate.decode_lines(sys.stdin.buffer.read(), name)
    return *scoring.split_pairs(lines, name), name


def main(argv: list[str]) -> int:
    """Scores what the flags name; returns 3 where a source was empty or cut."""
    from keras_transformer.inference import scoring  # late: --help stays quick
    from keras_transformer.runs import atomic

    sources, targets, name = _read_pairs()
    scorer = scoring.load_scorer(FLAGS.model_dir, command_line.config_settings())
    alpha = scorer.translator.config.length_penalty
    start = time.perf_counter()
    with atomic.output_file(FLAGS.output) as file:
        if FLAGS.target_ids:
            vocab_size = scorer.translator.tokenizer.target_vocab_size
            ids = scoring.parse_ids(targets, vocab_size, name)
            results = scoring.score_ids(scorer, sources, ids)
        else:
            results = scoring.score_pairs(scorer, sources, targets)
        if FLAGS.format == "tsv":
            text = scoring.format_tsv(results, alpha)
        else:
            text = scoring.format_json_lines(scorer, results, alpha)
        file.write(text.encode())
    seconds = time.perf_counter() - start
    remarks = scoring.remarks(scorer, sources)
    for remark in remarks:
        print(remark, file=sys.stderr)
    print(scoring.summary(results, seconds), file=sys.stderr)
    return 3 if remarks else 0


if __name__ == "__main__":
    command_line.run(main)
