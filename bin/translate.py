#!/usr/bin/env python3
r"""Translates text, one sentence a line, from standard input to standard output.

Example:
    bin/translate.py --model_dir=build/run --beam_size=4 <input.en >output.de

The output has a line for each line of the input, in the same order. With
--n_best=N it has up to N for each, best first, in the form that Moses uses:
INDEX ||| TEXT ||| SCORE, where the index counts input lines from 0.

An empty line gives an empty line, and a line of more tokens than
decoding.max_source_tokens is translated as far as that. Both are told on
standard error, and the exit code is then 3, after all lines were written.
"""

import sys
from pathlib import Path

import command_line

from absl import flags

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS

command_line.define_path_flags("model_dir", required=True)
flags.DEFINE_string("input", None, "text to translate; standard input when not given")
command_line.define_path_flags("output")
command_line.define_config_flags("beam_size", "length_penalty", "n_best")


def _read_input() -> bytes:
    if FLAGS.input is None:
        return sys.stdin.buffer.read()
    try:
        return Path(FLAGS.input).read_bytes()
    except OSError as error:
        raise InputError(
            f"{FLAGS.input} cannot be read ({error.strerror}); expected a text file"
        ) from error


def main(argv: list[str]) -> int:
    """Translates what the flags name; returns 3 where a line was empty or cut."""
    from keras_transformer import inference  # late: --help stays quick

    lines = inference.decode_lines(_read_input(), FLAGS.input or "standard input")
    model = inference.load_model(FLAGS.model_dir, command_line.config_settings())
    with inference.output_file(FLAGS.output) as file:
        results = inference.translate_lines(model, lines)
        file.write(inference.format_translations(model, results).encode())
    remarks = inference.remarks(model, lines)
    for remark in remarks:
        print(remark, file=sys.stderr)
    return 3 if remarks else 0


if __name__ == "__main__":
    command_line.run(main)
