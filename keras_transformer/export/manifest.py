"""`manifest.json`: what a version was made of and with, and the hash of every file beside it."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.errors import InputError
from keras_transformer.export.provenance import Provenance

FORMAT_VERSION = 1
_FILE = "manifest.json"
_MODULES = (tf, tensorflow_text, keras, sentencepiece)


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
