"""Files and folders in object stores: `s3://BUCKET/NAME` and the like, through fsspec.

What a command reads is copied to the cache of this machine, once for each version of the content.
What it writes is uploaded at its end. `fsspec` needs another package for each kind of store, such
as `s3fs` or `gcsfs`, which also reads the credentials.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from keras_transformer.errors import InputError, one_line, require
from keras_transformer.runs.atomic import atomic_path

log = logging.getLogger(__name__)

_OTHERS = ("hf://", "http://", "https://")  # models on the Hugging Face Hub, and servers


def resolve(addresses: str) -> str:
    """Copies files and folders to this machine. Returns their paths, separated by commas again."""
    return ",".join(
        str(_local_copy(one)) if _is_address(one) else one for one in addresses.split(",")
    )


@contextlib.contextmanager
def upload(address: str) -> Iterator[str]:
    """Yields a path of this machine. Uploads what is there when the block ends without an error.

    An existing folder is an error. The path is always the same, so that a command can resume.
    """
    folder = _cache(address)
    with _storage(address) as (files, name):
        is_new = folder.exists() or not files.isdir(name)
        require(is_new, f"{address} exists. Choose a new directory.")
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / PurePosixPath(name).name
    yield str(path)
    with _storage(address) as (files, name):
        log.info("Uploading %s", address)
        files.put(str(path), name, recursive=path.is_dir())
    shutil.rmtree(folder)


def _is_address(text: str) -> bool:
    return "://" in text and not text.startswith(_OTHERS)


def _local_copy(address: str) -> Path:
    with _storage(address) as (files, name):
        found = files.find(name, detail=True)  # the file itself, or all files below the folder
        if not found:
            raise FileNotFoundError("There is no file with this address.")
        copy = _cache(address, fsspec.utils.tokenize(found)) / PurePosixPath(name).name
        if not copy.exists():
            log.info("Downloading %s", address)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(copy) as partial:
                files.get(name, str(partial), recursive=files.isdir(name))
    return copy


def _cache(*parts: str) -> Path:
    """Returns a folder of this machine for the content of an address."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return Path(cache) / "keras_transformer" / digest[:32]


@contextlib.contextmanager
def _storage(address: str) -> Iterator[tuple[Any, str]]:
    """Yields the file system of an address, and the name there. All errors become `InputError`."""
    try:
        yield fsspec.core.url_to_fs(address.rstrip("/"))
    except InputError:
        raise
    except Exception as error:  # each store has its own
        raise InputError(f"{address}: {one_line(error)}") from error
