"""How a run starts: its configuration, run directory, weights and training state."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_transformer import presets
from keras_transformer.config import Config, RunConfig
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import is_excluded
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.data import TrainingData
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.trainer import Trainer


def first_config(
    run_dir: str | Path,
    preset: str | RunConfig | None,
    config_type: type[RunConfig],
    init_from: str | None,
) -> RunConfig:
    """Returns the configuration that the settings of the user change."""
    if preset is None and RunDirectory.is_run(run_dir):
        return RunDirectory(run_dir, config_type).config
    if isinstance(preset, RunConfig):
        return preset
    config = presets.preset(preset or "base") if config_type is Config else config_type()
    if preset is None and init_from is not None:  # the model must fit the weights
        path, _ = RunDirectory.split_weights(init_from)
        other = RunDirectory(path, config_type).config
        config = dataclasses.replace(config, model=other.model, decoding=other.decoding)
    return config


def open_run(
    run_dir: Path,
    cluster: Cluster,
    trainer: Trainer,
    config: RunConfig,
    data: TrainingData,
    init_from: str | None,
) -> tuple[RunDirectory | None, dict[str, float]]:
    """Creates or resumes the run, and copies the state of the chief to every trainer.

    Returns the run (None for a worker that is not the chief), and the metrics of the checkpoint
    that it resumes from.
    """

    def begin() -> dict[str, float]:
        source = init_from
        if RunDirectory.is_run(run_dir):
            old = RunDirectory(run_dir, type(config))
            if init_from not in (None, old.init_from):
                raise InputError(
                    f"{run_dir} was initialized from {old.init_from or 'random weights'}, not from "
                    f"{init_from}. Choose another --run_dir."
                )
            source = None if old.checkpoints() else old.init_from
        if source is not None:
            init_from_run(source, trainer, data.tokenizer)
        # The run directory is created only now, so that invalid input does not leave one behind.
        run = RunDirectory.create(run_dir, config, data.tokenizer, data.fingerprint, source)
        data.copy_reports(run)
        metrics = _restore(run, trainer)
        run.trim_metrics(trainer.step)
        return metrics

    metrics = dict(cluster.from_chief(begin))
    if cluster.num_workers > 1:
        for variable in trainer.update.variables():
            variable.assign(cluster.broadcast(keras.ops.convert_to_numpy(variable)))
    return (RunDirectory(run_dir, type(config)) if cluster.is_chief else None), metrics


def init_from_run(init_from: str, trainer: Trainer, tokenizer: Tokenizer) -> None:
    """Copies the weights of another run to a new trainer.

    If the vocabulary of the data has more symbols than that of the run, their weights start from
    the mean of the others. `init_from` is a run, for its selected weights, or `RUN@NAME`.
    """
    path, name = RunDirectory.split_weights(init_from)
    other = RunDirectory(path, trainer.transformer.run_config)
    old = other.tokenizer().vocabulary
    if not tokenizer.vocabulary.extends(old):
        raise InputError(
            f"{path} has a different vocabulary from the data directory, so training cannot start "
            f"from it. Prepare the data with --vocab_from={other.path / 'tokenizer'}."
        )
    weights = other.named_weights(name)
    if tokenizer.fingerprint != old.fingerprint:
        sizes = {
            (old.source_vocab_size, tokenizer.source_vocab_size),
            (old.target_vocab_size, tokenizer.target_vocab_size),
        }
        for weight, variable in trainer.transformer.weights_by_path().items():
            if weight in weights:
                shape = tuple(variable.shape)
                weights[weight] = with_rows_for_new_tokens(weights[weight], shape, sizes)
    try:
        trainer.transformer.assign_weights(weights)
    except InputError as error:
        raise InputError(f"Training cannot start from {init_from}: {error}") from None
    for weight, average in trainer.update.averages.items():
        average.assign(weights[weight])


def with_rows_for_new_tokens(
    array: npt.NDArray[Any], shape: Sequence[int], sizes: set[tuple[int, int]]
) -> npt.NDArray[Any]:
    """Enlarges a weight to its shape in a model with more tokens, by the mean of the old rows.

    An output bias that excludes a token has no part in the mean. `sizes` has the pairs of old and
    new sizes of the vocabularies.
    """
    for axis, (size, new) in enumerate(zip(array.shape, shape, strict=False)):
        if size != new and (size, new) in sizes:
            used = array[~is_excluded(array)] if array.ndim == 1 else array
            mean = used.mean(axis, keepdims=True, dtype=np.float64).astype(array.dtype)
            array = np.concatenate([array, np.repeat(mean, new - size, axis)], axis)
    return array


def _restore(run: RunDirectory, trainer: Trainer) -> dict[str, float]:
    """Loads the newest checkpoint into the trainer, and returns its metrics; {} without one."""
    restored = run.restore()
    if restored is None:
        return {}
    checkpoint, metrics, arrays = restored
    trainer.transformer.assign_weights(arrays["weights"])
    for own, name in ((trainer.state_by_path(), "state"), (trainer.update.averages, "ema")):
        saved = arrays.get(name, {})
        if own.keys() != saved.keys():
            raise InputError(
                f"{checkpoint.path} was written with another precision or optimizer. Resume with "
                "the flags of the run, on the same kind of machine."
            )
        for path, variable in own.items():
            variable.assign(saved[path])
    return metrics
