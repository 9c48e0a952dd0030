"""The layers of the paper's table 1, of equal width, and the paper's claims about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from complexity import paths
from keras_transformer.layers import SelfAttention
from keras_transformer.layers.fast_paths import linear


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of all layers."""

    n: int  # number of positions
    d: int  # width
    window: int  # r, of restricted self-attention
    kernel: int  # k, of convolutions, at least 2
    head_dim: int  # of attention, which has d / head_dim heads

    def dilations(self) -> list[int]:
        """Returns 1, k, k², ...: the rates with which the last position sees the first."""
        rates = [1]
        while self.kernel * rates[-1] < self.n:
            rates.append(self.kernel * rates[-1])
        return rates


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Args:
        name: name of the kind.
        complexity, sequential, path: O( ) of operations, of sequential operations and of the
            maximum path length.
        source: the place in the paper. For the path of convolutions, its Table 1 prints
            log_k(n), which needs dilation; n/k for contiguous kernels is in its text.
        exponents: exponents of n and d in the paper's complexity.
        make: returns a layer from `[B, n, d]` to the same shape.
        path_length: returns the maximum path length, computed from layers of these sizes.
    """

    name: str
    complexity: str
    sequential: str
    path: str
    source: str
    exponents: dict[str, str]
    make: Callable[[Sizes], keras.Layer]
    path_length: Callable[[Sizes], int]


class Projections(keras.layers.Layer):
    """The projections of attention: `[B, n, d]` to queries, keys and values, and back.

    The paper's O( ) do not count these n·d² operations.
    """

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        self.inner = self.add_weight(shape=(width, 3 * width), name="inner")
        self.outer = self.add_weight(shape=(width, width), name="outer")

    def call(self, inputs: Any) -> Any:
        _, _, values = keras.ops.split(linear(inputs, self.inner), 3, axis=-1)
        return linear(values, self.outer)


def _attention(sizes: Sizes, window: int | None = None) -> keras.Layer:
    return SelfAttention(sizes.d // sizes.head_dim, sizes.head_dim, window=window)


def _convolution(sizes: Sizes) -> keras.Layer:
    return keras.layers.Conv1D(sizes.d, sizes.kernel, padding="same")


def _dilated_layers(sizes: Sizes) -> list[keras.Layer]:
    """Returns causal convolutions, as in ByteNet, which the paper cites."""
    make = keras.layers.Conv1D
    return [
        make(sizes.d, sizes.kernel, padding="causal", dilation_rate=rate)
        for rate in sizes.dilations()
    ]


def _dilated(sizes: Sizes) -> keras.Layer:
    return keras.Sequential(_dilated_layers(sizes))


def _separable(sizes: Sizes) -> keras.Layer:
    return keras.layers.SeparableConv1D(sizes.d, sizes.kernel, padding="same")


def _of_same(make: Callable[[Sizes], keras.Layer]) -> Callable[[Sizes], int]:
    """Returns a function that computes the path length in identical layers."""

    def path_length(sizes: Sizes) -> int:
        return paths.identical_layers(paths.dependencies(make(sizes), sizes.n, sizes.d))

    return path_length


def _of_dilated(sizes: Sizes) -> int:
    layers = (paths.dependencies(each, sizes.n, sizes.d) for each in _dilated_layers(sizes))
    return paths.stacked_layers(layers, np.tri(sizes.n, dtype=bool))


def _recurrent(layer: type[keras.layers.RNN], name: str) -> Kind:
    return Kind(
        name, "n·d²", "n", "n", "Table 1", {"n": "1", "d": "2"},
        lambda sizes: layer(sizes.d, return_sequences=True),
        lambda sizes: sizes.n,  # the first input reaches the last output by n uses of the cell
    )  # fmt: skip


def _restricted(sizes: Sizes) -> keras.Layer:
    return _attention(sizes, sizes.window)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "self-attention", "n²·d", "1", "1", "Table 1", {"n": "2", "d": "1"},
            _attention, _of_same(_attention),
        ),
        Kind(
            "restricted self-attention", "r·n·d", "1", "n/r", "Table 1", {"n": "1", "d": "1"},
            _restricted, _of_same(_restricted),
        ),
        _recurrent(keras.layers.LSTM, "LSTM"),
        _recurrent(keras.layers.GRU, "GRU"),
        Kind(
            "convolution", "k·n·d²", "1", "n/k", "Table 1; path: section 4", {"n": "1", "d": "2"},
            _convolution, _of_same(_convolution),
        ),
        Kind(
            "dilated convolutions", "k·n·d²·log_k(n)", "log_k(n)", "log_k(n)",
            "of the stack: derived; path: Table 1", {"n": "1, log", "d": "2"},
            _dilated, _of_dilated,
        ),
        Kind(
            "separable convolution", "k·n·d + n·d²", "1", "n/k",
            "section 4; path: derived", {"n": "1", "d": "1 to 2"},
            _separable, _of_same(_separable),
        ),
    )
}  # fmt: skip

PROJECTIONS = "projections"

MAKERS: dict[str, Callable[[Sizes], keras.Layer]] = {
    **{name: kind.make for name, kind in KINDS.items()},
    PROJECTIONS: lambda _: Projections(),
}


def is_attention(name: str) -> bool:
    """True if a kind of layer has projections, which the paper's O( ) does not count."""
    return name.endswith("self-attention")
