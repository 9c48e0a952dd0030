"""Small models of every architecture, with random weights, and batches for them."""

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_transformer.config import EncoderDecoderConfig
from keras_transformer.extensions.paper.baselines.convolutional import (
    Convolutional,
    ConvolutionalConfig,
)
from keras_transformer.extensions.paper.baselines.gru import GRU, GRUConfig
from keras_transformer.models.encoder_decoder import EncoderDecoder
from tests.layers.layer_check import randomize

Array = NDArray[Any]

VOCAB, PAD, START, END = 9, 0, 2, 3
_VOCABULARY: dict[str, Any] = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
MODELS: dict[str, tuple[type[EncoderDecoder], EncoderDecoderConfig]] = {
    "gru": (GRU, GRUConfig(**_VOCABULARY, d_model=6, units=5)),
    "convolutional": (
        Convolutional,
        ConvolutionalConfig(
            **_VOCABULARY, d_model=6, hidden=4, num_encoder_layers=2, num_decoder_layers=2,
            max_positions=20,
        ),
    ),
}  # fmt: skip


def make(name: str, scale: float = 0.5, **changes: Any) -> tuple[EncoderDecoder, dict[str, Array]]:
    """Returns a model and its weights, float64 by path."""
    architecture, config = MODELS[name]
    if changes:
        config = config.replace(**changes)
    random.seed(5)
    model = architecture(config, dtype="float32")
    model.build()
    return model, randomize(model, seed=3, scale=scale)


def random_ids(lengths: list[int], seed: int = 0, width: int | None = None) -> Array:
    """Sentences of the given lengths, padded: int32 `[B, width]`."""
    rng = np.random.default_rng(seed)
    ids = np.full((len(lengths), width or max(lengths)), PAD, np.int32)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = rng.integers(4, VOCAB, length)
    return ids


def source_ids(lengths: list[int], seed: int = 0, width: int | None = None) -> Array:
    """Sources of the given lengths, which end with the end token."""
    ids = random_ids(lengths, seed, width)
    for row, length in zip(ids, lengths, strict=True):
        row[length - 1] = END
    return ids


def target_ids(lengths: list[int], seed: int = 1, width: int | None = None) -> Array:
    """Targets of the given lengths, which begin with the start token."""
    ids = random_ids(lengths, seed, width)
    ids[:, 0] = START
    return ids
