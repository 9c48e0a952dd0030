"""Files and folders in object stores: `s3://BUCKET/NAME` and the like, through fsspec.

What a command reads is copied to the cache of this machine, once for each version of the content.
What it writes is uploaded at its end. Paths in the cache end like the addresses, because messages
and reports have them. `fsspec` needs another package for each kind of store, such as `s3fs`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from keras_transformer import console
from keras_transformer.errors import StoppedError, one_line, require
from keras_transformer.runs.atomic import atomic_path

ADDRESS = re.compile(r"(?!hf://|https?://)[a-z][a-z0-9+.-]*://.")  # not of the Hub or a server


def resolve(addresses: str) -> str:
    """Copies models or data to this machine. Returns their paths, separated by commas again."""
    return ",".join(map(copy, addresses.split(",")))


def copy(address: str) -> str:
    """Copies a file or a folder to this machine, and returns its path, with `@WEIGHTS` of a run."""
    if not ADDRESS.match(address):
        return address
    with _storage(address) as (files, name):
        found = files.find(name, detail=True)  # the file itself, or all files below the folder
        if not found:
            run, _, weights = address.rpartition("@")
            require("/" not in weights, "There is no file with this address.")
            return f"{copy(run)}@{weights}"
        path = _cache(address, found) / name.strip("/")
        if not path.exists():
            console.info(f"Downloading {address}")
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another process may have copied it meanwhile, and may be reading its copy.
            with atomic_path(path, replaces=False) as partial:
                if files.isdir(name):
                    files.get(name, str(partial), recursive=True)
                else:
                    files.get_file(name, str(partial))
    return str(path)


@contextlib.contextmanager
def upload(address: str) -> Iterator[str]:
    """Yields a path of this machine. Uploads what is there when the block ends without an error.

    An existing folder is an error. The path is always the same, so that a command can resume.
    """
    require(bool(ADDRESS.match(address)), f"{address} cannot be written. Choose a path.")
    folder = _cache(address)
    mark = folder / ".uploading"
    with _storage(address) as (files, name):
        require(mark.exists() or not files.isdir(name), "This folder exists. Choose a new one.")
    path = folder / name.strip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    yield str(path)
    console.info(f"Uploading {address}. If this fails, the same command uploads it again.")
    with _storage(address) as (files, name):
        mark.touch()
        if path.is_dir():
            files.put(f"{path}/", name, recursive=True)
        else:
            files.put_file(str(path), name)
    shutil.rmtree(folder)


def _cache(*content: object) -> Path:
    """Returns a folder of this machine for the content of an address."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "keras_transformer" / fsspec.utils.tokenize(*content)[:16]


@contextlib.contextmanager
def _storage(address: str) -> Iterator[tuple[Any, str]]:
    """Yields the file system of an address, and the name there. Errors become `StoppedError`."""
    try:
        yield fsspec.core.url_to_fs(address.rstrip("/"))
    except Exception as error:  # each store has its own
        raise StoppedError(f"{address}: {one_line(error)}") from error
