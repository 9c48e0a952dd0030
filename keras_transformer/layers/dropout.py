"""Dropout whose mask can be a pure function of a given seed (paper, section 5.4)."""

from __future__ import annotations

import contextlib
import math
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import BaseLayer, replica_context

_scope = threading.local()  # a MirroredStrategy traces each replica in a separate thread


@contextlib.contextmanager
def dropout_seed(
    seed: Any, draw_mask: Callable[[Any, float, int, Any], Any] | None = None
) -> Iterator[None]:
    """Makes the masks of all `Dropout` calls inside a function of `seed` and the layer's path.

    Args:
        seed: integer tensor `[2]`, a different one for each step, microbatch and replica.
        draw_mask: draws the masks from `seed` instead of `keras.random`. Its arguments are a
            shape, the rate, an integer for the layer's path, and a dtype. It returns the factors
            of the elements: 0, or 1 / (1 - rate) for those that are kept.

    Example:
    >>> dropout, ones = Dropout(0.5), keras.ops.ones(1000)
    >>> with dropout_seed(keras.ops.array([3, 4])):
    ...     first, second = (dropout(ones, training=True) for _ in range(2))
    >>> bool(keras.ops.all(first == second))
    True
    """
    outer = getattr(_scope, "given", None)
    _scope.given = (seed, draw_mask)
    try:
        yield
    finally:
        _scope.given = outer


class _GivenSeed(keras.random.SeedGenerator):
    """A seed generator that returns a given seed: `keras.random` does not accept a tensor."""

    def __init__(self, seed: Any):
        self._seed = seed

    def next(self, ordered: bool = True) -> Any:
        return self._seed


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(BaseLayer):
    """Zeroes a fraction `rate` of its input in training and scales up the rest.

    Inside `dropout_seed` the mask depends only on that seed and on the path of this layer.
    Elsewhere it comes from a seed generator with state, as in Keras.

    Args:
        rate: fraction to drop, 0 <= rate < 1.
        seed: initial seed of the generator with state.

    Example:
    >>> Dropout(0.5)(keras.ops.ones(3), training=False).numpy().tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"rate is {rate}, but it must be at least 0 and less than 1.")
        self.rate = rate
        self.seed = seed
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: Any) -> None:
        # The path is complete only when all parents have been named.
        self._salt = zlib.crc32(self.path.encode()) & 0x7FFFFFFF

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not training or self.rate == 0:
            return inputs
        return inputs * self._mask(ops.shape(inputs), inputs.dtype)

    def _mask(self, shape: Any, dtype: Any) -> Any:
        """Returns the factors of the elements, 0 or 1 / (1 - rate)."""
        seed, draw_mask = getattr(_scope, "given", None) or (None, None)
        if draw_mask is not None:
            return draw_mask(shape, self.rate, self._salt, dtype)
        generator, context = self.seed_generator, replica_context()
        if seed is None and context is not None:  # all replicas have the same state
            seed = generator.next()
            spread = ops.cast(context.replica_id_in_sync_group * 0x5851F42D, seed.dtype)
            generator = _GivenSeed(seed + ops.stack([spread, ops.zeros_like(spread)]))
        elif seed is not None:
            salted = seed + ops.convert_to_tensor([self._salt, 0], dtype=seed.dtype)
            if keras.backend.backend() == "jax":  # its keys are unsigned
                salted = ops.cast(salted, "uint32")
            generator = _GivenSeed(salted)
        kept = ops.cast(_draw_kept(shape, self.rate, generator), dtype)
        return kept * ops.cast(1.0 / (1.0 - self.rate), dtype)


def _draw_kept(shape: Any, rate: float, seed: keras.random.SeedGenerator) -> Any:
    """Draws bool `shape`, True with probability 1 - `rate`, rounded to 1 / 65,536.

    Each random integer makes two decisions with 16 bits each, because drawing is most of the cost
    of dropout on a CPU.
    """
    count = math.prod(shape)
    drawn = keras.random.randint(((count + 1) // 2, 1), -(2**31), 2**31 - 1, "int32", seed)
    halves = ops.reshape(ops.view(drawn, "int16"), (-1,))[:count]
    return ops.reshape(halves >= round(rate * 2**16) - 2**15, shape)
