"""Loads MarianMT directories of Hugging Face without converting them first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keras_transformer.inference import manifest
from keras_transformer.inference.loading import (
    LoadedModel,
    Loader,
    compute_dtype,
    newest_version,
)


def _accepts(model: str) -> bool:
    return (newest_version(Path(model)) / "source.spm").is_file()


def _open(
    model: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    precision: str = "float32",
    jit_compile: bool = False,
) -> LoadedModel:
    from keras_transformer.extensions.converters import read_model
    from keras_transformer.inference.int8 import use_int8_products
    from keras_transformer.inference.translation_module import TranslationModule

    path = newest_version(Path(model))
    manifest.check_needed_files(path)
    converted = read_model(path, "huggingface")
    config = converted.config.updated(settings)
    transformer = converted.transformer(dtype=compute_dtype(precision))
    if precision == "int8":
        use_int8_products(transformer)
    module = TranslationModule([transformer], converted.tokenizer(), config.decoding)
    return LoadedModel.of(module, model, jit_compile)


LOADER = Loader("a MarianMT model", _accepts, _open)
