"""The base class of the baselines: embeddings that are tied to the output, dropout, building.

Baselines use the layers of Keras, except for dropout: dropout of this package is a function of
the step, so that a resumed run continues with the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config.model import EncoderDecoderConfig
from keras_transformer.config.schema import PositiveInt, Rate, setting
from keras_transformer.errors import require
from keras_transformer.layers import Dropout
from keras_transformer.models.encoder_decoder import EncoderDecoder


@dataclasses.dataclass(frozen=True)
class BaselineConfig(EncoderDecoderConfig):
    """Sizes of a baseline."""

    d_model: PositiveInt = setting(256, "width of the embeddings")
    dropout: Rate = setting(0.3, "rate of all dropout layers")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.tie_embeddings != "none",
            "model.tie_embeddings is none, but the output layer of a baseline is its target "
            "embedding. Choose all or target.",
        )


class Baseline(EncoderDecoder):
    """An encoder-decoder whose output projection is its target embedding.

    A subclass adds its layers in `__init__`, and implements the methods of `EncoderDecoder`.
    """

    embedding_stddev: ClassVar[float]
    cache_per_hypothesis = True
    config: BaselineConfig

    def __init__(self, config: BaselineConfig | Mapping[str, Any], **kwargs: Any):
        kwargs.setdefault("name", self.run_config.architecture)
        super().__init__(**kwargs)
        make: Any = type(self.run_config().model)
        self.config = make.from_dict(config) if isinstance(config, Mapping) else config
        self._shapes: list[tuple[keras.layers.Layer, Any]] = []
        self._add_embeddings()
        self.source_dropout = self.add_dropout("source_dropout")
        self.target_dropout = self.add_dropout("target_dropout")
        self.output_dropout = self.add_dropout("output_dropout")

    def add(self, layer: keras.layers.Layer, *shape: int | None) -> keras.layers.Layer:
        """Returns the layer, which `build` builds for inputs of this shape."""
        self._shapes.append((layer, shape))
        return layer

    def add_dropout(self, name: str, width: int | None = None) -> Dropout:
        """Adds a dropout layer with the common rate."""
        dropout = Dropout(self.config.dropout, name=name, dtype=self.dtype_policy)
        return self.add(dropout, None, None, width or self.config.d_model)

    def _make_embedding(self, name: str, vocab_size: int) -> keras.layers.Layer:
        embedding = keras.layers.ReversibleEmbedding(
            vocab_size,
            self.config.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=self.embedding_stddev),
            name=name,
            dtype=self.dtype_policy,
        )
        return self.add(embedding, None, None)

    def build(self, input_shape: Any = None) -> None:
        """Builds all weights; they do not depend on the shapes of the input."""
        if getattr(self, "built", False):
            return
        # The scope puts the model's name in front of all paths.
        with keras.name_scope(self.name, caller=self):
            for layer, shape in self._shapes:
                layer.build(shape)
        self.built = True

    def logits(self, features: Any) -> Any:
        return self.target_embedding(features, reverse=True)

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        return self.target_embedding.embeddings, None

    def output_rows(self, ids: Any) -> tuple[Any, None]:
        rows = ops.take(self.target_embedding.embeddings, ids, axis=0)
        return ops.cast(rows, self.compute_dtype), None
