"""Learning-rate schedules by name (paper, section 5.3)."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

__all__ = ["LearningRate", "Noam"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a step, where the first step is 0.

    With s = step + 1, w warm-up steps and the peak or factor r:

    * noam: r · d_model^-0.5 · min(s^-0.5, s · w^-1.5) (equation 3)
    * inverse_sqrt: r · min(s / w, √(w / s))
    * linear: up to r over w steps, then down to 0 at `max_steps`
    * cosine: up to r over w steps, then down to 0 at `max_steps` as half a cosine
    * constant: up to r over w steps, then r.

    Args:
        schedule: name of the schedule.
        learning_rate: r.
        warmup_steps: w.
        max_steps: number of steps of the training.
        d_model: width of the model, for `noam`.

    Example:
    >>> rate = LearningRate("linear", 0.5, warmup_steps=2, max_steps=4, d_model=64)
    >>> [round(float(rate(step)), 3) for step in range(4)]
    [0.25, 0.5, 0.333, 0.167]
    """

    def __init__(
        self, schedule: str, learning_rate: float, warmup_steps: int, max_steps: int, d_model: int
    ):
        super().__init__()
        self.schedule = schedule
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.max_steps = max_steps
        self.d_model = d_model

    def __call__(self, step: Any) -> Any:
        s = ops.cast(step, "float32") + 1.0
        w = float(max(self.warmup_steps, 1))
        warmup = ops.minimum(s / w, 1.0)
        left = (float(self.max_steps) - s + 1.0) / max(self.max_steps - w + 1.0, 1.0)
        left = ops.clip(left, 0.0, 1.0)
        if self.schedule == "noam":
            factor = self.d_model**-0.5 * ops.minimum(s**-0.5, s * w**-1.5)
        elif self.schedule == "inverse_sqrt":
            factor = ops.minimum(s / w, ops.sqrt(w / s))
        elif self.schedule == "linear":
            factor = ops.minimum(warmup, left)
        elif self.schedule == "cosine":
            factor = warmup * 0.5 * (1.0 - ops.cos(math.pi * left))
        elif self.schedule == "constant":
            factor = warmup
        else:
            raise ValueError(f"The learning-rate schedule {self.schedule!r} is unknown.")
        return self.learning_rate * factor

    def get_config(self) -> dict[str, Any]:
        names = ("schedule", "learning_rate", "warmup_steps", "max_steps", "d_model")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Noam(LearningRate):
    """The schedule of the paper: d_model^-0.5 · min(s^-0.5, s · w^-1.5) (equation 3).

    s is the number of the step from 1, and w the number of warm-up steps.

    Args:
        d_model: width of the model.
        warmup_steps: w, 4,000 in the paper.
        factor: a factor of the learning rate, 1 in the paper.

    Example:
    >>> optimizer = keras.optimizers.Adam(Noam(d_model=512), beta_2=0.98, epsilon=1e-9)
    >>> round(float(Noam(d_model=512)(3999)), 7)  # the largest one
    0.0006988
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, factor: float = 1.0):
        super().__init__("noam", factor, warmup_steps, max_steps=0, d_model=d_model)

    def get_config(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "factor": self.learning_rate,
        }
