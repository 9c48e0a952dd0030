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

from keras_transformer.cli import app, config_flags
from keras_transformer.extensions.converters import (
    FORMATS,
    ConvertOptions,
    make_options,
    read_model,
    write_run,
)
from keras_transformer.extensions.huggingface import hub

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_enum("from", None, list(FORMATS), "format of the model", required=True)
    flags.DEFINE_string(
        "input", None, "directory or file of the model, or hf://USER/NAME", required=True
    )
    flags.DEFINE_string("output", None, "run directory to write", required=True)
    flags.DEFINE_enum(
        "positions",
        None,
        ["marian", "huggingface"],
        config_flags.CHOICES["positions"],
    )
    flags.DEFINE_string("config", None, "configuration that trained a model of OpenNMT-tf")
    flags.DEFINE_string(
        "source_sentencepiece",
        None,
        "SentencePiece model of the training data; without one, texts must be tokenized already",
    )
    flags.DEFINE_string(
        "target_sentencepiece", None, "SentencePiece model of the target; default: the source's"
    )
    flags.DEFINE_string("source_vocabulary", None, "vocabulary of the source")
    flags.DEFINE_string("target_vocabulary", None, "vocabulary of the target")
    flags.DEFINE_integer("target_space", 0, "id of the target space of Tensor2Tensor's problem")
    flags.DEFINE_integer("num_heads", None, "attention heads, if the model does not say it")
    flags.DEFINE_string(
        "normalize_punctuation",
        None,
        "unicode, or a source language such as en: normalize punctuation as Moses does",
    )


def main() -> None:
    """Runs `read_model` and `write_run` with the flags."""
    app.load_tensorflow()
    source_format = str(FLAGS["from"].value)  # `from` is a keyword of Python
    options = {field.name: FLAGS[field.name].value for field in dataclasses.fields(ConvertOptions)}
    path = hub.resolve(FLAGS.input, source_format)
    model = read_model(path, source_format, make_options(**options))
    write_run(model, FLAGS.output)
    config = model.config.model
    print(
        f"Wrote {FLAGS.output}: {config.num_encoder_layers} + {config.num_decoder_layers} layers, "
        f"d_model {config.d_model}, {config.num_parameters():,} parameters."
    )
