"""Writes `manifest.json` of a version: its origin, and the hash of each of its files."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.config import DecodingConfig
from keras_transformer.inference.loading import members
from keras_transformer.inference.manifest import FILE, FORMAT_VERSION, describe_files
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory

_MODULES = (tf, tensorflow_text, keras, sentencepiece)


@dataclasses.dataclass(frozen=True)
class Member:
    """A run whose weights are in an export. An ensemble has several.

    Attributes:
        run: the run.
        weights: the name of its exported weights, as in `RunDirectory.named_weights`.
    """

    run: RunDirectory
    weights: str

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return self.run.path.resolve().name

    @property
    def step(self) -> int | None:
        """The step of the weights (the last one for an average), or None if it is unknown."""
        checkpoints = self.run.checkpoints()
        if self.weights == "best":
            checkpoints = self.run.best_checkpoints()[:1]
        if self.weights in ("best", "last", "ema"):
            return checkpoints[-1].step if checkpoints else None
        named = re.search(r"step-(\d+)$", self.weights)
        return int(named[1]) if named else None

    def data_reports(self) -> list[dict[str, Any]]:
        """Returns the preparation's report of each corpus, or {} if it cannot be read."""
        reports = []
        for path in self.run.data_reports():
            report = None
            with contextlib.suppress(OSError, ValueError, RecursionError):
                report = json.loads(path.read_bytes())
            reports.append(report if isinstance(report, dict) else {})
        return reports

    def describe(self) -> dict[str, Any]:
        """Returns JSON values that identify the run and its weights."""
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
    """The origin and the settings of an exported version.

    Attributes:
        members: the exported run, or the runs of an ensemble.
        decoding: settings of the search.
        precision: type of weights and computation.
        max_source_tokens: longest source, including the end token; longer ones are truncated.
        max_output_tokens: longest translation, including the end token.
        shortlist: sizes of the shortlist, or None without one.
    """

    members: tuple[Member, ...]
    decoding: DecodingConfig
    precision: str
    max_source_tokens: int
    max_output_tokens: int
    shortlist: dict[str, int] | None = None

    @classmethod
    def of(
        cls, run: str | Path | RunDirectory, translator: TranslationModule, precision: str
    ) -> Provenance:
        """Returns the provenance of an export of `run` with this translator."""
        return cls(
            tuple(Member(*member) for member in members(run)),
            translator.config,
            precision,
            translator.max_source_tokens,
            translator.max_output_tokens,
            None if translator.shortlist is None else translator.shortlist.describe(),
        )


def write_manifest(
    path: Path,
    provenance: Provenance,
    signatures: Mapping[str, Any],
    warning: str | None = None,
) -> None:
    """Writes `manifest.json` into a version. It must be the last file that is written.

    Args:
        path: directory of the version.
        provenance: origin and settings.
        signatures: `{name: {"inputs": ..., "outputs": ...}}`, as JSON values.
        warning: a limitation of this export.
    """
    own_version = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # in a clone
        own_version = importlib.metadata.version("keras_transformer")
    manifest = {
        "format_version": FORMAT_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": own_version,
            **{module.__name__: module.__version__ for module in _MODULES},
        },
        "members": [member.describe() for member in provenance.members],
        "precision": provenance.precision,
        "max_source_tokens": provenance.max_source_tokens,
        "max_output_tokens": provenance.max_output_tokens,
        "shortlist": provenance.shortlist,
        "decoding": provenance.decoding.as_dict(),
        "signatures": dict(signatures),
        "warning": warning,
        "files": describe_files(path),
    }
    (path / FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
