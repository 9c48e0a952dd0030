"""`manifest.json`: the origin of an exported version, and the hash of each of its files."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.config import DecodingConfig
from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import Checkpoint, RunDirectory

FORMAT_VERSION = 1
_FILE = "manifest.json"
_MODULES = (tf, tensorflow_text, keras, sentencepiece)


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of an export, and the name of its weights that were taken."""

    run: RunDirectory
    weights: str

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        return self.run.path.resolve().name

    @property
    def step(self) -> int | None:
        """Step of the weights, of averaged ones the last; None where that is not known."""
        checkpoint = self._checkpoint()
        if checkpoint is not None:
            return checkpoint.step
        named = re.search(r"step-(\d+)$", self.weights)
        return int(named[1]) if named else None

    def _checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the weights are those of; None for an average."""
        checkpoints = self.run.checkpoints()
        if self.weights == "best":
            return next(iter(self.run.best_checkpoints()), None)
        if self.weights in ("last", "ema"):
            return next(iter(checkpoints[-1:]), None)
        return next((c for c in checkpoints if c.path.name == self.weights), None)

    def validation(self) -> dict[str, float]:
        """Returns what training measured of these very weights: `val_bleu` and others."""
        checkpoint, metrics = self._checkpoint(), {}
        # With a moving average it is the average that is validated.
        has_ema = self.run.config.training.ema_decay > 0
        if checkpoint is not None and (not has_ema or self.weights in ("ema", "best")):
            with contextlib.suppress(InputError):
                metrics = self.run.read_metrics(checkpoint)
        return {
            name: value
            for name, value in metrics.items()
            if name.startswith("val_") and math.isfinite(value)
        }

    def data_reports(self) -> list[dict[str, Any]]:
        """Returns what the preparation reported of each corpus; empty where it cannot be read."""
        reports = []
        for path in self.run.data_reports():
            report = None
            with contextlib.suppress(OSError, ValueError, RecursionError):
                report = json.loads(path.read_bytes())
            reports.append(report if isinstance(report, dict) else {})
        return reports

    def describe(self) -> dict[str, Any]:
        """Returns what tells this run and its weights from every other, as JSON values."""
        config = (self.run.path / "config.json").read_bytes()
        return {
            "run": self.name,
            "weights": self.weights,
            "step": self.step,
            "config_sha256": hashlib.sha256(config).hexdigest(),
            "data_fingerprint": self.run.data_fingerprint,
            "vocabulary_fingerprint": self.run.tokenizer().fingerprint,
            "init_from": self.run.init_from,
        }


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What an exported version was made of.

    Attributes:
        members: the run; several of an ensemble.
        decoding: how it searches.
        precision: of weights and products.
        max_source_tokens: of a source, the end token included; what is beyond is cut.
        max_output_tokens: of a translation, the end token included.
    """

    members: tuple[Member, ...]
    decoding: DecodingConfig
    precision: str
    max_source_tokens: int
    max_output_tokens: int


def at(report: Any, *keys: str) -> Any:
    """Returns what lies under nested keys of JSON that may have any form, or None."""
    for key in keys:
        report = report.get(key) if isinstance(report, dict) else None
    return report


def bytes_of(path: Path) -> int:
    """Returns the bytes of all files under `path`."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def write_manifest(path: Path, provenance: Provenance, signatures: Mapping[str, Any]) -> None:
    """Writes `manifest.json` into a version, as the last of its files.

    Args:
        path: directory of the version.
        provenance: what it was made of.
        signatures: `{name: {"inputs": ..., "outputs": ...}}`, as JSON values.
    """
    manifest = {
        "format_version": FORMAT_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": _own_version(),
            **{module.__name__: module.__version__ for module in _MODULES},
        },
        "members": [member.describe() for member in provenance.members],
        "precision": provenance.precision,
        "max_source_tokens": provenance.max_source_tokens,
        "max_output_tokens": provenance.max_output_tokens,
        "decoding": dataclasses.asdict(provenance.decoding),
        "signatures": dict(signatures),
        "files": _files(path),
    }
    (path / _FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def check_manifest(path: Path) -> dict[str, Any]:
    """Compares every file of a version with its manifest, which is returned.

    Args:
        path: directory of a version.

    Raises:
        InputError: for the first file that has changed, is missing, or was added, or for a
            manifest that cannot be read.
    """
    file = path / _FILE
    try:
        manifest = json.loads(file.read_bytes())
        version, listed = manifest["format_version"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        raise InputError(f"{file} cannot be read ({reason}); expected a manifest") from error
    if version != FORMAT_VERSION:
        raise InputError(f"{file} has the format {version!r}; expected {FORMAT_VERSION}")
    found = _files(path)
    for name in sorted({*listed, *found}):
        if name not in found:
            raise InputError(f"{path / name} is not there; expected it, as {_FILE} lists it")
        if name not in listed:
            raise InputError(f"{path / name} is not in {_FILE}; expected no other files")
        if found[name] != listed[name]:
            raise InputError(
                f"{path / name} is not what was exported: its SHA-256 is {found[name]['sha256']}; "
                f"expected that of {_FILE}"
            )
    return dict(manifest)


def _own_version() -> str | None:
    try:
        return importlib.metadata.version("keras_transformer")
    except importlib.metadata.PackageNotFoundError:  # used from a clone, not installed
        return None


def _files(path: Path) -> dict[str, dict[str, Any]]:
    """Returns `{"sha256": hex, "bytes": number}` of every file but the manifest, by its place."""
    files = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and name != _FILE:
            with open(file, "rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            files[name] = {"sha256": digest, "bytes": file.stat().st_size}
    return files
