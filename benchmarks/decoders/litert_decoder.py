"""This package's LiteRT model of random weights, sentence by sentence, of ids."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from steppers.protocol import serve

from decoders import batches, protocol
from keras_transformer.export.litert import export, flatbuffer
from keras_transformer.inference.litert import LiteRTModel, append_archive
from keras_transformer.inference.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import preset
from keras_transformer.text.tokenizer import Tokenizer


def make_file(settings: dict[str, Any], path: Path) -> None:
    """Writes a LiteRT model of random weights.

    Args:
        settings: `preset`, the `configuration` that differs from it, `vocabulary`, `seed` and
            `precision`.
        path: of the file.
    """
    config = preset(settings["preset"]).updated(settings["configuration"])
    keras.utils.set_random_seed(settings["seed"])
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    translator = Translator(transformer, Tokenizer.load(settings["vocabulary"]), config.decoding)
    precision = settings["precision"]
    model = export.convert(translator, "none" if precision == "float32" else precision)
    path.write_bytes(flatbuffer.write(model))
    append_archive(path, export.describe(translator, model, None), translator.tokenizer.vocabulary)


def start(settings: dict[str, Any]) -> protocol.Started:
    """Makes the model and warms it up.

    Args:
        settings: `make_file`'s, `threads`, and `protocol`'s.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        make_file(settings, path)
        size = path.stat().st_size
        model = LiteRTModel(path, settings["threads"])

    def decode(ids: Sequence[Sequence[int]]) -> Sequence[int]:
        return [int(model.translate_ids(row).lengths[0]) for row in ids]

    def prepare(ids: batches.Ids) -> Sequence[Sequence[int]]:
        end_id = model.vocabulary.end_id
        return [[*row[: row.index(end_id)], end_id] for row in ids.tolist()]

    facts, commands = protocol.decode_ids(settings, prepare, decode, None)
    versions = {"ai-edge-litert": importlib.metadata.version("ai-edge-litert")}
    return {**facts, "versions": versions, "file_bytes": size}, commands


if __name__ == "__main__":
    serve(start)
