"""Files and directories that appear under their name only when they are completely written.

A temporary name next to the final one ends in `.unfinished`. After a kill such entries
are left over; `remove_leftovers` removes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from keras_transformer.console import warn
from keras_transformer.errors import InputError, StoppedError, require

log = logging.getLogger(__name__)

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)  # errors of `os.fsync`
_NAME_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)  # errors of renaming a directory to a used name

_LEFTOVER_SECONDS = 24 * 3600
_FINGERPRINT = "fingerprint"
_WORK = "work"
# Opening one of these would truncate a file that the shell appends to.
_STANDARD_OUTPUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_UNFINISHED = ".unfinished"

_Result = TypeVar("_Result")


@contextlib.contextmanager
def atomic_path(path: Path, replaces: bool = True) -> Iterator[Path]:
    """Yields a temporary path for a file or a directory, which becomes `path` at the end.

    The content is flushed to the disk before the rename. After an exception the temporary
    entry is removed and `path` is as it was.

    Several processes may write the same path at once, since each has its own temporary
    name; the last one to finish wins, or the first directory unless `replaces`. A directory that
    replaces another one is missing for a moment between two renames.
    """
    partial = _unfinished(path)
    try:
        yield partial
        sync_tree(partial)
        replaced = []
        while not _rename(partial, path) and replaces:
            with contextlib.suppress(FileNotFoundError):  # another process was first
                replaced.append(path.rename(_unfinished(path)))
        for directory in replaced:
            _delete(directory)
        _sync(path.parent)
    finally:
        _delete(partial)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, in UTF-8."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_version(output_dir: Path, write: Callable[[Path], _Result]) -> tuple[Path, _Result]:
    """Writes the next numbered version below `output_dir` atomically. `write` gets its folder."""
    partial = _unfinished(output_dir / "version")
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        for leftover in output_dir.glob(f".version.*{_UNFINISHED}"):
            with contextlib.suppress(InputError, OSError), exclusive_lock(leftover):
                # A killed process left it. The age protects running ones where locks do not work.
                if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                    _delete(leftover)
        with exclusive_lock(partial):
            result = write(partial)
            sync_tree(partial)
            names = (path.name for path in output_dir.iterdir())
            numbers = (int(name) for name in names if name.isascii() and name.isdecimal())
            number = 1 + max(numbers, default=0)
            while not _rename(partial, output_dir / str(number)):
                number += 1  # another export took the number first
        _sync(output_dir)
        return output_dir / str(number), result
    except OSError as error:
        raise InputError(f"{output_dir} cannot be written ({error})") from error
    finally:
        _delete(partial)


def remove(path: Path) -> None:
    """Removes a file or a directory; no part of it keeps the name when this is interrupted."""
    _delete(path.rename(_unfinished(path)))


def is_leftover(name: str) -> bool:
    """Returns whether a file name is that of something unfinished."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def remove_leftovers(*folders: Path) -> None:
    """Removes what killed processes left in folders. No other process may be writing there."""
    for folder in folders:
        for leftover in list(folder.glob(f".*{_UNFINISHED}")):
            _delete(leftover)


def _unfinished(path: Path) -> Path:
    """Returns a new temporary name for `path` in the same directory."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")


def sync_tree(path: Path) -> None:
    """Waits until a file, or a directory with everything in it, is on the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            if not entry.is_symlink():
                sync_tree(entry)
    _sync(path)


def _sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a directory, are on the disk.

    Shared folders and some network file systems cannot wait. What was written is complete there.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _rename(partial: Path, path: Path) -> bool:
    """Renames `partial` to `path`, or returns False if a directory has that name."""
    try:
        partial.rename(path)
    except OSError as error:
        if error.errno not in _NAME_TAKEN:
            raise
        return False
    return True


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def exclusive_lock(directory: Path, name: Path | None = None) -> Iterator[None]:
    """Keeps other processes out of a directory, which errors call `name`, while the block runs.

    The directory itself is locked, so the lock ends with the process. It is created if
    necessary, and removed again if nothing was written there. The lock keeps out the processes of
    this machine, but not those of other machines that share the directory, and nobody on a file
    system without locks.
    """
    is_new = not directory.exists()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the code that writes there reports it
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{name or directory} is in use by another process. Wait for it, or stop it."
                ) from None
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):  # it has content
                    directory.rmdir()


