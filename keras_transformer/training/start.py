"""How a run starts: its configuration, run directory, weights and training state."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_transformer import presets
from keras_transformer.config import Config, RunConfig
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import is_excluded
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.data import TrainingData
from keras_transformer.training.trainer import Trainer


class RunStart:
    """The start of a run: first its configuration, later its directory and its weights.

    Each run directory is opened once. Only the chief does this: on other workers, `run` stays None.
    """

    def __init__(self, run_dir: Path, config_type: type[RunConfig], init_from: str | None):
        self.run_dir = run_dir
        self.config_type = config_type
        self.init_from = init_from
        self.run: RunDirectory | None = None
        self._initial: tuple[RunDirectory, str | None] | None = None  # a run and its weights

    def open(self, preset: str | RunConfig | None) -> RunConfig:
        """Opens the run directories, and returns the configuration that settings change."""
        if RunDirectory.is_run(self.run_dir):
            self.run = RunDirectory(self.run_dir, self.config_type)
            if self.init_from not in (None, self.run.init_from):
                raise InputError(
                    f"{self.run_dir} was initialized from {self.run.init_from or 'random weights'},"
                    f" not from {self.init_from}. Choose another run_dir."
                )
            self.init_from = None if self.run.checkpoints() else self.run.init_from
        if self.init_from is not None:
            path, name = RunDirectory.split_weights(self.init_from)
            self._initial = RunDirectory(path, self.config_type), name
        if isinstance(preset, RunConfig):
            return preset
        if preset is None and self.run is not None:
            return self.run.config
        kind = self.config_type
        config = presets.preset(preset or "base") if kind is Config else kind()
        if preset is None and self._initial is not None:  # the model must fit the weights
            other = self._initial[0].config
            config = dataclasses.replace(config, model=other.model, decoding=other.decoding)
        return config

    def begin(self, trainer: Trainer, config: RunConfig, data: TrainingData) -> dict[str, float]:
        """Creates or resumes the run, and loads its weights into the trainer.

        Returns the metrics of the checkpoint that it resumes from.
        """
        if self._initial is not None:
            _load_initial_weights(*self._initial, trainer, data.tokenizer)
        # The run directory is created only now, so that invalid input does not leave one behind.
        content = config, data.tokenizer, data.fingerprint
        if self.run is None:
            self.run = RunDirectory.create(self.run_dir, *content, self.init_from)
        else:
            self.run.resume(*content)
        data.copy_reports(self.run)
        metrics = _restore(self.run, trainer)
        self.run.trim_metrics(trainer.step)
        return metrics


def _load_initial_weights(
    other: RunDirectory, name: str | None, trainer: Trainer, tokenizer: Tokenizer
) -> None:
    """Copies weights of another run to a new trainer: those with the name, or the selected ones.

    If the vocabulary of the data has more symbols than that of the run, their weights start from
    the mean of the others.
    """
    old = other.tokenizer().vocabulary
    if not tokenizer.vocabulary.extends(old):
        raise InputError(
            f"{other.path} has a different vocabulary from the data directory, so training cannot "
            f"start from it. Prepare the data with vocab_from={other.path / 'tokenizer'}."
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
        raise InputError(f"Training cannot start from {other.path}: {error}") from None
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
