"""Messages of a program to its user: warnings, progress and times on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

COMMAND = "keras-transformer"


def warn(message: str) -> None:
    """Prints a warning, a sentence, on standard error, above a progress bar."""
    say(f"Warning: {message}")


def say(line: str) -> None:
    """Prints a line on standard error, above a progress bar."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """Formats a time, such as "4.2 s", "12.5 min" or "3 h 07 min"."""
    if not 59.5 <= seconds < 1e9:  # also for infinity and NaN
        return f"{seconds:.1f} s" if 0 <= seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 3597:
        return f"{seconds / 60:.1f} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def progress_bar(
    total: int | None,
    unit: str,
    description: str | None = None,
    *,
    initial: int = 0,
    bar_format: str | None = None,
    is_shown: bool = True,
) -> tqdm[Any]:
    """Returns a progress bar with the time left, which is shown only on a terminal.

    Args:
        total: number of items, or None if it is not known.
        bar_format: the parts of the bar, as in tqdm; None for all.
    """
    from tqdm import tqdm

    can_draw = is_shown and os.environ.get("TERM") != "dumb"
    return tqdm(
        desc=description,
        total=total,
        initial=initial,
        unit=f" {unit}",
        unit_scale=bar_format is None and (total is None or total >= 10_000),
        bar_format=bar_format,
        disable=None if can_draw else True,  # None: unless stderr is a terminal
        dynamic_ncols=True,
    )
