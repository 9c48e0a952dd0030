#!/usr/bin/env python3
r"""Exports a trained run for serving.

Example:
    bin/export.py --run_dir=build/run --data_dir=build/data --output_dir=build/export
    bin/export.py --run_dir=build/run --data_dir=build/data --output_dir=build/ct2 \
        --format=ctranslate2 --quantization=int8

--run_dir=RUN@WEIGHTS takes other weights than the selected ones, and --run_dir=RUN,RUN
several runs of one vocabulary, which decide together, in one SavedModel.

Writes the version 1 under the output directory, or the next one. Before it gets
its number it is read back and compared on the validation sentences, of prepared
data or of a text file. A SavedModel translates them, and a single token other than
the run's fails the export. A CTranslate2 model says how probable the run's
translations are, and anything but rounding fails it, if it is not quantized.
"""

from pathlib import Path

import command_line

from absl import flags

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS

command_line.define_path_flags("run_dir", required=True)
flags.DEFINE_string("output_dir", None, "directory of the versions", required=True)
flags.DEFINE_string("format", "saved_model", "saved_model|ctranslate2")
flags.DEFINE_string(
    "quantization",
    None,
    "how ctranslate2 holds weights: none|int8|int8_float32|int8_float16|int16|float16|bfloat16",
)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"], "of a SavedModel's weights and products"
)
command_line.define_path_flags("data_dir")
flags.DEFINE_string("valid_source", None, "text to compare on, in place of --data_dir's")
command_line.define_config_flags("beam_size", "length_penalty", "n_best")


def _sentences() -> list[str]:
    from keras_transformer.data.corpus import read_text
    from keras_transformer.data.token_store import TokenStore

    if (FLAGS.data_dir is None) == (FLAGS.valid_source is None):
        raise InputError(
            "the export is compared with the run on real sentences; expected either --data_dir "
            "or --valid_source"
        )
    if FLAGS.data_dir is not None:
        return TokenStore(Path(FLAGS.data_dir) / "valid").source_text()
    return read_text(FLAGS.valid_source)


def main(argv: list[str]) -> None:
    """Runs `export` on what the flags name."""
    from keras_transformer.export import export  # late: --help stays quick

    exported = export(
        FLAGS.run_dir,
        FLAGS.output_dir,
        _sentences(),
        format=FLAGS.format,
        settings=command_line.config_settings(),
        quantization=FLAGS.quantization,
        precision=FLAGS.precision,
    )
    for tie in exported.ties:
        print(f"a tie, translated with other tokens of the same score: {tie}")
    sentences = f"{exported.sentences:,} validation sentences"
    if exported.largest_difference is None:
        print(f"exported {exported.path}, which translates {sentences} as the run does")
    else:
        print(
            f"exported {exported.path}, which gives the run's translations of {sentences} "
            f"log-probabilities that differ by at most {exported.largest_difference:.2g}"
        )


if __name__ == "__main__":
    command_line.run(main)
