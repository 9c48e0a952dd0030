r"""Converts a trained model of another toolkit into a run.

Examples:
    bin/convert.py --from=marian --input=opus-mt-en-de --output=build/en-de
    bin/convert.py --from=huggingface --input=Helsinki-NLP/opus-mt-en-de --output=build/en-de

The run translates, and can be evaluated, fine-tuned (bin/train.py --init_from=RUN) and exported
like any other run. docs/convert.md lists the files that each format needs.
"""

from __future__ import annotations

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.converters import FORMATS, ConvertOptions, read_model, write_run

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_enum("from", None, list(FORMATS), "format of the model", required=True)
    flags.DEFINE_string("input", None, "directory or file of the model", required=True)
    flags.DEFINE_string("output", None, "run directory to write", required=True)
    flags.DEFINE_enum(
        "positions",
        None,
        ["marian", "huggingface"],
        config_flags.CHOICES["positions"],
    )


def main() -> None:
    """Runs `read_model` and `write_run` with the flags."""
    app.load_tensorflow()
    source_format = str(FLAGS["from"].value)  # `from` is a keyword of Python
    model = read_model(FLAGS.input, source_format, ConvertOptions(positions=FLAGS.positions))
    write_run(model, FLAGS.output)
    config = model.config.model
    print(
        f"Wrote {FLAGS.output}: {config.num_encoder_layers} + {config.num_decoder_layers} layers, "
        f"d_model {config.d_model}, {config.num_parameters():,} parameters."
    )
