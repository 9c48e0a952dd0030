"""What ends training, and what is kept of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import keras


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
