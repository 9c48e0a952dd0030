"""Runs a real `fit` of a tiny model in intervals, to test callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.config import TrainingConfig
from keras_transformer.training.callbacks import CallbackList, Validation
from keras_transformer.training.trainer import Trainer
from tests.training.tiny_model import batches, distributed


class Recorded(keras.callbacks.Callback):
    """The steps at which intervals end, and their logs."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[tuple[int, dict[str, float]]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.saved.append((self.model.step, dict(logs)))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.saved]


class At(keras.callbacks.Callback):
    """Calls a function at the end of a step."""

    def __init__(self, step: int, action: Callable[[], None]):
        super().__init__()
        self.step, self.action = step, action

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.step == self.step:
            self.action()


def kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def fit(
    trainer: Trainer,
    *callbacks: keras.callbacks.Callback,
    max_steps: int = 12,
    intervals: int = 4,
) -> Recorded:
    """At most 12 steps in intervals of 3, validated after each and after `max_steps`."""
    strategy, interval = trainer.distribute_strategy, 3
    config = TrainingConfig(checkpoint_steps=interval, max_steps=max_steps)
    recorded = Recorded()
    together = [
        Validation(distributed(strategy, batches(2)), config), *callbacks, recorded,
    ]  # fmt: skip
    trainer.fit(
        distributed(strategy, batches(interval * intervals)),
        epochs=intervals, steps_per_epoch=interval, shuffle=False, verbose=0,
        callbacks=CallbackList(
            together, add_history=True, model=trainer, epochs=intervals, steps=interval
        ),
    )  # fmt: skip
    return recorded


def back_to_step_0(trainer: Trainer) -> None:
    """Lets tests share a trainer, because tracing its step takes seconds."""
    for path, variable in trainer.state_by_path().items():
        if path.endswith(("iteration", "/step", "/skipped")):
            variable.assign(0)
