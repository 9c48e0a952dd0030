"""This package's search: of ids, by the graph executor or by XLA, or of text, as it translates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from steppers.protocol import serve

from decoders import batches, protocol
from keras_transformer.decoding import SearchInputs, SearchResult
from keras_transformer.inference import loading
from keras_transformer.inference.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import preset
from keras_transformer.text.tokenizer import Tokenizer


def start(settings: dict[str, Any]) -> protocol.Started:
    """Makes the model and warms it up.

    Args:
        settings: `precision` and whether to `compile`; of a trained model `run` and its
            `decoding` settings; of a random one `preset`, the `configuration` that differs from
            it, `vocabulary`, `seed` and the number of `steps`; and `protocol`'s.
    """
    facts, commands = _of_text(settings) if "run" in settings else _of_ids(settings)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return {**facts, "versions": versions}, commands


def _of_ids(settings: dict[str, Any]) -> protocol.Started:
    config = preset(settings["preset"]).updated(settings["configuration"])
    keras.utils.set_random_seed(settings["seed"])
    transformer = Transformer(config.model, dtype=settings["precision"])
    transformer.build()
    translator = Translator(transformer, Tokenizer.load(settings["vocabulary"]), config.decoding)
    steps, compiled = settings["steps"], settings["compile"]

    def search(source_ids: tf.Tensor) -> SearchResult:
        max_lengths = tf.fill([tf.shape(source_ids)[0]], steps)
        return translator.search_ids(
            source_ids, SearchInputs(max_lengths, length_limit=steps if compiled else None)
        )

    any_shape = [tf.TensorSpec([None, None], tf.int32)]
    function = tf.function(
        search,
        input_signature=None if compiled else any_shape,
        autograph=False,
        jit_compile=compiled,
    )

    def prepare(ids: batches.Ids) -> tf.Tensor:
        return tf.constant(batches.widen(ids, config.model.pad_id) if compiled else ids)

    def decode(source_ids: tf.Tensor) -> Sequence[int]:
        result = function(source_ids)
        result.ids.numpy()
        lengths: list[int] = result.lengths[:, 0].numpy().tolist()
        return lengths

    def shape_of(source_ids: tf.Tensor) -> tuple[int, ...]:
        return tuple(source_ids.shape)

    return protocol.decode_ids(settings, prepare, decode, shape_of if compiled else None)


def _of_text(settings: dict[str, Any]) -> protocol.Started:
    compiled = settings["compile"]
    model = loading.load_model(
        settings["run"],
        settings["decoding"],
        precision=settings["precision"],
        jit_compile=compiled,
    )

    def translate(lines: list[str]) -> list[str]:
        translations = model.translate(text=tf.constant(lines))["translations"]
        return [text.decode() for text in translations[:, 0].numpy()]

    return protocol.decode_text(settings, translate, compiled)


if __name__ == "__main__":
    serve(start)
