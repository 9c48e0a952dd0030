"""Callbacks that end training, validate and stop early.

A run that is stopped in the middle of an interval writes a checkpoint there, without a validation.
So validations, and the decisions of `EarlyStopping`, do not depend on interruptions.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import keras

from keras_transformer.config import TrainingConfig
from keras_transformer.runs.machine import stop_signals


class CallbackList(keras.callbacks.CallbackList):
    """A list of callbacks that passes on the logs of a step as tensors.

    Keras would convert them to numbers after every step, and a GPU would wait for Python.

    Example:
    >>> CallbackList([keras.callbacks.History()]).callbacks
    [<keras.src.callbacks.history.History ...>]
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)


class StopTraining(keras.callbacks.Callback):
    """Ends training between two steps: after `max_steps`, after `max_minutes`, or at a signal.

    Training always ends with a checkpoint, but without the validation of the current interval. A
    second Ctrl-C stops immediately. The time is measured, and signals are handled, inside a `with`
    block. If the training step has a `stop_flag`, all workers stop after the same step: two
    steps after the first one was asked to stop.

    Example:
    >>> stop = StopTraining(first_step=0, max_steps=1000, max_minutes=60)
    >>> with stop:  # Ctrl-C in here ends `fit` after the current step
    ...     stop.interrupted, stop.out_of_time
    (False, False)
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
        for number in stop_signals():
            self._handlers[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not set by Python
        self._handlers.clear()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return  # a cluster may send SIGTERM repeatedly, and a terminal SIGHUP after Ctrl-C
        self.interrupted = True
        with contextlib.suppress(OSError):  # after SIGHUP the terminal may be gone
            # print must not be used here, because the signal may have interrupted a print.
            os.write(2, b"\nstopping after this step, with a checkpoint ...\n")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        elapsed = (time.monotonic() - self._start) / 60
        self.out_of_time = self.max_minutes is not None and elapsed >= self.max_minutes
        stop = self.out_of_time or self.interrupted
        stop_flag = self.model.training_step.stop_flag
        if stop_flag is not None:
            if stop:
                stop_flag.assign(1)
            # Read the logs of the previous step, because a GPU may not have finished this one.
            before, self._previous_logs = self._previous_logs, logs
            stop = before is not None and float(before["stop"]) > 0
        if stop or self._step >= self.max_steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # The signal may have come during the validation.
        if self.interrupted and self.model.training_step.stop_flag is None:
            self.model.stop_training = True


def ends_interval(step: int, config: TrainingConfig) -> bool:
    """Returns whether a run is validated after `step`, with the intervals of `config`.

    Example:
    >>> ends_interval(2000, TrainingConfig(checkpoint_steps=1000))
    True
    """
    return step % config.checkpoint_steps == 0 or step >= config.max_steps


def bleu_is_due(step: int, config: TrainingConfig) -> bool:
    """Returns whether `step` is the first end of an interval after a multiple of `bleu_steps`.

    Example:
    >>> config = TrainingConfig(checkpoint_steps=1000, bleu_steps=1500)
    >>> [step for step in range(1, 5001) if bleu_is_due(step, config)]
    [2000, 3000, 5000]
    """
    if not config.bleu_steps or not ends_interval(step, config):
        return False
    interval_before = (step - 1) // config.checkpoint_steps * config.checkpoint_steps
    return step // config.bleu_steps > interval_before // config.bleu_steps


class Validation(keras.callbacks.Callback):
    """Adds the metrics of a validation, `val_*`, to the logs of an interval.

    Args:
        data: the validation set, for `Trainer.evaluate`.
        config: configuration of the training.
        bleu: returns the BLEU of the validation set. It is called every `bleu_steps` steps. None if
            `bleu_steps` is 0.

    Example:
    >>> validation = Validation(None, TrainingConfig(bleu_steps=1000), bleu=lambda: 27.3)
    >>> isinstance(validation, keras.callbacks.Callback)
    True
    """

    def __init__(self, data: Any, config: TrainingConfig, bleu: Callable[[], float] | None = None):
        super().__init__()
        self._data = data
        self._config = config
        self._bleu = bleu

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        step = self.model.step
        if ends_interval(step, self._config):
            result = self.model.evaluate(self._data)
            logs.update({f"val_{name}": value for name, value in result.items()})
        if self._bleu is not None and bleu_is_due(step, self._config):
            logs["val_bleu"] = self._bleu()


class _Best(NamedTuple):
    """The best validation so far, and the number of validations since."""

    value: float
    step: int
    validations_since: int


class EarlyStopping(keras.callbacks.Callback):
    """Ends training after `early_stopping` validations in a row without a better `best_metric`.

    Its state is part of the logs of every interval and of the metrics of every checkpoint:
    `best_val_loss` or `best_val_bleu`, `best_step` and `validations_since_best`.

    Args:
        config: configuration of the training.
        metrics: metrics of the checkpoint that training resumes from; {} for a new run.

    Example:
    >>> metrics = {"best_val_loss": 2.0, "best_step": 3000.0, "validations_since_best": 5.0}
    >>> early_stopping = EarlyStopping(TrainingConfig(early_stopping=5), metrics)
    >>> early_stopping.stopped, early_stopping.reason()
    (True, 'no better val_loss in the last 5 validations; best 2 at step 3000')
    """

    def __init__(self, config: TrainingConfig, metrics: Mapping[str, float]):
        super().__init__()
        self._config = config
        self.metric = f"val_{config.best_metric}"
        self.best: _Best | None = None
        if f"best_{self.metric}" in metrics:
            self.best = _Best(
                metrics[f"best_{self.metric}"],
                int(metrics["best_step"]),
                int(metrics["validations_since_best"]),
            )

    @property
    def stopped(self) -> bool:
        """True after too many validations without a better one."""
        patience = self._config.early_stopping
        return self.best is not None and 0 < patience <= self.best.validations_since

    def reason(self) -> str:
        """Returns why training has ended."""
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
        best = self.best or _Best(worst, step, 0)
        better = value < best.value if self.metric == "val_loss" else value > best.value
        if better:
            self.best = _Best(value, step, 0)
        else:
            self.best = best._replace(validations_since=best.validations_since + 1)
