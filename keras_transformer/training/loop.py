"""A trainer and its run directory: what it begins with, its intervals, its checkpoints."""

from __future__ import annotations

import logging
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.data.batching.batches import Batches
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.runs.checkpoints import Arrays, Damaged
from keras_transformer.runs.run_directory import Checkpoint, RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import CallbackList, Checkpoints, StopTraining
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.progress import NotFiniteError, Progress
from keras_transformer.training.trainer import Trainer

log = logging.getLogger(__name__)


def begin_from(init_from: str, trainer: Trainer, tokenizer: Tokenizer) -> None:
    """Puts the weights of another run into a new trainer.

    Args:
        init_from: a run directory, for its selected weights, or `RUN:NAME` for others.
        trainer: a trainer of no steps yet.
        tokenizer: of the data that it will be trained on.

    Raises:
        InputError: where there are no such weights, of another vocabulary or of
            another model.
    """
    path, name = init_from, None
    if not RunDirectory.is_run(path) and ":" in path:
        path, _, name = path.rpartition(":")
    other = RunDirectory(path, trainer.transformer.run_config)
    if other.tokenizer().fingerprint != tokenizer.fingerprint:
        raise InputError(
            f"{path} has another vocabulary than the data directory, so training cannot begin "
            f"from it; expected data prepared with --vocab_from={other.path / 'tokenizer'}"
        )
    weights = other.named_weights(name or other.selected)
    try:
        trainer.transformer.assign_weights(weights)
    except InputError as error:
        raise InputError(f"training cannot begin from {init_from}: {error}") from None
    for weight, average in trainer.ema_by_path().items():
        average.assign(weights[weight])


def restore(run: RunDirectory, trainer: Trainer) -> dict[str, float]:
    """Puts the newest checkpoint into the trainer, and returns its metrics; {} without one.

    Raises:
        InputError: where it does not fit the trainer, and as `RunDirectory.restore`.
    """
    restored = run.restore()
    if restored is None:
        return {}
    trainer.transformer.assign_weights(restored.weights)
    for own, saved in (
        (trainer.state_by_path(), restored.state),
        (trainer.ema_by_path(), restored.ema or {}),
    ):
        if own.keys() != saved.keys():
            raise InputError(
                f"{restored.checkpoint.path} was written in another precision or by another "
                "optimizer; expected the machine and the flags that the run began with"
            )
        for path, variable in own.items():
            variable.assign(saved[path])
    return dict(restored.metrics)


