"""How every benchmark starts and fails: as the binaries do, by their own module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "bin"))  # last: some names are in both
import command_line


def run(main: Callable[[], int | None]) -> None:
    """Parses the flags, calls `main` and exits, with the codes of `command_line.run`."""
    command_line.run(lambda _: main(), needs_tensorflow=False)  # they load what they need