# Output of a command.


def is_replaced(path: str | Path) -> bool:
    """Returns whether output gets this name at its end; devices and pipes are written directly."""
    is_device = str(path).startswith(("/dev/fd/", "/dev/std", "/proc/"))
    return not is_device and (os.path.isfile(path) or not os.path.exists(path))


@contextlib.contextmanager
def output_file(path: str | Path | None) -> Iterator[BinaryIO]:
    """Yields a binary file that gets the name `path` when the block ends without an error.

    If the path is None, it is the standard output. Devices and pipes are written directly.
    """
    if path is None or str(path) in _STANDARD_OUTPUT:
        yield sys.stdout.buffer
        return
    try:
        if not is_replaced(path):
            with open(path, "wb") as file:
                yield file
        else:  # the target of a symbolic link is replaced, not the link
            with atomic_path(Path(os.path.realpath(path))) as partial, partial.open("wb") as file:
                yield file
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error


# Output that takes hours, and that can be resumed after a kill.


@contextlib.contextmanager
def work_directory(output_dir: Path, fingerprint: str, file: str | None = None) -> Iterator[Path]:
    """Yields a hidden directory next to `output_dir`, which is renamed to it at the end.

    With the name of a `file` in it, only this file gets the name `output_dir`.

    If an earlier process was killed, its directory is yielded again, provided that it was
    made for the same fingerprint. The subdirectory `work` is removed at the end. As with
    `exclusive_lock`, only processes of this machine are kept out.
    """
    target = output_dir.resolve()  # a symbolic link cannot be replaced by a directory
    message = f"{output_dir} is a mount point. Choose a new directory on that disk."
    require(not target.is_mount(), message)
    directory = target.parent / f".{target.name}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(directory, output_dir):
            _remove_other_work(directory, fingerprint)
            try:
                yield directory
            except StoppedError:
                raise
            except InputError:
                (directory / _FINGERPRINT).unlink(missing_ok=True)
                shutil.rmtree(directory, ignore_errors=True)
                raise
            except KeyboardInterrupt:
                warn(f"The finished part is kept next to {output_dir}. The same command resumes.")
                raise
            if file is not None:
                (directory / file).replace(target)
                _sync(target.parent)
                shutil.rmtree(directory)
                return
            remove_leftovers(directory, *(path for path in directory.rglob("*") if path.is_dir()))
            directory.rename(target)
            # A resumed call needs these until the rename.
            shutil.rmtree(target / _WORK, ignore_errors=True)
            (target / _FINGERPRINT).unlink()
    except OSError as error:
        raise InputError(
            f"{output_dir} cannot be written ({error}). Fix this, then the same command resumes."
        ) from error


@contextlib.contextmanager
def growing_files(
    directory: Path, names: Sequence[str]
) -> Iterator[tuple[Any, Callable[[Sequence[bytes], Any], None]]]:
    """Opens files of a `work_directory` that grow block by block.

    Yields the state that was saved last, or None, and a function that appends to each file and
    saves a state, which is a JSON value. After a kill, the files end where that state was saved.
    """
    path = directory / _WORK / "progress.json"
    path.parent.mkdir(exist_ok=True)
    sizes, state = json.loads(path.read_bytes()) if path.exists() else ([0] * len(names), None)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((directory / name).open("ab")) for name in names]
        _sync(directory)
        pairs = [*zip(files, sizes, strict=True)]
        if any(os.fstat(file.fileno()).st_size < size for file, size in pairs):
            pairs, state = [(file, 0) for file in files], None  # the last call replaced its output
        for file, size in pairs:
            file.truncate(size)

        def save(texts: Sequence[bytes], state: Any) -> None:
            for file, text in zip(files, texts, strict=True):
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            sizes = [os.fstat(file.fileno()).st_size for file in files]
            write_text(path, json.dumps([sizes, state]))

        yield state, save


def _remove_other_work(directory: Path, fingerprint: str) -> None:
    """Empties a work directory that was made for another fingerprint."""
    path = directory / _FINGERPRINT
    if path.exists() and path.read_bytes() == fingerprint.encode():
        log.info("resuming the interrupted command")
        return
    # The fingerprint is removed first, so that a kill cannot leave it next to incomplete work.
    path.unlink(missing_ok=True)
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    path.write_text(fingerprint)