def begin_alike(
    cluster: Cluster, trainer: Trainer, begin: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Calls `begin` on the chief, and gives every worker's trainer the values of the chief's.

    Returns:
        What `begin` returned.
    """
    groups = (trainer.transformer.weights_by_path(), trainer.state_by_path(), trainer.ema_by_path())
    metrics, *values = cluster.from_chief(lambda: [begin(), *map(arrays, groups)])
    if not cluster.is_chief:
        for variables, saved in zip(groups, values, strict=True):
            for path, variable in variables.items():
                variable.assign(saved[path])
    return dict(metrics)


def arrays(variables: Mapping[str, keras.Variable]) -> Arrays:
    """Returns the values of variables."""
    return {path: keras.ops.convert_to_numpy(variable) for path, variable in variables.items()}


def fit(
    trainer: Trainer,
    run: RunDirectory,
    batches: Batches,
    valid_batches: Batches,
    metrics: Mapping[str, float],
    stop: StopTraining,
    validation_callbacks: Sequence[keras.callbacks.Callback] = (),
    is_chief: bool = True,
) -> dict[str, float]:
    """Trains from the trainer's step on until something stops it.

    Args:
        trainer: the trainer.
        run: gets metrics and checkpoints.
        batches: to train on.
        valid_batches: to validate on.
        metrics: of the checkpoint that the trainer continues from.
        stop: ends training at a step.
        validation_callbacks: callbacks that add to the logs of a validation, or read them.
        is_chief: whether this worker writes checkpoints and shows progress.

    Returns:
        The metrics of the newest checkpoint.

    Raises:
        InputError: where too many gradients were not finite, a batch needs more memory than
            there is, or no checkpoint could be written.
    """
    config = run.config.training
    progress = Progress(
        trainer.step,
        config,
        run.append_metrics,
        run.tensorboard_directory,
        len(batches.shapes) * trainer.local_replicas,
        is_shown=is_chief,
    )
    writer = _CheckpointWriter(trainer, run, progress, metrics, is_chief)
    callbacks = [*validation_callbacks, stop, progress, Checkpoints(writer)]
    strategy = trainer.distribute_strategy
    validation = valid_batches.distributed(strategy, 0, valid_batches.steps_per_epoch)
    try:
        with stop, progress:
            for length, count in _intervals(trainer.step, config):
                trainer.fit(
                    batches.distributed(strategy, trainer.step),
                    epochs=count,
                    steps_per_epoch=length,
                    validation_data=validation,
                    callbacks=CallbackList(
                        callbacks, add_history=True, model=trainer, epochs=count, steps=length
                    ),
                    shuffle=False,
                    verbose=0,
                )
                if trainer.stop_training:
                    break
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        if stop.interrupted:  # all were told to end, and another worker was first
            raise KeyboardInterrupt from None
        raise
    except tf.errors.ResourceExhaustedError as error:
        reason = error.message.strip().splitlines()[0]
        raise InputError(
            f"a batch of {config.batch_tokens:,} tokens in {config.accumulate_steps} parts needs "
            f"more memory than there is ({reason}); expected a larger training.accumulate_steps, "
            "or fewer training.batch_tokens"
        ) from error
    except NotFiniteError as error:
        if not is_chief:
            raise DivergedError(str(error)) from None
        good = [checkpoint.path for checkpoint in run.checkpoints() if _is_good(run, checkpoint)]
        last = "there is no good checkpoint"
        if good:
            begin = f"--init_from={run.path}:{good[-1].name}"
            last = f"the last good checkpoint is {good[-1]}, which a new run takes by {begin}"
        raise DivergedError(
            f"{error}; {last}; expected a lower training.learning_rate, or a training.clip_norm"
        ) from None
    return writer.metrics


def _is_good(run: RunDirectory, checkpoint: Checkpoint) -> bool:
    try:
        return math.isfinite(run.read_metrics(checkpoint).get("val_loss", 0.0))
    except Damaged:
        return False


def _intervals(step: int, config: TrainingConfig) -> list[tuple[int, int]]:
    """Returns lengths and counts of the intervals that follow `step`.

    They end at multiples of `checkpoint_steps` wherever a run was stopped, and so
    where one that is never stopped is validated.
    """
    length = config.checkpoint_steps
    begun = step % length
    whole = math.ceil(config.max_steps / length) - math.ceil(step / length)
    return [(length - begun, 1)] * bool(begun) + [(length, whole)] * bool(whole)


class _CheckpointWriter:
    """Writes checkpoints, with what the whole run has cost, however often it was continued."""

    def __init__(
        self,
        trainer: Trainer,
        run: RunDirectory,
        progress: Progress,
        before: Mapping[str, float],
        is_chief: bool,
    ):
        self._trainer = trainer
        self._run = run
        self._progress = progress
        self._before = before
        self._is_chief = is_chief
        self._start = time.monotonic()
        self.metrics = dict(before)  # of the newest checkpoint

    def __call__(self, step: int, logs: Mapping[str, float]) -> None:
        before, progress = self._before, self._progress
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds = time.monotonic() - self._start
        self.metrics = {
            **logs,
            "training_seconds": seconds + before.get("training_seconds", 0.0),
            "step_seconds": progress.seconds + before.get("step_seconds", 0.0),
            "tokens": progress.tokens + before.get("tokens", 0.0),
            "peak_memory_mb": max(peak_mb, before.get("peak_memory_mb", 0.0)),
        }
        if not self._is_chief:
            return
        # Before the checkpoint: what a kill between the two leaves here is dropped again.
        costs = ("training_seconds", "step_seconds", "tokens")
        self._run.append_metrics({"step": step, **{name: self.metrics[name] for name in costs}})
        if not math.isfinite(logs.get("val_loss", 0.0)):
            log.warning("no checkpoint of step %d, whose validation loss is not finite", step)
            return
        self._run.save_checkpoint(
            step,
            arrays(self._trainer.transformer.weights_by_path()),
            arrays(self._trainer.state_by_path()),
            self.metrics,
            ema=arrays(self._trainer.ema_by_path()) or None,
        )
