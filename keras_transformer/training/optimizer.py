"""Adam and AdamW in one pass over each weight (paper, section 5.3)."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.training.schedules import LearningRate


class FusedAdam(keras.optimizers.Adam):
    """Keras's Adam, whose update is one operation that reads and writes each array once.

    Args:
        decay: AdamW's decoupled weight decay, times the learning rate, of
            weights with more than one dimension: no bias, no layer norm. (Keras's
            own `weight_decay` acts outside of `update_step`.)
        args, kwargs: those of `keras.optimizers.Adam`, but for `amsgrad`.
    """

    def __init__(self, *args: Any, decay: float = 0.0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.decay = decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Moves one weight, of one replica, by the gradient of the global batch."""
        index = self._get_variable_index(variable)
        weight = variable.value if isinstance(variable, keras.Variable) else variable
        if self.decay and len(variable.shape) > 1:
            weight.assign_sub(weight * (learning_rate * self.decay))
        step = tf.cast(self.iterations.value + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay": self.decay}


def make_optimizer(config: TrainingConfig, d_model: int) -> keras.optimizers.Optimizer:
    """Returns Adam or AdamW with the configured betas, epsilon and schedule.

    Clipping is the training step's: the optimizer would clip before replicas are summed.
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
        name="adam",  # part of its variables' paths; by default it counts a process's optimizers
    )
