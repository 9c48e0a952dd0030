"""Adam and AdamW in one pass over each weight (paper, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.training.schedules import LearningRate


class FusedAdam(keras.optimizers.Adam):
    """Adam with a fused update: a single operation reads and writes each array once.

    Args:
        learning_rate: a number or a schedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: a small number for numerical stability.
        decay: decoupled weight decay of AdamW, relative to the learning rate. It applies to weights
            with more than one dimension, not to biases and layer norms. Keras's `weight_decay`
            would act outside of `update_step`.
        **kwargs: other arguments of `keras.optimizers.Adam`, except `amsgrad`.

    Example:
    >>> optimizer = FusedAdam(learning_rate=0.1)
    >>> weight = keras.Variable([1.0, 1.0])
    >>> optimizer.apply([tf.constant([1.0, -1.0])], [weight])
    >>> weight.numpy().round(2)
    array([0.9, 1.1], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        decay: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        self.decay = decay

    def update_step(
        self,
        gradient: Any,
        variable: Any,
        learning_rate: Any,
        powers: tuple[Any, Any] | None = None,
    ) -> None:
        """Updates one weight on one replica by the gradient of the global batch.

        Args:
            gradient: the gradient.
            variable: the weight.
            learning_rate: a scalar.
            powers: the result of `beta_powers`, which is the same for all weights of a step.
        """
        weight = variable.value if isinstance(variable, keras.Variable) else variable
        if self._decays(weight):
            weight.assign_sub(weight * (learning_rate * self.decay))
        first, second = self.slots(variable)
        beta1_power, beta2_power = self.beta_powers() if powers is None else powers
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=first.value.handle,
            v=second.value.handle,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def updated(
        self,
        gradient: tf.Tensor,
        weight: Any,
        slots: Sequence[keras.Variable],
        learning_rate: tf.Tensor,
        powers: tuple[Any, Any],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Computes the update of one weight without assigning it. XLA makes one kernel of it.

        Args:
            gradient: the gradient.
            weight: the weight.
            slots: its first and second moment.
            learning_rate: a scalar.
            powers: the result of `beta_powers`.

        Returns:
            The new weight, first moment and second moment.
        """
        first, second = (tf.convert_to_tensor(slot.value) for slot in slots)
        weight = tf.convert_to_tensor(weight)
        if self._decays(weight):
            weight -= weight * (learning_rate * self.decay)
        beta1_power, beta2_power = powers
        # The formulas and their order are those of ResourceApplyAdam.
        rate = learning_rate * tf.sqrt(1.0 - beta2_power) / (1.0 - beta1_power)
        first += (gradient - first) * (1.0 - self.beta_1)
        second += (tf.square(gradient) - second) * (1.0 - self.beta_2)
        weight -= first * rate / (tf.sqrt(second) + self.epsilon)
        return weight, first, second

    def beta_powers(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns beta_1 and beta_2 to the power of the number of the next update."""
        step = tf.cast(self.iterations.value + 1, tf.float32)
        return self.beta_1**step, self.beta_2**step

    def slots(self, variable: Any) -> tuple[keras.Variable, keras.Variable]:
        """Returns the variables of the first and second moment of a weight."""
        index = self._get_variable_index(variable)
        return self._momentums[index], self._velocities[index]

    def _decays(self, weight: Any) -> bool:
        return bool(self.decay) and len(weight.shape) > 1

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay": self.decay}


def make_optimizer(config: TrainingConfig, d_model: int) -> keras.optimizers.Optimizer:
    """Returns Adam or AdamW with the configured betas, epsilon and schedule.

    The training step clips gradients, because the optimizer would do it before the sum over
    replicas.

    Args:
        config: configuration of the training.
        d_model: width of the model, for the schedule `noam`.

    Example:
    >>> optimizer = make_optimizer(TrainingConfig(), d_model=512)
    >>> optimizer.beta_2, float(optimizer.learning_rate) < 1e-6
    (0.98, True)
    """
    rate = LearningRate(
        config.schedule, config.learning_rate, config.warmup_steps, config.max_steps, d_model
    )
    return FusedAdam(
        rate,
        config.beta_1,
        config.beta_2,
        config.epsilon,
        decay=config.weight_decay,
        name="adam",  # part of the paths of its variables; the default counts optimizers
    )
