"""Exceptions for invalid user input.

Commands print the message of an `InputError` and exit with code 1. Every other exception is a
defect of this package and keeps its stack trace.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


class InputError(ValueError):
    """Invalid input. The message says what is wrong, with the value, and what to do.

    Everything in this package that takes input of a user raises it.
    """


class DivergedError(InputError):
    """Training stopped, because loss or gradients were NaN or infinite for many steps."""


class StoppedError(InputError):
    """Work was stopped for a reason outside the data. The same command resumes it."""


def require(condition: bool, message: str) -> None:
    """Raises an `InputError` with `message` unless `condition`."""
    if not condition:
        raise InputError(message)


def one_line(reason: object, most: int = 200) -> str:
    """Returns a reason, such as an exception, as one line of at most some printable characters.

    Libraries put parts of a damaged file into their messages, over several lines.
    """
    line = " ".join(str(reason).split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= most else f"{line[:most]}..."


_MAX_SHOWN = 99  # names in a message


def check_names(names: Iterable[str], known: Sequence[str], kind: str) -> None:
    """Raises an error for a name that is not known, with the nearest ones or all known names.

    `kind` says what the names are, such as "an option of the search".
    """
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            if not near and len(known) > _MAX_SHOWN:
                near = difflib.get_close_matches(str(name), known, n=3, cutoff=0)
            hint = (
                f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(known)}."
            )
            raise InputError(f"{name!r} is not {kind}. {hint}")


def check_path(path: object, name: str) -> str:
    """Returns a path as a str. Raises an error for anything else."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{name} is {path!r:.60}. Give a path, such as 'build/run'.")
    return os.fspath(path)


def check_paths(paths: object, name: str) -> list[str]:
    """Returns one path or several as a list. Raises an error for anything else."""
    if isinstance(paths, str | bytes) or not isinstance(paths, Iterable):
        paths = [paths]
    return [check_path(path, name) for path in paths]


@contextlib.contextmanager
def needs_extra(extra: str, feature: str) -> Iterator[None]:
    """Turns a failed import of an optional package into an `InputError`.

    Every `ImportError` counts, not only `ModuleNotFoundError`: importing a missing part of a
    namespace such as `backports` raises a plain `ImportError`.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == __package__:
            raise  # a defect of this package
        command = f"pip install 'keras-transformer-mt[{extra}]'"
        if (Path(__file__).resolve().parents[1] / "setup.cfg").exists():  # this is a clone
            command = f"pip install -e '.[{extra}]' -c constraints.txt"
        raise InputError(f"{feature} needs the extra {extra} ({error}). Run: {command}") from error
