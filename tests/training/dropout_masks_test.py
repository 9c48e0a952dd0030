"""Masks of both generators: rate, independence, and equality with and without XLA."""

import functools
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training.dropout_masks import hashed_masks, philox_masks

RATE, SHAPE = 0.1, (512, 64, 8)
SIZE = int(np.prod(SHAPE))
SALT, SEED = 0x1234567, (7 << 32, 5)
GENERATORS = pytest.mark.parametrize("masks", [hashed_masks, philox_masks])


@functools.cache
def deviations(masks, seed=SEED, salt=SALT, xla=False):
    """Dropped minus the rate, divided by its standard deviation, flat."""

    @functools.partial(tf.function, jit_compile=xla, autograph=False)
    def draw(seed):
        draw_mask = masks(seed)
        return draw_mask(SHAPE, RATE, salt, tf.float32)

    mask = draw(tf.constant(seed, tf.int64)).numpy()
    assert mask.shape == SHAPE
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / (1 - RATE))}
    return ((mask == 0).reshape(-1) - RATE) / (RATE * (1 - RATE)) ** 0.5


def assert_independent(one, other):
    """Their correlation is within six standard deviations of that of independent masks."""
    assert abs((one * other).sum()) < 6 * len(one) ** 0.5


@GENERATORS
def test_share_that_is_dropped_is_the_rate(masks):
    assert abs(deviations(masks).sum()) < 6 * SIZE**0.5


@GENERATORS
def test_elements_of_a_mask_are_independent(masks):
    mask = deviations(masks)
    # Neighbours, neighbours in each dimension, and halves of one random number.
    for lag in (1, 2, 3, 4, 7, 8, 64, 512, 1024, 2**14, 2**15, 2**17):
        assert_independent(mask[:-lag], mask[lag:])
    bytes_ = np.packbits(mask > 0)
    weights = np.array([bin(value).count("1") for value in range(256)])
    expected = len(bytes_) * RATE**weights * (1 - RATE) ** (8 - weights)
    often = expected > 5
    squares = (np.bincount(bytes_, minlength=256) - expected)[often] ** 2 / expected[often]
    # The sum is nearly normal, with mean n and variance 2 n.
    assert abs(squares.sum() - often.sum()) < 6 * (2 * often.sum()) ** 0.5


@GENERATORS
@pytest.mark.parametrize(
    "seed, salt",
    [
        ((7 << 32, 6), SALT), ((7 << 32, 5 + 2**31), SALT), ((8 << 32, 5), SALT),
        (SEED, SALT + 1), (SEED, SALT ^ (1 << 30)), ((7 << 32, 6), SALT + 1),
        ((7 << 32, 5 ^ 1), SALT ^ 1),
    ],
)  # fmt: skip
def test_other_steps_seeds_and_layers_have_independent_masks(masks, seed, salt):
    one, other = deviations(masks), deviations(masks, seed, salt)
    assert_independent(one, other)
    # Not the same stream from another position, either.
    for lag in (1, 2, 4, 8):
        assert_independent(one[lag:], other[:-lag])
        assert_independent(one[:-lag], other[lag:])


@GENERATORS
def test_xla_draws_the_same_masks(masks):
    np.testing.assert_array_equal(deviations(masks, xla=True), deviations(masks))


@GENERATORS
def test_shapes_may_be_odd_empty_and_unknown(masks):
    draw_mask = masks(tf.constant(SEED, tf.int64))
    assert draw_mask((3, 5, 1), 0.5, 1, tf.bfloat16).shape == (3, 5, 1)
    for shape in ((0, 4), (4, 0), (0,), (7,)):
        assert draw_mask(shape, 0.5, 1, tf.bfloat16).shape == shape

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def draw(inputs):
        return draw_mask((tf.shape(inputs)[0], 4), 0.5, 1, tf.bfloat16)

    np.testing.assert_array_equal(draw(tf.zeros([3, 4])), draw_mask((3, 4), 0.5, 1, tf.bfloat16))


def test_programs_contain_no_large_constants():
    @functools.partial(tf.function, jit_compile=True)
    def draw(seed, inputs):
        shape = tf.unstack(tf.shape(inputs))
        return hashed_masks(seed)(shape, 0.1, SALT, tf.bfloat16)

    lowered = draw.experimental_get_compiler_ir(tf.constant(SEED, tf.int64), tf.zeros([64, 1024]))
    sizes = re.findall(r"\[([\d,]*)\]\S* constant\(", lowered(stage="hlo"))
    elements = [math.prod(int(size) for size in shape.split(",") if size) for shape in sizes]
    assert len(elements) > 5 and max(elements) <= 1024
