"""Callbacks of training: its end, its checkpoints, and what follows from a validation.

A run that was stopped in the middle of an interval is validated there too, to
have a checkpoint. `BleuValidation` and `EarlyStopping` do not count such a validation: a run
decides the same, however often it was stopped and continued.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import keras

from keras_transformer.config import TrainingConfig


class CallbackList(keras.callbacks.CallbackList):
    """Callbacks whose steps get their logs unread.

    Keras would turn them into numbers after every step, and a GPU would wait for Python.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)


class StopTraining(keras.callbacks.Callback):
    """Ends training after `max_steps`, after `max_minutes`, or at a signal, between two steps.

    What was begun still ends with a checkpoint, so nothing is lost, but without the
    validation that would come later. A second Ctrl-C stops at once. Time counts, and signals are
    caught, inside of a `with` block. Where the trainer has a `stop_flag`, all
    workers end after the same step, two after that of the first who wants to.
    """

    def __init__(self, first_step: int, max_steps: int, max_minutes: float | None = None):
        super().__init__()
        self._step = first_step
        self.max_steps = max_steps
        self.max_minutes = max_minutes
        self.interrupted = False
        self.out_of_time = False
        self._previous_logs: Mapping[str, Any] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopTraining:
        self._start = time.monotonic()
        # Only there can signals be handled.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as Ctrl-C of a shell's job behind
                    self._handlers[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: one not of Python
        self._handlers.clear()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return  # a cluster may ask again and again
        self.interrupted = True
        # Not by print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping after this step, with a checkpoint ...\n")

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.skip_validation = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        elapsed = (time.monotonic() - self._start) / 60
        self.out_of_time = self.max_minutes is not None and elapsed >= self.max_minutes
        stop = self.out_of_time or self.interrupted
        if self.model.stop_flag is not None:
            if stop:
                self.model.stop_flag.assign(1)
            # Read a step late: this step's number may still be on its way through a GPU.
            before, self._previous_logs = self._previous_logs, logs
            stop = before is not None and float(before["stop"]) > 0
        finished = self._step >= self.max_steps
        if finished or stop:
            self.model.stop_training = True
            is_due = finished or self._step % self.model.config.checkpoint_steps == 0
            self.model.skip_validation = not is_due

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.interrupted and self.model.stop_flag is None:  # while it was validated
            self.model.stop_training = True


class Checkpoints(keras.callbacks.Callback):
    """Calls `save(step, metrics)` at the end of every interval, after its validation.

    It stands behind all callbacks that add to the logs of an interval.
    """

    def __init__(self, save: Callable[[int, Mapping[str, float]], None]):
        super().__init__()
        self._save = save

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        self._save(self.model.step, metrics)


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
