"""The training loop: initial weights, intervals and checkpoints of a run."""

from __future__ import annotations

import contextlib
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.console import say, warn
from keras_transformer.data.batches import Batches
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.models.transformer import is_excluded
from keras_transformer.runs.checkpoints import Arrays, Checkpoint, Damaged
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.tf_import import is_disk_full, op_error_reason, program_cache_error
from keras_transformer.training.callbacks import (
    CallbackList,
    EarlyStopping,
    StopTraining,
    Validation,
)
from keras_transformer.training.compilation import background_compilation
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.progress import NotFiniteError, Progress
from keras_transformer.training.trainer import Trainer


def init_from_run(init_from: str, trainer: Trainer, tokenizer: Tokenizer) -> None:
    """Copies the weights of another run to a new trainer.

    If the vocabulary of the data has more symbols than that of the run, their weights start from
    the mean of the others.

    Args:
        init_from: a run directory, for its selected weights, or `RUN@NAME` for others.
        trainer: a trainer before its first step.
        tokenizer: tokenizer of the training data.

    Raises:
        InputError: if the weights do not exist, or have another vocabulary or shape.

    Example:
    >>> from keras_transformer.models import Transformer
    >>> run = RunDirectory("build/run")
    >>> trainer = Trainer(Transformer(run.config.model), run.config.training)
    >>> init_from_run("build/run@step-00000100", trainer, run.tokenizer())
    """
    path, name = RunDirectory.split_weights(init_from)
    other = RunDirectory(path, trainer.transformer.run_config)
    old = other.tokenizer().vocabulary
    if not tokenizer.vocabulary.extends(old):
        raise InputError(
            f"{path} has a different vocabulary from the data directory, so training cannot start "
            f"from it. Prepare the data with --vocab_from={other.path / 'tokenizer'}."
        )
    weights = other.named_weights(name or other.selected)
    if tokenizer.fingerprint != old.fingerprint:
        sizes = {
            (old.source_vocab_size, tokenizer.source_vocab_size),
            (old.target_vocab_size, tokenizer.target_vocab_size),
        }
        for weight, variable in trainer.transformer.weights_by_path().items():
            if weight in weights:
                weights[weight] = _grown(weights[weight], tuple(variable.shape), sizes)
    try:
        trainer.transformer.assign_weights(weights)
    except InputError as error:
        raise InputError(f"Training cannot start from {init_from}: {error}") from None
    for weight, average in trainer.ema_by_path().items():
        average.assign(weights[weight])


def _grown(
    array: npt.NDArray[Any], shape: Sequence[int], sizes: set[tuple[int, int]]
) -> npt.NDArray[Any]:
    """Enlarges a weight for more tokens. The new rows are the mean of the old ones.

    An output bias that excludes a token has no part in the mean.

    Args:
        array: a weight.
        shape: shape of the weight in the new model.
        sizes: old and new sizes of the vocabularies.
    """
    for axis, (size, new) in enumerate(zip(array.shape, shape, strict=False)):
        if size != new and (size, new) in sizes:
            used = array[~is_excluded(array)] if array.ndim == 1 else array
            mean = used.mean(axis, keepdims=True, dtype=np.float64).astype(array.dtype)
            array = np.concatenate([array, np.repeat(mean, new - size, axis)], axis)
    return array


