"""The training loop of a run: when to log, validate, write a checkpoint, and stop.

Training is Keras's `fit` of a `Trainer`, whose `train_step` has the steps. `Rhythm` has everything
between them. An epoch is an interval of `training.checkpoint_steps` steps. Intervals end at
multiples of it, even after an interruption, so that every run is validated at the same steps.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.console import warn
from keras_transformer.data.batches import Batches
from keras_transformer.errors import DivergedError
from keras_transformer.runs.checkpoints import Checkpoint, DamagedCheckpointError
from keras_transformer.runs.machine import stop_signals
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training.compilation import compile_ahead
from keras_transformer.training.devices import explain
from keras_transformer.training.progress import Progress
from keras_transformer.training.trainer import Trainer


class StopRequest:
    """A request to end training: by a signal, or after `max_minutes`.

    The time is measured, and signals are handled, inside a `with` block. A second Ctrl-C stops
    immediately.
    """

    def __init__(self, max_minutes: float | None = None):
        self._max_minutes = max_minutes
        self.interrupted = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
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

    def __bool__(self) -> bool:
        minutes = (time.monotonic() - self._start) / 60
        is_late = self._max_minutes is not None and minutes >= self._max_minutes
        return self.interrupted or is_late


class EarlyStopping:
    """Counts the validations in a row without a better `best_metric`.

    Its state is part of the metrics of every checkpoint: `best_val_loss` or `best_val_bleu`,
    `best_step` and `validations_since_best`. `metrics` are those of the checkpoint to resume from.
    """

    def __init__(self, config: TrainingConfig, metrics: Mapping[str, float]):
        self._patience = config.early_stopping
        self.metric = f"val_{config.best_metric}"
        names = (f"best_{self.metric}", "best_step", "validations_since_best")
        has_state = names[0] in metrics
        self.state = {name: metrics[name] for name in names} if has_state else {}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compares a validation with the best one before."""
        if self.metric not in metrics:
            return
        value, by_loss = metrics[self.metric], self.metric == "val_loss"
        best_name = f"best_{self.metric}"
        best = self.state.get(best_name, math.inf if by_loss else -math.inf)
        if value < best if by_loss else value > best:
            self.state = {best_name: value, "best_step": float(step), "validations_since_best": 0.0}
        else:
            count = self.state.get("validations_since_best", 0.0) + 1
            self.state = {best_name: best, "best_step": float(step), **self.state}
            self.state["validations_since_best"] = count

    @property
    def stopped(self) -> bool:
        """True after `early_stopping` validations in a row without a better one."""
        return 0 < self._patience <= self.state.get("validations_since_best", 0.0)

    def reason(self) -> str:
        """Returns why training has ended, or "" if it has not."""
        if not self.stopped:
            return ""
        best, step, count = self.state.values()
        return (
            f"no better {self.metric} in the last {count:.0f} validations; best {best:.4g} at step "
            f"{step:.0f}"
        )


def ends_interval(step: int, config: TrainingConfig) -> bool:
    """Returns whether a run is validated after `step`."""
    return step % config.checkpoint_steps == 0 or step >= config.max_steps


def bleu_is_due(step: int, config: TrainingConfig) -> bool:
    """Returns whether `step` is the first end of an interval after a multiple of `bleu_steps`."""
    if not config.bleu_steps or not ends_interval(step, config):
        return False
    interval_before = (step - 1) // config.checkpoint_steps * config.checkpoint_steps
    return step // config.bleu_steps > interval_before // config.bleu_steps


def is_finished(step: int, config: TrainingConfig, early_stopping: EarlyStopping) -> bool:
    """True if a run needs no more steps. Everything that ends training asks this function."""
    return step >= config.max_steps or early_stopping.stopped


