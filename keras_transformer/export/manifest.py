"""Writes `manifest.json` of a version: its origin, its settings, and the hash of each file."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer import __version__
from keras_transformer.inference.loading import members
from keras_transformer.inference.manifest import FILE, FORMAT_VERSION, describe_files
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory

_MODULES = (tf, tensorflow_text, keras, sentencepiece)


def describe_version(
    run: str | Path | RunDirectory, translator: TranslationModule, weights: str
) -> dict[str, Any]:
    """Returns the origin and the settings of an export as JSON values."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": __version__,
            **{module.__name__: module.__version__ for module in _MODULES},
        },
        "members": [_describe_member(member, name) for member, name in members(run)],
        "weights": weights,
        "max_source_tokens": translator.max_source_tokens,
        "max_source_bytes": translator.config.max_source_bytes,
        "max_output_tokens": translator.max_output_tokens,
        "max_train_source_length": translator.max_train_source_length,
        "single_sentences": all(member.single_sentences for member, _ in members(run)),
        "decoding": translator.config.as_dict(),
    }


def _describe_member(run: RunDirectory, weights: str) -> dict[str, Any]:
    return {
        "run": run.path.resolve().name,
        "weights": weights,
        "step": _step(run, weights),
        "config_sha256": hashlib.sha256((run.path / "config.json").read_bytes()).hexdigest(),
        "data_fingerprint": run.data_fingerprint,
        "vocabulary_fingerprint": run.tokenizer().fingerprint,
        "init_from": run.init_from,
    }


def _step(run: RunDirectory, weights: str) -> int | None:
    """Returns the step of weights, the last one for an average, or None if it is unknown."""
    if weights in ("best", "last", "ema"):
        best = run.best_checkpoints()[:1] if weights == "best" else run.checkpoints()[-1:]
        return best[0].step if best else None
    named = re.search(r"step-(\d+)$", weights)
    return int(named[1]) if named else None


def write_manifest(folder: Path, facts: Mapping[str, Any], needed: Iterable[str]) -> None:
    """Writes `manifest.json` into a version, with the files that the version has now.

    `needed` are the files that the engine reads, relative to the folder.
    """
    facts = {"format_version": FORMAT_VERSION, **facts, "needed": sorted(needed)}
    manifest = {**facts, "files": describe_files(folder)}
    (folder / FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
