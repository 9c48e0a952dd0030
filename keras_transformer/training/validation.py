"""What follows from validation: its BLEU, the best step so far, and an early end.

A run that was stopped in the middle of an interval is validated there too, to
have a checkpoint. Nothing here counts such a validation: a run decides the same,
however often it was stopped and continued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

from keras_transformer.config import TrainingConfig


def ends_interval(step: int, config: TrainingConfig) -> bool:
    """Whether a run that is never stopped is validated after `step`."""
    return step % config.checkpoint_steps == 0 or step >= config.max_steps


def bleu_is_due(step: int, config: TrainingConfig) -> bool:
    """Whether `step` is the first end of an interval at or after a multiple of `bleu_steps`."""
    if not config.bleu_steps or not ends_interval(step, config):
        return False
    interval_before = (step - 1) // config.checkpoint_steps * config.checkpoint_steps
    return step // config.bleu_steps > interval_before // config.bleu_steps


class BleuValidation(keras.callbacks.Callback):
    """Adds `val_bleu`, what `score()` returns, to the logs of an interval where it is due."""

    def __init__(self, score: Callable[[], float], config: TrainingConfig):
        super().__init__()
        self._score = score
        self._config = config

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if bleu_is_due(self.model.step, self._config):
            logs["val_bleu"] = self._score()


class Best(NamedTuple):
    """The best validation so far, and how many have come since."""

    value: float
    step: int
    validations_since: int


class EarlyStopping(keras.callbacks.Callback):
    """Ends training after `early_stopping` validations in a row without a better `best_metric`.

    What it knows is added to the logs of every interval, and so to the metrics of
    every checkpoint: `best_val_loss` or `best_val_bleu`, `best_step` and
    `validations_since_best`.

    Args:
        config: how the run is trained.
        metrics: of the checkpoint that training continues from, {} at its start.
    """

    def __init__(self, config: TrainingConfig, metrics: Mapping[str, float]):
        super().__init__()
        self._config = config
        self.metric = f"val_{config.best_metric}"
        self.best: Best | None = None
        if f"best_{self.metric}" in metrics:
            self.best = Best(
                metrics[f"best_{self.metric}"],
                int(metrics["best_step"]),
                int(metrics["validations_since_best"]),
            )

    @property
    def stopped(self) -> bool:
        """Whether it has been enough."""
        patience = self._config.early_stopping
        return self.best is not None and 0 < patience <= self.best.validations_since

    def reason(self) -> str:
        """Why training has ended."""
        assert self.best is not None
        return (
            f"no better {self.metric} in the last {self.best.validations_since} validations; "
            f"best {self.best.value:.4g} at step {self.best.step}"
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.metric in logs and ends_interval(self.model.step, self._config):
            self._compare(logs[self.metric], self.model.step)
        if self.best is not None:
            logs[f"best_{self.metric}"] = self.best.value
            logs["best_step"] = float(self.best.step)
            logs["validations_since_best"] = float(self.best.validations_since)
        if self.stopped:
            self.model.stop_training = True

    def _compare(self, value: float, step: int) -> None:
        worst = math.inf if self.metric == "val_loss" else -math.inf
        best = self.best or Best(worst, step, 0)
        better = value < best.value if self.metric == "val_loss" else value > best.value
        if better:
            self.best = Best(value, step, 0)
        else:
            self.best = best._replace(validations_since=best.validations_since + 1)
