"""How every benchmark starts and fails: as the binaries do, but with all that absl has of flags."""

from __future__ import annotations

import sys
from collections.abc import Callable

from absl import app

from keras_transformer.errors import InputError


def run(main: Callable[[], int | None]) -> None:
    """Parses the flags, calls `main` and exits with what it returns, or 0.

    Exit codes: 1 after an `InputError`, whose message goes to stderr without a stack trace, and
    for an argument that is no flag, as the second name in `--sizes=tiny base`; 130 after Ctrl-C.
    """

    def guarded(argv: list[str]) -> int:
        try:
            if argv[1:]:
                raise InputError(
                    f"nothing takes {argv[1]!r}; expected --name=value, and where that is several "
                    "commas between them, no spaces"
                )
            return main() or 0
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stopped by Ctrl-C before the end", file=sys.stderr)
            return 130

    app.run(guarded)
