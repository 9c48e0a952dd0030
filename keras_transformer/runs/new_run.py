"""Writes a model as a new run with a single checkpoint."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.config import RunConfig
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer


def write_run(path: Path, config: RunConfig, tokenizer: Tokenizer, weights: Arrays) -> None:
    """Writes a run that this package did not train. It appears only when it is complete."""
    if path.exists():
        raise InputError(f"{path} exists. Choose a new directory.")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        with atomic_path(path) as partial:
            run = RunDirectory.create(partial, config, tokenizer, "unknown")
            run.save_checkpoint(1, weights, {}, {})
    except (InputError, OSError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        raise InputError(f"The model cannot be saved as {path} ({reason}).") from error
