"""The base class of the baselines: embeddings that are tied to the output, dropout, building.

Baselines use the layers of Keras, except for dropout: dropout of this package is a function of
the step, so that a resumed run continues with the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from keras_transformer.config import EncoderDecoderConfig, PositiveInt, Rate, require
from keras_transformer.layers import Dropout
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.schema import setting


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

    A subclass creates its layers in `__init__`, builds them in `build_layers`, and implements
    the methods of `EncoderDecoder`. The layers of a `DecodeState` have one entry for each
    hypothesis.
    """

    embedding_stddev: ClassVar[float]
    config: BaselineConfig

    def __init__(self, config: BaselineConfig | Mapping[str, Any], **kwargs: Any):
        kwargs.setdefault("name", self.run_config.architecture)
        super().__init__(**kwargs)
        self.config = self._config_of(config)
        self._add_embeddings()
        self.source_dropout = self.make_dropout("source_dropout")
        self.target_dropout = self.make_dropout("target_dropout")
        self.output_dropout = self.make_dropout("output_dropout")

    @classmethod
    def _config_of(cls, config: Any) -> Any:
        return (
            type(cls.run_config().model).from_dict(config)
            if isinstance(config, Mapping)
            else config
        )

    def _make_embedding(self, name: str, vocab_size: int) -> keras.layers.Layer:
        return keras.layers.ReversibleEmbedding(
            vocab_size,
            self.config.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=self.embedding_stddev),
            name=name,
            dtype=self.dtype_policy,
        )

    def make_dropout(self, name: str) -> Dropout:
        """Returns a dropout layer with the common rate."""
        return Dropout(self.config.dropout, name=name, dtype=self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Builds all weights; they do not depend on the shapes of the input."""
        if getattr(self, "built", False):
            return
        embedded = (None, None, self.config.d_model)
        # The scope puts the model's name in front of all paths.
        with keras.name_scope(self.name, caller=self):
            for layer in dict.fromkeys((self.source_embedding, self.target_embedding)):
                layer.build((None, None))
            for layer in (self.source_dropout, self.target_dropout, self.output_dropout):
                layer.build(embedded)
            self.build_layers()
        self.built = True

    def build_layers(self) -> None:
        """Builds the layers of the subclass."""
        raise NotImplementedError

    def reorder_cache(self, cache: Any, parents: Any) -> Any:
        return tf.nest.map_structure(lambda entry: tf.gather(entry, parents, batch_dims=1), cache)

    def logits(self, features: Any) -> Any:
        return self.target_embedding(features, reverse=True)

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        return self.target_embedding.embeddings, None
