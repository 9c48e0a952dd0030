"""Floating-point operations of training, counted from the matrix products of each model.

Only real tokens count, because good batching avoids padding. Operations other than products
(softmax, tanh, layer norm, embedding lookups) are a small part and left out for all models.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_transformer.config import ModelConfig
from keras_transformer.extensions.paper.baselines.convolutional import (
    ConvolutionalConfig,
)
from keras_transformer.extensions.paper.baselines.gru import GRUConfig

Lengths = npt.NDArray[np.integer]


def training_flop(config: Any, source: Lengths, target: Lengths) -> float:
    """Returns the FLOP of one epoch: two per multiplication, and a backward pass of two forward
    passes.

    Args:
        config: configuration of the model.
        source: int `[pairs]`, tokens of each source, with the end token.
        target: int `[pairs]`, tokens of each target, with the end token.
    """
    source, target = source.astype(np.int64), target.astype(np.int64)
    return 3 * 2.0 * _multiplications(config, source, target)


@functools.singledispatch
def _multiplications(config: Any, source: Lengths, target: Lengths) -> int:
    """Multiplications of a forward pass."""
    raise NotImplementedError(type(config))


@_multiplications.register
def _(config: ModelConfig, source: Lengths, target: Lengths) -> int:
    c, s, t = config, int(source.sum()), int(target.sum())
    d, keys, values = c.d_model, c.num_heads * (c.key_dim or 0), c.num_heads * (c.value_dim or 0)

    def attention(queries: int, memory: int, pairs: int) -> int:
        weights = queries * d * keys + memory * d * (keys + values) + queries * values * d
        return weights + pairs * (keys + values)

    def feed_forward(rows: int, d_ff: int) -> int:
        return 2 * rows * d * d_ff

    causal = int(
        (target * (target + 1) // 2).sum()
    )  # each position attends to itself and earlier positions
    encoder = attention(s, s, int((source * source).sum())) + feed_forward(s, c.d_ff)
    decoder = attention(t, t, causal) + attention(t, s, _pairs(source, target))
    decoder += feed_forward(t, c.decoder_sizes.d_ff)
    layers = c.num_encoder_layers * encoder + c.num_decoder_layers * decoder
    return layers + t * d * c.target_vocab_size


@_multiplications.register
def _(config: GRUConfig, source: Lengths, target: Lengths) -> int:
    c, s, t = config, int(source.sum()), int(target.sum())
    d, u = c.d_model, c.units
    encoder = s * 2 * 3 * (d * u + u * u)
    once = s * 2 * u * u + len(source) * u * u  # keys, and the first state
    attention = t * u * u + _pairs(source, target) * (u + 2 * u)  # score and weighted mean
    steps = t * 3 * ((d + 2 * u) * u + u * u)
    output = t * ((d + 3 * u) * d + d * c.target_vocab_size)
    return encoder + once + attention + steps + output


@_multiplications.register
def _(config: ConvolutionalConfig, source: Lengths, target: Lengths) -> int:
    c, s, t = config, int(source.sum()), int(target.sum())
    d, h = c.d_model, c.hidden
    convolution = c.kernel_size * h * 2 * h
    encoder = s * (2 * d * h + c.num_encoder_layers * convolution)
    layer = t * (convolution + 2 * d * h) + _pairs(source, target) * 2 * d
    decoder = t * 2 * d * h + c.num_decoder_layers * layer
    return encoder + decoder + t * d * c.target_vocab_size


def _pairs(source: Lengths, target: Lengths) -> int:
    """Pairs of a source and a target token of one sentence."""
    return int((source * target).sum())
