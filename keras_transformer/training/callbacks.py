"""What happens beside the steps: progress, metrics, checkpoints, stopping."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import tensorflow as tf
from tqdm import tqdm


class StopTraining(keras.callbacks.Callback):
    """Ends training after `max_steps`, after `max_minutes`, or at a signal, between two steps.

    The interval that was begun still ends with validation and a checkpoint, so
    nothing is lost. A second Ctrl-C stops at once.
    """

    def __init__(self, first_step: int, max_steps: int, max_minutes: float | None = None):
        super().__init__()
        self._step = first_step
        self.max_steps = max_steps
        self.max_minutes = max_minutes
        self.interrupted = False
        self.out_of_time = False
        self._handlers: dict[int, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._start = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            return  # only there can signals be handled
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._interrupt)

    def on_train_end(self, logs: Any = None) -> None:
        self.restore_signals()

    def restore_signals(self) -> None:
        """Gives the signals back to whoever handled them before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        # Not by print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping after this step, with a checkpoint ...\n")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        elapsed = (time.monotonic() - self._start) / 60
        self.out_of_time = self.max_minutes is not None and elapsed >= self.max_minutes
        if self._step >= self.max_steps or self.out_of_time or self.interrupted:
            self.model.stop_training = True


class Progress(keras.callbacks.Callback):
    """Shows step of steps, loss, perplexity, tokens per second and time left, and logs them.

    On a terminal a bar; elsewhere a line every `log_steps` steps. Every
    `log_steps` steps, and at every validation, `write` gets the metrics, means
    over the tokens since the last time, and TensorBoard gets them too.
    """

    def __init__(
        self,
        first_step: int,
        max_steps: int,
        log_steps: int,
        write: Callable[[Mapping[str, Any]], None],
        tensorboard_directory: Path,
    ):
        super().__init__()
        self._first_step = first_step
        self._max_steps = max_steps
        self._log_steps = log_steps
        self._write = write
        self._summaries = tf.summary.create_file_writer(str(tensorboard_directory))
        self._recent: list[dict[str, Any]] = []
        self._step = first_step  # counted here: reading the optimizer's would wait for a GPU
        self.tokens = 0.0  # real target tokens trained on
        self.seconds = 0.0  # spent in steps

    def on_train_begin(self, logs: Any = None) -> None:
        self._bar = tqdm(
            total=self._max_steps,
            initial=self._first_step,
            unit="step",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._since = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        self._recent.append(logs)
        self._bar.update(1)
        # At the end of an interval too, so that validation and checkpoints do not count.
        last = batch + 1 == self.params["steps"] or self.model.stop_training
        if last or self._step % self._log_steps == 0:
            self._report()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        validation = {k: float(v) for k, v in (logs or {}).items() if k.startswith("val_")}
        if validation:
            self._record(validation)
            self._say(
                f"validation after step {self._step}: loss {validation['val_loss']:.4f}, "
                f"perplexity {validation['val_perplexity']:.2f}, "
                f"token accuracy {100 * validation['val_accuracy']:.1f} %"
            )

    def on_train_end(self, logs: Any = None) -> None:
        self._bar.close()
        self._summaries.close()

    def _report(self) -> None:
        if not self._recent:
            return
        # Read only here: reading every step would make a GPU wait for Python.
        recent = [{k: float(v) for k, v in logs.items()} for logs in self._recent]
        self._recent = []
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        tokens = sum(logs["tokens"] for logs in recent)
        self.tokens += tokens
        self.seconds += seconds

        def mean(name: str) -> float:
            return sum(logs[name] * logs["tokens"] for logs in recent) / max(tokens, 1.0)

        metrics = {
            "loss": mean("loss"),
            "perplexity": math.exp(min(mean("log_perplexity"), 700.0)),
            "gradient_norm": recent[-1]["gradient_norm"],
            "learning_rate": recent[-1]["learning_rate"],
            "tokens_per_second": tokens / seconds,
        }
        if "loss_scale" in recent[-1]:
            metrics["loss_scale"] = recent[-1]["loss_scale"]
        self._record(metrics)
        steps_left = self._max_steps - self._step
        minutes_left = steps_left * seconds / len(recent) / 60
        shown = (
            f"loss {metrics['loss']:.4f}, perplexity {metrics['perplexity']:.2f}, "
            f"{metrics['tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar.disable:
            self._say(
                f"step {self._step} of {self._max_steps}: {shown}, {minutes_left:.1f} min left"
            )
        else:
            self._bar.set_postfix_str(shown)

    def _record(self, metrics: Mapping[str, float]) -> None:
        self._write({"step": self._step, **metrics})
        with self._summaries.as_default(step=self._step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    def _say(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


class Checkpoints(keras.callbacks.Callback):
    """Calls `save(step, metrics)` at the end of every interval, after its validation."""

    def __init__(self, save: Callable[[int, Mapping[str, float]], None]):
        super().__init__()
        self._save = save

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        self._save(self.model.step, metrics)