class Rhythm(keras.callbacks.Callback):
    """Logs, validates, writes checkpoints and ends training.

    It acts at the ends of steps, before other callbacks see the end of an epoch. So its position
    among them does not matter, and they find the validation in the logs of an epoch. Training
    always ends with a checkpoint. In the middle of an interval this is without a validation, so
    that validations and early stopping do not depend on interruptions.

    Args:
        bleu: returns the BLEU of the validation set; None if `bleu_steps` is 0.
    """

    def __init__(
        self,
        run: RunDirectory,
        first_step: int,
        metrics: Mapping[str, float],
        stop: StopRequest,
        early_stopping: EarlyStopping,
        validate: Callable[[], Mapping[str, float]],
        bleu: Callable[[], float] | None = None,
        is_chief: bool = True,
    ):
        super().__init__()
        self.run = run
        self.stop = stop
        self.is_chief = is_chief
        self.metrics = dict(metrics)  # of the newest checkpoint
        self._config = run.config.training
        self._early_stopping = early_stopping
        self._validation, self._bleu = validate, bleu
        self.progress = Progress(
            first_step, self._config, run.append_metrics, run.tensorboard_directory, is_chief
        )
        self._before = metrics
        self._start = time.monotonic()
        self._step_of_checkpoint = first_step
        self._previous_logs: Mapping[str, Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.progress.restart_clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.progress.add(logs)
        step = self.progress.step
        if step % self._config.log_steps == 0 or ends_interval(step, self._config):
            self.progress.report()
        if ends_interval(step, self._config):
            self._validate(logs)
            self._write_checkpoint(logs)
        finished = is_finished(step, self._config, self._early_stopping)
        if self._is_stop_requested(logs) or finished:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.progress.step > self._step_of_checkpoint:  # stopped inside an interval
            self.progress.report()
            self._write_checkpoint(dict(logs or {}))

    def _is_stop_requested(self, logs: Mapping[str, Any]) -> bool:
        stop, flag = bool(self.stop), self.model.stop_flag
        if flag is None:
            return stop
        # All workers stop after the same step: two steps after the first one was asked to.
        if stop:
            flag.assign(1)
        # Read the logs of the previous step, because a GPU may not have finished this one.
        before, self._previous_logs = self._previous_logs, logs
        return before is not None and float(before["stop"]) > 0

    def _validate(self, logs: dict[str, Any]) -> None:
        """Adds the metrics of a validation to the logs."""
        step = self.progress.step
        metrics = {f"val_{name}": value for name, value in self._validation().items()}
        if self._bleu is not None and bleu_is_due(step, self._config):
            metrics["val_bleu"] = self._bleu()
        self.progress.report_validation(metrics)
        self._early_stopping.add(step, metrics)
        logs |= metrics

    def _write_checkpoint(self, logs: dict[str, Any]) -> None:
        """Writes a checkpoint, with the cost of the whole run so far."""
        model, step, before, progress = self.model, self.progress.step, self._before, self.progress
        self._step_of_checkpoint = step
        logs |= self._early_stopping.state
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        costs = {
            "training_seconds": time.monotonic() - self._start,
            "step_seconds": progress.seconds,
            "tokens": progress.tokens,
        }
        costs = {name: cost + before.get(name, 0.0) for name, cost in costs.items()}
        self.metrics = {
            **{name: float(value) for name, value in logs.items()},
            **costs,
            "peak_memory_mb": max(peak_mb, before.get("peak_memory_mb", 0.0)),
        }
        if not self.is_chief:
            return
        # The metrics come before the checkpoint: a resumed run drops metrics that come after it.
        self.run.append_metrics({"step": step, **costs})
        if not math.isfinite(self.metrics.get("val_loss", 0.0)):
            warn(f"Step {step}: no checkpoint, because the validation loss is not finite.")
            return
        self.run.save_checkpoint(
            step,
            arrays(model.transformer.weights_by_path()),
            arrays(model.state_by_path()),
            self.metrics,
            ema=arrays(model.ema_by_path()) or None,
        )


class _CallbackList(keras.callbacks.CallbackList):
    """A list of callbacks that passes on the logs of a step as tensors.

    Keras would convert them to numbers after every step, and a GPU would wait for Python. Steps
    that were passed over have no logs.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks if logs else ():
            callback.on_train_batch_end(batch, logs)


def fit(
    trainer: Trainer,
    batches: Batches,
    rhythm: Rhythm,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, float]:
    """Trains until the run is finished or stopped; returns the metrics of its last checkpoint."""
    step, config = trainer.step, trainer.config
    epoch, trainer.steps_to_pass = divmod(step, config.checkpoint_steps)
    epochs = math.ceil(config.max_steps / config.checkpoint_steps)
    with _explained_errors(rhythm), rhythm.stop, rhythm.progress:
        compile_ahead(trainer, batches, lambda: rhythm.stop.interrupted, rhythm.is_chief)
        trainer.fit(
            batches.distributed(trainer.distribute_strategy, step),
            initial_epoch=epoch,
            epochs=epochs,
            steps_per_epoch=config.checkpoint_steps,
            callbacks=_CallbackList(
                [rhythm, *callbacks], add_history=True, model=trainer, epochs=epochs,
                steps=config.checkpoint_steps, verbose=0,
            ),
            shuffle=False,
            verbose=0,
        )  # fmt: skip
    return rhythm.metrics


@contextlib.contextmanager
def _explained_errors(rhythm: Rhythm) -> Iterator[None]:
    """Tells the user what to do about errors of training."""
    run = rhythm.run
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        if rhythm.stop.interrupted:  # another worker stopped before this one
            raise KeyboardInterrupt from None
        raise
    except tf.errors.OpError as error:
        if (explained := explain(error, run.config.training)) is None:
            raise
        raise explained from error
    except DivergedError as error:
        if not rhythm.is_chief:
            raise
        good = [checkpoint.path for checkpoint in run.checkpoints() if _is_good(run, checkpoint)]
        restart = "Start a new run"
        if good:
            restart += f" from the last good checkpoint ({good[-1]}) with --init_from={run.path}@"
            restart += good[-1].name
        raise DivergedError(
            f"{error} {restart}, and lower training.learning_rate or set training.clip_norm."
        ) from None


def _is_good(run: RunDirectory, checkpoint: Checkpoint) -> bool:
    try:
        return math.isfinite(run.read_metrics(checkpoint).get("val_loss", 0.0))
    except DamagedCheckpointError:
        return False


def arrays(variables: Mapping[str, keras.Variable]) -> dict[str, npt.NDArray[Any]]:
    """Returns the values of variables."""
    return {path: keras.ops.convert_to_numpy(variable) for path, variable in variables.items()}
