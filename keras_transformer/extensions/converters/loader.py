"""Loads MarianMT directories of Hugging Face without converting them first."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.loading import compute_dtype, newest_version
from keras_transformer.plugins import Loader


def _find(model: str) -> Path | None:
    path = newest_version(Path(model))
    return path if (path / "source.spm").is_file() else None


def open_directory(
    folder: Path, precision: str = "float32", jit_compile: bool = False
) -> KerasEngine:
    """Opens a MarianMT directory, with the arguments of `load_model`."""
    from keras_transformer.extensions.converters import read_model
    from keras_transformer.inference.int8 import use_int8_products
    from keras_transformer.inference.translation_module import TranslationModule

    converted = read_model(folder, "huggingface")
    transformer = converted.transformer(dtype=compute_dtype(precision))
    if precision == "int8":
        use_int8_products(transformer)
    module = TranslationModule([transformer], converted.tokenizer(), converted.config.decoding)
    return KerasEngine(module, str(folder), jit_compile)


LOADER = Loader("a MarianMT model", _find, open_directory)
