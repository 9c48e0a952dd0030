#!/usr/bin/env python3
r"""Parses sentences, one a line, from standard input to trees on standard output.

Examples:
    echo "The mice weren't fed." | bin/parse.py --model_dir=build/export
    bin/parse.py --model_dir=build/run --tokens <words.txt >trees.txt

The output has a line for each line of the input, a tree in brackets:
    (TOP (S (NP (DT The) (NNS mice)) (VP (VBD were) (RB n't) (VP (VBN fed))) (. .)))

Its leaves are exactly the words of the line, whatever the model says. A line is split into
words as treebanks split them, or with --tokens at spaces alone. Brackets in words are -LRB- and
-RRB-. Tags are XX where a model was trained without them (bin/prepare_trees.py --notags).

A line without words gives an empty line; of one over decoding.max_source_tokens the model sees
the beginning alone. Standard error says so, and the exit code is 3.
"""

import sys

import command_line

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "model_dir", None, "a run, RUN@WEIGHTS, RUN,RUN, or a SavedModel", required=True
)
flags.DEFINE_boolean("tokens", False, "words have spaces between them, and nothing else")
flags.DEFINE_string("input", None, "sentences to parse; standard input when not given")
command_line.define_path_flags("output")
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16", "float16"], "of a run's weights")
command_line.define_config_flags("beam_size", "length_penalty")


def main(argv: list[str]) -> int:
    """Parses what the flags name; returns 3 where there is a remark on it."""
    from keras_transformer.inference import translate  # late: --help stays quick
    from keras_transformer.paper.parsing import parser
    from keras_transformer.runs import atomic

    lines = translate.decode_lines(
        command_line.read_input(FLAGS.input), FLAGS.input or "standard input"
    )
    translate.use_cores_for_batches(len(lines))
    model = parser.load_parser(
        FLAGS.model_dir, command_line.config_settings(), precision=FLAGS.precision
    )
    with atomic.output_file(FLAGS.output) as file:
        results = parser.parse_lines(model, lines, FLAGS.tokens)
        file.writelines(f"{result.tree}\n".encode() for result in results)
    remarks = parser.remarks(results)
    for remark in remarks:
        print(remark, file=sys.stderr)
    return 3 if remarks else 0


if __name__ == "__main__":
    command_line.run(main)
