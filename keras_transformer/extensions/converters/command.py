r"""Converts a trained model of another toolkit into a run.

Examples:
    keras-transformer convert --from=marian --input=opus-mt-en-de --output=build/en-de
    keras-transformer convert --from=huggingface --input=opus-mt-en-de --output=build/en-de
    keras-transformer convert --from=huggingface --input=hf://USER/NAME --output=build/en-de
    keras-transformer convert --from=opennmt_tf --input=run --config=data.yml \
        --source_sentencepiece=wmtende.model --output=build/en-de

The run translates, and can be evaluated, fine-tuned (keras-transformer train --init_from=RUN) and
exported like any other run. docs/convert.md lists the files that each format needs.
"""

from __future__ import annotations

import dataclasses

from absl import flags

from keras_transformer.cli import app
from keras_transformer.extensions.converters import FORMATS, ConvertOptions, convert, write_run

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_enum("from", None, list(FORMATS), "format of the model", required=True)
    flags.DEFINE_string(
        "input", None, "directory or file of the model, or hf://USER/NAME", required=True
    )
    flags.DEFINE_string("output", None, "run directory to write", required=True)
    for field in dataclasses.fields(ConvertOptions):
        formats = ", ".join(field.metadata["formats"])
        flags.DEFINE_string(field.name, None, f"for {formats}: {field.metadata['help']}")


def main() -> None:
    """Runs `convert` and `write_run` with the flags."""
    app.load_tensorflow()
    values = {field.name: FLAGS[field.name].value for field in dataclasses.fields(ConvertOptions)}
    options = {name: value for name, value in values.items() if value is not None}
    # `from` is a keyword of Python.
    model = convert(FLAGS.input, str(FLAGS["from"].value), **options)
    write_run(model, FLAGS.output)
    config = model.config.model
    print(
        f"Wrote {FLAGS.output}: {config.num_encoder_layers} + {config.num_decoder_layers} layers, "
        f"d_model {config.d_model}, {config.num_parameters():,} parameters."
    )
