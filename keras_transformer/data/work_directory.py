"""A directory that takes its name when it is complete, and is continued where it was left."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.data.workers import StoppedError
from keras_transformer.errors import InputError

log = logging.getLogger(__name__)

_LOCK = "lock"
_FINGERPRINT = "fingerprint"
_WORK = "work"


@contextlib.contextmanager
def work_directory(output_dir: Path, fingerprint: str) -> Iterator[Path]:
    """Gives a hidden directory beside `output_dir` that takes its name at the end.

    What stands in it from a process that was killed is given again, if it was made for the
    same fingerprint. Its folder `work` is removed at the end.

    Raises:
        InputError: where another process is at it, and where it cannot be written: then what is
            written remains, as after a `StoppedError`. After any other `InputError` nothing does.
    """
    directory = output_dir.absolute().parent / f".{output_dir.name}.partial"
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
                shutil.rmtree(directory, ignore_errors=True)
                raise
            except KeyboardInterrupt:
                log.warning(
                    "what is done is kept beside %s: the same command continues", output_dir
                )
                raise
            shutil.rmtree(directory / _WORK, ignore_errors=True)
            for name in (_LOCK, _FINGERPRINT):
                (directory / name).unlink()
            directory.rename(output_dir)
    except OSError as error:
        raise InputError(
            f"{output_dir} cannot be written ({error}); once it can, the same command continues"
        ) from error


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
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
    path.write_text(fingerprint)
