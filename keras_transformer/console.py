"""Messages of a program to its user: warnings, progress and times on standard error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

COMMAND = "keras-transformer"


def warn(message: str) -> None:
    """Prints a warning on standard error, above a progress bar.

    Example:
    >>> import contextlib
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     warn("line 3 is empty.")
    Warning: line 3 is empty.

    Args:
        message: the problem, as a sentence.
    """
    say(f"Warning: {with_command_names(message)}")


def say(line: str) -> None:
    """Prints a line on standard error, above a progress bar.

    Example:
    >>> import contextlib
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     say("step 10 of 100")
    step 10 of 100

    Args:
        line: the text.
    """
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def with_command_names(text: str) -> str:
    """Replaces the scripts of bin/ by command names in the output of the console command.

    Example:
    >>> with_command_names("Run bin/train.py.")  # this program is not keras-transformer
    'Run bin/train.py.'

    Args:
        text: a message or a help.
    """
    if Path(sys.argv[0]).name != COMMAND:
        return text
    text = text.replace("bin/average_checkpoints.py", "bin/average.py")
    return re.sub(r"\bbin/(\w+)\.py", rf"{COMMAND} \1", text)


def duration(seconds: float) -> str:
    """Formats a time.

    Example:
    >>> duration(4.21), duration(48), duration(750), duration(11220)
    ('4.2 s', '48 s', '12.5 min', '3 h 07 min')

    Args:
        seconds: the time; values that are not finite are shown as they are.
    """
    if not 59.5 <= seconds < 1e9:
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

    Example:
    >>> with progress_bar(3, "sentences") as bar:
    ...     _ = bar.update(2)

    Args:
        total: number of items, or None if it is not known.
        unit: name of the items, in the plural.
        description: the activity.
        initial: number of items that were done before.
        bar_format: the parts of the bar, as in tqdm; None for all.
        is_shown: False for a bar that is not shown anywhere.
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