def restore(run: RunDirectory, trainer: Trainer) -> dict[str, float]:
    """Loads the newest checkpoint into the trainer.

    Returns:
        The metrics of the checkpoint; {} without a checkpoint.

    Raises:
        InputError: if no checkpoint can be read, or the newest does not fit the trainer.

    Example:
    >>> from keras_transformer.models import Transformer
    >>> config = RunDirectory("build/run").config
    >>> trainer = Trainer(Transformer(config.model), config.training)
    >>> empty = RunDirectory.create("empty", config, RunDirectory("build/run").tokenizer(), "data")
    >>> restore(empty, trainer)
    {}
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
                f"{restored.checkpoint.path} was written with another precision or "
                "optimizer. Resume with the flags of the run, on the same kind of machine."
            )
        for path, variable in own.items():
            variable.assign(saved[path])
    return dict(restored.metrics)


def initialize_workers(
    cluster: Cluster, trainer: Trainer, begin: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Calls `begin` on the chief, and copies the state of its trainer to all workers.

    Args:
        cluster: the workers.
        trainer: trainer of this worker.
        begin: restores or initializes the chief's trainer, and returns metrics.

    Returns:
        The result of `begin`.

    Example:
    >>> from keras_transformer.models import Transformer
    >>> config = RunDirectory("build/run").config
    >>> trainer = Trainer(Transformer(config.model), config.training)
    >>> initialize_workers(Cluster(), trainer, lambda: {"val_loss": 2.0})
    {'val_loss': 2.0}
    """
    metrics = dict(cluster.from_chief(begin))
    if cluster.num_workers > 1:
        for group in (
            trainer.transformer.weights_by_path(),
            trainer.state_by_path(),
            trainer.ema_by_path(),
        ):
            for variable in group.values():
                variable.assign(cluster.broadcast(keras.ops.convert_to_numpy(variable)))
    return metrics


def arrays(variables: Mapping[str, keras.Variable]) -> Arrays:
    """Returns the values of variables.

    Example:
    >>> arrays({"w": keras.Variable(2.0)})
    {'w': array(2., dtype=float32)}
    """
    return {path: keras.ops.convert_to_numpy(variable) for path, variable in variables.items()}


class TrainingCallbacks:
    """The callbacks of a run, in the order in which they run at the end of an interval.

    Args:
        validation: adds `val_*` to the logs.
        early_stopping: ends training without progress.
        stop: ends training at a limit or a signal.
        *others: callbacks of the user.

    Example:
    >>> config = TrainingConfig()
    >>> callbacks = TrainingCallbacks(
    ...     Validation(None, config), EarlyStopping(config, {}), StopTraining(0, max_steps=100)
    ... )
    >>> callbacks.stop.max_steps
    100
    """

    def __init__(
        self,
        validation: Validation,
        early_stopping: EarlyStopping,
        stop: StopTraining,
        *others: keras.callbacks.Callback,
    ):
        self.stop = stop
        self.in_order = [validation, early_stopping, stop, *others]


