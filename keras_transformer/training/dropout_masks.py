"""Dropout masks that are cheap on the device, as pure functions of a seed and a layer.

`keras.random` prepares a key for every draw. With XLA that took half of the instructions of a
training step. The two functions here draw from one seed of a step:

* With XLA, a hash of the position. Its dozen integer operations are fused with the operations that
  use the mask, so that dropout costs no memory traffic.
* Without XLA, one Philox operation, because every integer operation would be a separate kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

DrawMask = Callable[[Any, float, int, Any], tf.Tensor]

_WORD = 2**32 - 1
_PHILOX = 1  # tf.random.Algorithm.PHILOX
# Shifts and odd factors of "triple32" by Chris Wellons, a mixing function of 32 bits with little
# bias (https://nullprogram.com/blog/2018/07/31/).
_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))


def hashed_masks(seed: tf.Tensor) -> DrawMask:
    """Returns a function that draws masks by hashing positions, for programs of XLA.

    The hash has two keys of 32 bits, one before the first round and one after it. Both are random
    in every step and differ between layers.
    """
    # Philox would be slower: XLA would repeat its rounds in the kernel of every mask.
    words = tf.bitcast(seed, tf.uint32) * _word(0x9E3779B1)  # [2, 2]: low and high words
    states = tf.constant([0x243F6A88, 0x85A308D3], tf.uint32)
    for low, high in (tf.unstack(words[1]), tf.unstack(words[0])):
        states = _mixed(tf.bitwise.bitwise_xor(states, low + high * _word(3)))
    keys = tf.unstack(states)

    def draw_mask(shape: Any, rate: float, salt: int, dtype: Any) -> tf.Tensor:
        salts = [salt & _WORD, (salt * 0x9E3779B1 + 0x7F4A7C15) & _WORD]
        first, second = (
            tf.bitwise.bitwise_xor(key, _word(number))
            for key, number in zip(keys, salts, strict=True)
        )
        # TensorFlow turns the numbers of all positions, which are known when it compiles, into a
        # constant of megabytes. So the key comes between the numbers of rows and of columns, and
        # the constants have one number for each row and each column.
        width = shape[-1]
        rows = tf.bitcast(tf.range(math.prod(shape[:-1])) * width, tf.uint32)[:, None]
        words = (rows + first) + tf.bitcast(tf.range(width), tf.uint32)
        for number, (shift, factor) in enumerate(_ROUNDS):
            words = _folded(words, shift) * _word(factor)
            if number == 0:
                words = tf.bitwise.bitwise_xor(words, second)
        # The last fold of `_mixed` is left out: it does not change the highest bits.
        kept = tf.cast(words >= _word(round(rate * 2**32)), dtype)
        return tf.reshape(kept * tf.constant(1.0 / (1.0 - rate), dtype), shape)

    return draw_mask


def philox_masks(seed: tf.Tensor) -> DrawMask:
    """Returns a function that draws masks with Philox, for the graph executor.

    Each random integer makes two decisions with 16 bits each, because drawing is most of the cost
    of dropout on a CPU. So rates are rounded to 1 / 65,536.
    """
    # The seed is where a stream begins, and the layer chooses the stream, so that masks need no
    # other operation. Two seeds with first numbers that are close would be parts of one stream.
    counter = tf.bitcast(seed, tf.uint64)

    def draw_mask(shape: Any, rate: float, salt: int, dtype: Any) -> tf.Tensor:
        count = math.prod(shape)
        drawn = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[(count + 1) // 2, 1],
            key=tf.constant([salt], tf.uint64),
            counter=counter,
            alg=_PHILOX,
            dtype=tf.int32,
        )
        halves = tf.reshape(tf.bitcast(drawn, tf.int16), [-1])[:count]
        kept = halves >= round(rate * 2**16) - 2**15
        # One operation. A cast and a product would be two.
        factors = tf.where(kept, tf.constant(1.0 / (1.0 - rate), dtype), tf.zeros([], dtype))
        return tf.reshape(factors, shape)

    return draw_mask


def _word(number: int) -> tf.Tensor:
    return tf.constant(number, tf.uint32)


def _mixed(words: tf.Tensor) -> tf.Tensor:
    for shift, factor in _ROUNDS:
        words = _folded(words, shift) * _word(factor)
    return _folded(words, 14)


def _folded(words: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, _word(shift)))
