r"""Parses sentences, one per line, from standard input to trees on standard output.

Examples:
    echo "The mice weren't fed." | keras-transformer parse --model_dir=build/export
    keras-transformer parse --model_dir=build/run --tokens <words.txt >trees.txt

--input and --output name files instead. The output has a tree in brackets for each line:
    (TOP (S (NP (DT The) (NNS mice)) (VP (VBD were) (RB n't) (VP (VBN fed))) (. .)))

The leaves are exactly the words of the line. A line is split into words as in treebanks, or only at
spaces with --tokens. Brackets in words are -LRB- and -RRB-. Tags are XX if the model was trained
without them (keras-transformer prepare_trees --notags).

A line without words gives an empty line. A line over decoding.max_source_tokens is truncated. Both
are reported on standard error, and the exit code is 3.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags

if TYPE_CHECKING:
    from keras_transformer.extensions.paper.parsing.parser import ParseResult

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "model_dir", None, "a run, RUN@WEIGHTS, RUN,RUN, or a SavedModel", required=True
    )
    flags.DEFINE_boolean("tokens", False, "words have spaces between them, and nothing else")
    config_flags.define_path_flags("input", "output")
    config_flags.define_precision_flag()
    config_flags.define_config_flags("beam_size", "length_penalty")


def main() -> int:
    """Parses the input of the flags. Returns 3 if it reports a problem with a line."""
    app.load_tensorflow()
    from keras_transformer.data.reading import decode_lines
    from keras_transformer.extensions.paper.parsing import parser

    lines = decode_lines(app.read_input(FLAGS.input), FLAGS.input or "standard input")
    results, _ = parse_to(FLAGS.output, lines, FLAGS.tokens)
    remarks = parser.remarks(results)
    for remark in remarks:
        console.warn(remark)
    return 3 if remarks else 0


def parse_to(
    output: str | None, lines: Sequence[str], tokens: bool
) -> tuple[list[ParseResult], float]:
    """Parses lines with the model of the flags, and writes the trees to a file.

    Returns the results, and the seconds of the model.
    """
    from keras_transformer.extensions.paper.parsing import parser
    from keras_transformer.inference import batching  # slow to import
    from keras_transformer.runs import atomic

    batching.use_cores_for_batches(len(lines))
    settings = config_flags.config_settings()
    model = parser.load_parser(FLAGS.model_dir, settings, precision=FLAGS.precision)
    with atomic.output_file(output) as file:
        start = time.perf_counter()
        results = parser.parse_lines(model, lines, tokens)
        seconds = time.perf_counter() - start
        file.writelines(f"{result.tree}\n".encode() for result in results)
    return results, seconds
