"""The format of a run on disk, which is written and read nowhere else.

    config.json       the three configurations
    data.json         fingerprint of the corpus that the run is trained on
    tokenizer/        SentencePiece models
    checkpoints/      step-00001000/{weights.npz, state.npz, metrics.json}, newest last
    averages/         NAME.npz, weights averaged over checkpoints
    selected.json     which weights evaluate, translate and export read
    metrics.jsonl     one JSON object a line
    tensorboard/      event files

Arrays are addressed by the path of their variable. Checkpoints and averages are
written under another name and renamed, so they are there whole or not at all;
the zip format's checksums tell a damaged one. There is no pickle and no code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.text.tokenizer import Tokenizer

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

# What may differ when a run is continued: none of it changes the steps already taken.
_FREE_TO_CHANGE = ("max_steps", "log_steps", "checkpoint_steps", "keep_checkpoints", "jit_compile")

# What a creation that was killed may leave: config.json comes last.
_UNFINISHED = {"checkpoints", "tokenizer", "data.json", "data.json.tmp", "config.json.tmp"}


class Checkpoint(NamedTuple):
    """A whole checkpoint on disk."""

    step: int
    path: Path


class RunDirectory:
    """A run on disk.

    Args:
        path: an existing run directory.

    Raises:
        InputError: where there is none.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.is_run(path):
            what = "no run directory (it has no config.json)" if self.path.exists() else "not there"
            raise InputError(f"{path} is {what}; expected what bin/train.py --run_dir writes")
        self.config = Config.from_json(
            (self.path / "config.json").read_text(), str(self.path / "config.json")
        )
        self.data_fingerprint: str = _read_json(self.path / "data.json", "fingerprint")

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Whether `path` holds a run, told by its content."""
        return (Path(path) / "config.json").is_file() and (Path(path) / "data.json").is_file()

    @classmethod
    def create(
        cls, path: str | Path, config: Config, tokenizer: Tokenizer, data_fingerprint: str
    ) -> RunDirectory:
        """Makes a run directory, or opens the one that is there to continue it.

        Raises:
            InputError: where `path` holds something else, or a run of another
                configuration, vocabulary or corpus.
        """
        path = Path(path)
        if cls.is_run(path):
            run = cls(path)
            run._check_continues(config, tokenizer, data_fingerprint)
            with _writing(path):
                for leftover in (path / "checkpoints").glob("unfinished-*"):
                    shutil.rmtree(leftover)
                _write_text(path / "config.json", config.to_json())
            return cls(path)
        if path.exists() and not (
            path.is_dir() and {entry.name for entry in path.iterdir()} <= _UNFINISHED
        ):
            raise InputError(f"{path} exists and is no run directory; expected a new or empty one")
        with _writing(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            tokenizer.save(path / "tokenizer")
            _write_text(path / "data.json", json.dumps({"fingerprint": data_fingerprint}) + "\n")
            _write_text(path / "config.json", config.to_json())  # last: it makes the run whole
        return cls(path)

    def _check_continues(self, config: Config, tokenizer: Tokenizer, fingerprint: str) -> None:
        if self.tokenizer().fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"{self.path} was trained with another vocabulary than the data directory's; "
                "expected the data directory that the run began with"
            )
        if self.data_fingerprint != fingerprint:
            raise InputError(
                f"{self.path} was trained on another corpus than the data directory's; "
                "expected the data directory that the run began with"
            )
        for section in ("model", "training"):
            old, new = getattr(self.config, section), getattr(config, section)
            for field in dataclasses.fields(old):
                before, after = getattr(old, field.name), getattr(new, field.name)
                shapes_schedule = field.name == "max_steps" and old.schedule in ("linear", "cosine")
                if before != after and (field.name not in _FREE_TO_CHANGE or shapes_schedule):
                    raise InputError(
                        f"{self.path} holds a run with {section}.{field.name} {before}, not "
                        f"{after}; expected the configuration it began with, or another --run_dir"
                    )

    def tokenizer(self) -> Tokenizer:
        """Returns the run's tokenizer."""
        return Tokenizer.load(self.path / "tokenizer")

    # Checkpoints.

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the whole checkpoints, oldest first."""
        found = (self.path / "checkpoints").glob("step-" + "[0-9]" * 8)
        return sorted(Checkpoint(int(path.name.removeprefix("step-")), path) for path in found)

    def save_checkpoint(
        self, step: int, weights: Arrays, state: Arrays, metrics: Mapping[str, float]
    ) -> None:
        """Writes a checkpoint, and removes the oldest ones beyond `training.keep_checkpoints`."""
        final = self.path / "checkpoints" / f"step-{step:08d}"
        unfinished = self.path / "checkpoints" / f"unfinished-{step:08d}"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            _write_arrays(unfinished / "weights.npz", weights)
            _write_arrays(unfinished / "state.npz", state)
            _write_text(unfinished / "metrics.json", json.dumps(dict(metrics)) + "\n")
            shutil.rmtree(final, ignore_errors=True)
            os.replace(unfinished, final)
            _sync(final.parent)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise InputError(
                f"{final} could not be written ({error.strerror}); earlier checkpoints are whole"
            ) from error
        for old in self.checkpoints()[: -self.config.training.keep_checkpoints]:
            if old.path.name != self.selected:
                # Renamed first: a kill must not leave half of what is listed as whole.
                doomed = old.path.with_name(f"unfinished-{old.step:08d}")
                old.path.rename(doomed)
                shutil.rmtree(doomed)

    def read_checkpoint(self, checkpoint: Checkpoint) -> tuple[Arrays, Arrays]:
        """Returns a checkpoint's weights and training state.

        Raises:
            InputError: where it is damaged.
        """
        return (
            _read_arrays(checkpoint.path / "weights.npz"),
            _read_arrays(checkpoint.path / "state.npz"),
        )

    def read_metrics(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Returns the metrics that a checkpoint was written with."""
        return dict(_read_json(checkpoint.path / "metrics.json"))

    def read_weights(self, checkpoint: Checkpoint) -> Arrays:
        """Returns a checkpoint's weights."""
        return _read_arrays(checkpoint.path / "weights.npz")

    # Which weights are used.

    def save_average(self, name: str, weights: Arrays) -> None:
        """Writes averaged weights and selects them."""
        with _writing(self.path / "averages"):
            (self.path / "averages").mkdir(exist_ok=True)
            _write_arrays(self.path / "averages" / f"{name}.npz", weights)
        self.select(name)

    def select(self, name: str) -> None:
        """Selects the weights that are evaluated, exported and translated with.

        Args:
            name: "last" for the newest checkpoint, "step-00001000" for one of
                them, or the name of an average.
        """
        self._weights_file(name)
        with _writing(self.path / "selected.json"):
            _write_text(self.path / "selected.json", json.dumps({"weights": name}) + "\n")

    @property
    def selected(self) -> str:
        """Name of the selected weights; "last" unless something was selected."""
        file = self.path / "selected.json"
        return str(_read_json(file, "weights")) if file.exists() else "last"

    def selected_weights(self) -> Arrays:
        """Returns the selected weights.

        Raises:
            InputError: where there is no checkpoint yet, or a damaged one.
        """
        return _read_arrays(self._weights_file(self.selected))

    def _weights_file(self, name: str) -> Path:
        if name == "last":
            checkpoints = self.checkpoints()
            if not checkpoints:
                raise InputError(
                    f"{self.path} has no checkpoint yet; expected a run trained for at least "
                    f"training.checkpoint_steps ({self.config.training.checkpoint_steps}) steps"
                )
            return checkpoints[-1].path / "weights.npz"
        for file in (
            self.path / "checkpoints" / name / "weights.npz",
            self.path / "averages" / f"{name}.npz",
        ):
            if file.is_file():
                return file
        raise InputError(
            f"{self.path} has no weights named {name!r}; expected last or a saved name"
        )

    # Metrics.

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds a line to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with _writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def trim_metrics(self, step: int) -> None:
        """Drops what was logged after `step`, and what a kill left half written."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        kept = []
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            try:
                if line.endswith("\n") and json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue
        with _writing(file):
            _write_text(file, "".join(kept))

    @property
    def tensorboard_directory(self) -> Path:
        return self.path / "tensorboard"


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a missing permission into an error that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); expected room and permission; "
            "the same command continues from the last checkpoint"
        ) from error


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _read_json(path: Path, field: str | None = None) -> Any:
    """Returns an object, or one field of it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return dict(content) if field is None else content[field]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged ({error!r}); expected the JSON that was written there"
        ) from None


def _write_arrays(path: Path, arrays: Arrays) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        # Through **: a name may hold "/", which makes folders inside the zip.
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_arrays(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged zip file raises a dozen kinds
        raise InputError(
            f"{path} cannot be read as weights ({error}); expected a whole checkpoint: "
            "remove its folder to continue from the one before"
        ) from None
