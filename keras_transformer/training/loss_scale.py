"""The loss scale of float16, which keeps small gradients from becoming 0."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

FIRST_SCALE = 2.0**15
MAX_SCALE = 2.0**24
STEPS_TO_DOUBLE = 2000


class LossScale:
    """A factor of the loss that adapts to the range of the gradients.

    Args:
        add_weight: adds a variable to a Keras model, as `keras.Model.add_weight`.

    Attributes:
        scale: the factor.
        finite_steps: steps since the factor last changed.
    """

    def __init__(self, add_weight: Callable[..., keras.Variable]):
        self.scale = add_weight(
            name="loss_scale", initializer=keras.initializers.Constant(FIRST_SCALE),
            trainable=False, dtype="float32", autocast=False,
        )  # fmt: skip
        self.finite_steps = add_weight(
            shape=(), name="finite_steps", initializer="zeros", trainable=False, dtype="int32"
        )

    def adapt(self, finite: tf.Tensor) -> None:
        """Halves the scale after an overflow, doubles it after many steps without one.

        Args:
            finite: bool scalar, whether the gradients of this step were finite.
        """
        steps = tf.where(finite, self.finite_steps.value + 1, 0)
        grow = steps >= STEPS_TO_DOUBLE
        scale = self.scale.value
        grown = tf.where(grow, tf.minimum(scale * 2.0, MAX_SCALE), scale)
        self.scale.assign(tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0)))
        self.finite_steps.assign(tf.where(grow, 0, steps))
