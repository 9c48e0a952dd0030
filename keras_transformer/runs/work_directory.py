"""A directory that takes its name when it is complete, and is continued where it was left."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.errors import InputError, StoppedError

log = logging.getLogger(__name__)

_LOCK = "lock"
_FINGERPRINT = "fingerprint"
_WORK = "work"
_UNFINISHED = ".unfinished"


@contextlib.contextmanager
def work_directory(output_dir: Path, fingerprint: str) -> Iterator[Path]:
    """Gives a hidden directory beside `output_dir` that takes its name at the end.

    What stands in it from a process that was killed is given again, if it was made for the
    same fingerprint. Its folder `work` is removed at the end.

    Raises:
        InputError: where another process is at it, where a disk is mounted, which cannot be
            renamed, and where it cannot be written: then what is written remains, as after a
            `StoppedError`. After any other `InputError` nothing does.
    """
    place = output_dir.resolve()  # a link's name cannot be taken by a directory
    if place.is_mount():
        raise InputError(f"{output_dir} is a mounted disk; expected a new directory, on it as well")
    directory = place.parent / f".{place.name}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / _LOCK).open("w") as lock:
            _acquire(lock.fileno(), output_dir)
            _clear(directory, fingerprint)
            try:
                yield directory
            except StoppedError:
                raise
            except InputError:
                (directory / _FINGERPRINT).unlink(missing_ok=True)
                shutil.rmtree(directory, ignore_errors=True)
                raise
            except KeyboardInterrupt:
                log.warning(
                    "what is done is kept beside %s: the same command continues", output_dir
                )
                raise
            shutil.rmtree(directory / _WORK, ignore_errors=True)
            for left in list(directory.rglob(f".*{_UNFINISHED}")):  # by processes that were killed
                _remove(left)
            directory.rename(place)
            for name in (_LOCK, _FINGERPRINT):  # now: what cannot be renamed can be continued
                (place / name).unlink()
    except OSError as error:
        raise InputError(
            f"{output_dir} cannot be written ({error}); once it can, the same command continues"
        ) from error


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives a path for a file or a directory that gets the name `path` when it is written.

    Several processes may write the same at once, as Beam lets two machines do a piece of work:
    what has the name is whole, and in the end what the last of them has written. A directory
    that takes another's place is missing for a moment: it is read when all have ended.
    """
    partial = _unfinished(path)
    try:
        yield partial
        _sync(partial)
        while True:
            try:
                partial.rename(path)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # no directory was in the way
                before = _unfinished(path)
                with contextlib.suppress(FileNotFoundError):
                    path.rename(before)
                _remove(before)
    finally:
        _remove(partial)


def _sync(path: Path) -> None:
    """Waits until a file, or all of a directory, is on disk: a name may be there before."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as written:
                os.fsync(written.fileno())


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _acquire(lock: int, output_dir: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another process is preparing {output_dir}; expected one alone") from None


def _clear(directory: Path, fingerprint: str) -> None:
    """Removes what was made for something else."""
    path = directory / _FINGERPRINT
    if path.exists() and path.read_bytes() == fingerprint.encode():
        log.info("continuing what was begun before")
        return
    path.unlink(missing_ok=True)  # first: a kill here must not leave it over half of what was
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
    path.write_text(fingerprint)