def fit(
    trainer: Trainer,
    run: RunDirectory,
    batches: Batches,
    metrics: Mapping[str, float],
    callbacks: TrainingCallbacks,
    is_chief: bool,
) -> dict[str, float]:
    """Trains from the current step until a callback stops the training.

    Args:
        trainer: the trainer.
        run: run directory, which gets metrics and checkpoints.
        batches: training batches.
        metrics: metrics of the checkpoint that the trainer resumed from.
        callbacks: callbacks that validate and end training.
        is_chief: whether this worker writes checkpoints and shows progress.

    Returns:
        The metrics of the newest checkpoint.

    Raises:
        InputError: if too many gradients were not finite, if a batch needs too much memory, if a
            checkpoint cannot be written, or if XLA's programs cannot be read or written.

    Example:
    >>> from keras_transformer.models import Transformer
    >>> from keras_transformer.training.data import TrainingData
    >>> data, tokenizer = TrainingData.open("build/data"), RunDirectory("build/run").tokenizer()
    >>> config = RunDirectory("build/run").config.replace(
    ...     training__max_steps=1, training__checkpoint_steps=1, training__log_steps=1
    ... )
    >>> run = RunDirectory.create("new", config, tokenizer, "data")
    >>> batches, valid = data.batches(config.training)
    >>> trainer = Trainer(Transformer(config.model), config.training)
    >>> stop = StopTraining(0, max_steps=1)
    >>> callbacks = TrainingCallbacks(
    ...     Validation(valid.dataset(num_steps=1), config.training),
    ...     EarlyStopping(config.training, {}),
    ...     stop,
    ... )
    >>> with stop:
    ...     metrics = fit(trainer, run, batches, {}, callbacks, is_chief=True)
    >>> trainer.step, "val_loss" in metrics
    (1, True)
    """
    config = run.config.training
    step = trainer.step
    compilation = background_compilation(
        trainer.training_step, batches, step, config, say if is_chief else lambda line: None
    )
    trainer.compilation = compilation
    progress = Progress(
        step,
        config,
        run.append_metrics,
        run.tensorboard_directory,
        compilation.status if compilation else str,
        is_shown=is_chief,
    )
    writer = _CheckpointWriter(run, progress, metrics, is_chief)
    stop = callbacks.stop
    try:
        with stop, progress, compilation or contextlib.nullcontext():
            for length, count in _intervals(step, config):
                trainer.fit(
                    batches.distributed(trainer.distribute_strategy, step),
                    epochs=count,
                    steps_per_epoch=length,
                    callbacks=CallbackList(
                        [*callbacks.in_order, progress, writer],
                        add_history=True,
                        model=trainer,
                        epochs=count,
                        steps=length,
                        verbose=0,
                    ),  # fmt: skip
                    shuffle=False,
                    verbose=0,
                )
                step += length * count
                if trainer.stop_training:
                    break
                if trainer.step < step:
                    raise RuntimeError(
                        f"Training ended at step {trainer.step}, before step {step}, although "
                        "nothing stopped it."
                    )
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        if stop.interrupted:  # another worker stopped before this one
            raise KeyboardInterrupt from None
        raise
    except tf.errors.OpError as error:
        if (cache_error := program_cache_error(error.message)) is not None:
            raise cache_error from error
        if not isinstance(error, tf.errors.ResourceExhaustedError):
            raise
        reason = op_error_reason(error.message)
        if is_disk_full(error.message):
            raise InputError(
                f"The disk is full ({reason}). Free some space, and run the same command again."
            ) from error
        raise InputError(
            f"A batch of {config.batch_tokens:,} tokens in {config.num_microbatches} microbatches "
            f"does not fit into memory ({reason}). Raise training.num_microbatches, or lower "
            "training.batch_tokens."
        ) from error
    except NotFiniteError as error:
        if not is_chief:
            raise DivergedError(f"{error}.") from None
        good = [checkpoint.path for checkpoint in run.checkpoints() if _is_good(run, checkpoint)]
        restart = "Start a new run"
        if good:
            restart += f" from the last good checkpoint ({good[-1]}) with --init_from={run.path}@"
            restart += good[-1].name
        raise DivergedError(
            f"{error}. {restart}, and lower training.learning_rate or set training.clip_norm."
        ) from None
    return writer.metrics


def _is_good(run: RunDirectory, checkpoint: Checkpoint) -> bool:
    try:
        return math.isfinite(run.read_metrics(checkpoint).get("val_loss", 0.0))
    except Damaged:
        return False


def _intervals(step: int, config: TrainingConfig) -> list[tuple[int, int]]:
    """Returns the remaining intervals: their length in steps, and how many have this length.

    Intervals end at multiples of `checkpoint_steps`, even after an interruption, so that every
    run is validated at the same steps.
    """
    length = config.checkpoint_steps
    taken = step % length
    whole = math.ceil(config.max_steps / length) - math.ceil(step / length)
    return [(length - taken, 1)] * bool(taken) + [(length, whole)] * bool(whole)


class _CheckpointWriter(keras.callbacks.Callback):
    """Writes a checkpoint at the end of every interval, with the cost of the whole run so far.

    It must come after all callbacks that add to the logs.
    """

    def __init__(
        self,
        run: RunDirectory,
        progress: Progress,
        before: Mapping[str, float],
        is_chief: bool,
    ):
        super().__init__()
        self._run = run
        self._progress = progress
        self._before = before
        self._is_chief = is_chief
        self._start = time.monotonic()
        self.metrics = dict(before)  # metrics of the newest checkpoint

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        step, before, progress = self.model.step, self._before, self._progress
        logs = {name: float(value) for name, value in (logs or {}).items()}
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
        # The metrics come before the checkpoint: a resumed run drops metrics that come after it.
        costs = ("training_seconds", "step_seconds", "tokens")
        self._run.append_metrics({"step": step, **{name: self.metrics[name] for name in costs}})
        if not math.isfinite(logs.get("val_loss", 0.0)):
            warn(f"Step {step}: no checkpoint, because the validation loss is not finite.")
            return
        self._run.save_checkpoint(
            step,
            arrays(self.model.transformer.weights_by_path()),
            arrays(self.model.state_by_path()),
            self.metrics,
            ema=arrays(self.model.ema_by_path()) or None,
        )
