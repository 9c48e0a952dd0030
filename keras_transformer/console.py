"""Progress bars on the terminal."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def progress_bar(total: int | None, unit: str, description: str | None = None) -> tqdm[Any]:
    """Returns a progress bar with the time left, which is shown only on a terminal.

    Args:
        total: number of items, or None if it is not known.
        unit: name of the items, in the plural.
        description: the activity.
    """
    return tqdm(
        desc=description,
        total=total,
        unit=f" {unit}",
        unit_scale=total is None or total >= 10_000,
        disable=None,  # unless stderr is a terminal
        dynamic_ncols=True,
    )
