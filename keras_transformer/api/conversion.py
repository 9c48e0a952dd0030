"""Converts models of other toolkits with one function call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_transformer import plugins
from keras_transformer.api.translator import Translator


def convert(
    path: str | Path,
    output_dir: str | Path | None = None,
    *,
    source_format: str,
    **options: Any,
) -> Translator:
    """Converts a trained model of another toolkit.

    Args:
        path: the directory of the model, or its file, or `hf://USER/NAME` on the Hugging Face Hub.
        output_dir: a new directory for the model as a run, which all commands accept. None writes
            nothing.
        source_format: "marian", "huggingface", "opennmt_tf", "tensor2tensor", "fairseq" or
            "fsmt".
        **options: fields of `converters.ConvertOptions`, such as `positions`.

    Returns:
        A translator with the converted model.

    Example:
    >>> import keras_transformer as kt
    >>> translator = kt.convert("build/opus-mt", "build/converted", source_format="marian")
    >>> translator("the old tree.") == kt.load("build/converted")("the old tree.")
    True
    """
    model = plugins.find("converters", source_format)(str(path), source_format, **options)
    translator = Translator(model.transformer(), model.tokenizer(), model.config)
    if output_dir is not None:
        translator.save(output_dir)
    return translator
