"""Loads LiteRT models, which run without TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from keras_transformer import console
from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.inference import manifest
from keras_transformer.inference.loading import LoadedModel, Loader, newest_version
from keras_transformer.runs.machine import available_cores

FILE = "model.tflite"
_SETTINGS = ("decoding.length_penalty", "decoding.max_length")


def find_litert(model_dir: str | Path) -> Path | None:
    """Returns the LiteRT file of a path, or None. Other files may be models of another package."""
    path = newest_version(Path(model_dir), FILE)
    if path.suffix == ".tflite" or (path.is_file() and _is_litert(path)):
        return path
    file = path / FILE
    return file if file.is_file() else None


def _is_litert(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(8)[4:] == b"TFL3"


def _open(
    model: str, settings: Mapping[str, Any] = MappingProxyType({}), threads: int | None = None
) -> LoadedModel:
    path, file = newest_version(Path(model), FILE), find_litert(model)
    assert file is not None
    if (path / "saved_model.pb").is_file():
        console.say(f"{path} has two models. Using model.tflite, the faster one on a CPU.")
    from keras_transformer.extensions.litert.engine import LiteRTModel  # needs a package

    if path.is_dir():  # a file is checked by the checksum inside it
        manifest.check_needed_files(path)
    cores = available_cores() if threads is None else threads
    return _loaded(str(file), LiteRTModel(file, cores), settings)


# A version that also has a SavedModel is a LiteRT model.
LOADER = Loader(
    "a LiteRT model", lambda model: find_litert(model) is not None, _open, needs_tensorflow=False
)


def _loaded(path: str, model: Any, settings: Mapping[str, Any]) -> LoadedModel:
    others = [name for name in settings if name not in _SETTINGS]
    if others:
        raise InputError(
            f"{path} is a LiteRT model: {' and '.join(others)} cannot be changed after the export, "
            f"only {' and '.join(_SETTINGS)}. Use the run directory."
        )
    config = Config().updated(settings).decoding  # checks the values
    penalty = config.length_penalty if "decoding.length_penalty" in settings else math.nan
    longest_output = model.metadata.max_output_tokens
    if (config.max_length or 0) > longest_output:
        raise InputError(
            f"decoding.max_length is {config.max_length}, but {path} was exported with at most "
            f"{longest_output} tokens."
        )

    def translate(text: Any) -> dict[str, np.ndarray]:
        sources = [model.source_ids(line) for line in _lines(text)]
        count = len(sources)
        found = model.translate_batch(sources, [config.max_length or 0] * count, [penalty] * count)
        texts = [[text.encode() for text in model.texts(result)] for result in found]
        return {
            "translations": np.array(texts, object),
            "scores": np.array([result.scores for result in found]),
        }

    def lengths(text: Any) -> dict[str, np.ndarray]:
        counts = zip(*map(model.lengths, _lines(text)), strict=True)
        return dict(zip(("tokens", "used", "unknown"), map(np.array, counts), strict=True))

    return LoadedModel(
        path,
        model.metadata.n_best,
        translate,
        lengths,
        model,
        max_train_source_length=model.metadata.max_train_source_length,
        symbols=tuple(sorted(model.vocabulary.source_symbols())),
        max_batch_lines=model.batch_size,
        threads=model.threads,
        change=lambda settings: _loaded(path, model, settings),
    )


def _lines(text: Any) -> list[str]:
    return [line.decode("utf-8", "surrogateescape") for line in np.asarray(text)]
