"""Loads MarianMT directories of Hugging Face without converting them first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_transformer.inference import manifest
from keras_transformer.inference.loading import (
    LoadedModel,
    Loader,
    compute_dtype,
    newest_version,
)


class MarianMTLoader(Loader):
    """Directories with `source.spm`."""

    kind = "a MarianMT model"
    options = frozenset({"settings", "precision", "jit_compile"})

    def accepts(self, model: str) -> bool:
        return (newest_version(Path(model)) / "source.spm").is_file()

    def open(self, model: str, **options: Any) -> LoadedModel:
        from keras_transformer.extensions.converters import read_model
        from keras_transformer.inference.int8 import use_int8_products
        from keras_transformer.inference.translation_module import TranslationModule

        path = newest_version(Path(model))
        manifest.check_needed_files(path)
        converted = read_model(path, "huggingface")
        precision = options.get("precision", "float32")
        config = converted.config.updated(options.get("settings", {}))
        transformer = converted.transformer(dtype=compute_dtype(precision))
        if precision == "int8":
            use_int8_products(transformer)
        module = TranslationModule([transformer], converted.tokenizer(), config.decoding)
        return LoadedModel.of(module, model, options.get("jit_compile", False))


LOADER = MarianMTLoader()
