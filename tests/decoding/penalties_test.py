"""The penalties of GNMT, equation 14, against its terms by hand."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding.penalties import coverage_penalty, length_penalty


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.6, 1.0, 2.0])
def test_length_penalty(alpha):
    lengths = np.arange(300)
    expected = ((5.0 + lengths) / 6.0) ** alpha
    found = length_penalty(tf.constant(lengths, tf.int32), alpha)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[1] == 1.0  # one token costs nothing


def test_coverage_penalty():
    coverage = tf.constant([[[0.5, 2.0, 0.1, 0.0], [1.0, 0.25, 0.0, 0.3]]])
    mask = tf.constant([[True, True, False, False]])
    found = coverage_penalty(coverage, mask, 0.2)
    np.testing.assert_allclose(found, [[0.2 * np.log(0.5), 0.2 * np.log(0.25)]], rtol=1e-6)
    unseen = coverage_penalty(tf.zeros([1, 1, 4]), mask, 0.2)
    np.testing.assert_allclose(unseen, [[0.2 * 2 * np.log(1e-9)]], rtol=1e-5)
    assert coverage_penalty(coverage, tf.zeros_like(mask), 0.2).numpy().tolist() == [[0.0, 0.0]]
