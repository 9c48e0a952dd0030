"""Checks the files of an exported version against `manifest.json`, which has their hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError, one_line

FORMAT_VERSION = 1
FILE = "manifest.json"


def file_names(folder: Path) -> list[str]:
    """Returns the paths of all files in a folder, relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(folder).as_posix() for path in paths]


def describe_files(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the SHA-256 and the size of every file of a version except the manifest."""
    names = [name for name in file_names(path) if name != FILE] or ["."]
    return {
        name: {"sha256": _sha256(path / name), "bytes": (path / name).stat().st_size}
        for name in names
    }


def check_manifest(path: Path) -> dict[str, Any]:
    """Compares every file of a version with the version's manifest, and returns the manifest."""
    manifest = _read(path)
    listed = manifest["files"]
    _check(path, listed, sorted(listed))
    for name in file_names(path):
        if name not in listed and name != FILE:
            raise InputError(f"{path / name} was added after the export: {FILE} does not list it.")
    return manifest


def read(path: Path) -> dict[str, Any]:
    """Returns the manifest of a version, or an empty dict without one. Checks no other files."""
    if not (path / FILE).exists():
        return {}
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # `_read` reports it
        if "format_version" not in json.loads((path / FILE).read_bytes()):
            return {}  # another program has written it
    return _read(path)


def check_needed_files(path: Path) -> dict[str, Any]:
    """Checks the files that an engine needs to load a version, and returns its manifest.

    TensorFlow does not notice every damaged byte, and some of them end the process. People may edit
    other files, such as the model card. Versions without a manifest are not checked. SHA-256 takes
    about 0.5 s per GB.
    """
    manifest = read(path)
    if manifest:
        _check(path, manifest["files"], manifest.get("needed", manifest["files"]))
    return manifest


def _read(path: Path) -> dict[str, Any]:
    file = path / FILE
    try:
        manifest: dict[str, Any] = json.loads(file.read_bytes())
        version = manifest["format_version"]
        for name, facts in manifest["files"].items():
            if not isinstance(facts["bytes"], int) or not isinstance(facts["sha256"], str):
                raise TypeError(f"{name} is described by {facts}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{file} is not a readable manifest ({type(error).__name__}: {one_line(error)}). Copy "
            "or export the version again."
        ) from error
    if version != FORMAT_VERSION:
        raise InputError(
            f"{file} has format version {version!r}. This program reads {FORMAT_VERSION}."
        )
    return manifest


def _check(path: Path, listed: dict[str, dict[str, Any]], names: Iterable[str]) -> None:
    """Raises `InputError` for the first file that is not as the manifest lists it."""
    advice = "Copy or export the version again."
    for name in names:
        file, expected = path / name, listed[name]
        if not file.is_file():
            raise InputError(f"{file} is missing, but {FILE} lists it. {advice}")
        size = file.stat().st_size
        problem = f"{size:,} bytes, and not the {expected['bytes']:,}"
        if size == expected["bytes"]:  # a file of another size is not read
            digest = _sha256(file)
            if digest == expected["sha256"]:
                continue
            problem = f"the SHA-256 {digest}, and not the one"
        raise InputError(
            f"{file} was changed after the export: it has {problem} in {FILE}. {advice}"
        )


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
