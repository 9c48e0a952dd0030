"""Messages of a program to its user: warnings, progress and times on standard error."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

COMMAND = "keras-transformer"
_LOCK = threading.RLock()  # garbage collection may enter a block of its thread again


def warn(message: str) -> None:
    """Prints a warning, a sentence, on standard error, above a progress bar."""
    info(f"Warning: {message}")


def info(line: str) -> None:
    """Prints a line on standard error, above a progress bar."""
    from tqdm import tqdm

    with contextlib.suppress(OSError):  # a full disk: the work goes on
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


def discard_native_log() -> None:
    """Discards what is written to the process's standard error from now on."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)


@contextlib.contextmanager
def without_native_log() -> Iterator[None]:
    """Discards the logs of C++ libraries in a block.

    TensorFlow logs before a level has an effect, and LiteRT has no setting for Python.
    """
    with _LOCK:  # two threads would restore each other's streams
        stderr = os.dup(2)
        discard_native_log()
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def duration(seconds: float) -> str:
    """Formats a time, such as "4.2 s", "12.5 min" or "3 h 07 min"."""
    if not 60 <= seconds < math.inf:  # True for NaN, too
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds // 3600:,.0f} h {seconds % 3600 // 60:02.0f} min"


def progress_bar(
    total: int | None,
    unit: str,
    description: str | None = None,
    *,
    is_shown: bool = True,
    **options: Any,
) -> tqdm[Any]:
    """Returns a progress bar with the time left, which is shown only on a terminal."""
    from tqdm import tqdm

    can_draw = is_shown and os.environ.get("TERM") != "dumb"
    options = {"unit_scale": total is None or total >= 10_000, **options}
    return tqdm(
        desc=description,
        total=total,
        unit=f" {unit}",
        disable=None if can_draw else True,  # None: unless stderr is a terminal
        dynamic_ncols=True,
        **options,
    )
