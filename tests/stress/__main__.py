"""Runs a stress test: long runs that are not part of the normal tests.

    python -m tests.stress kill --kills=30
    python -m tests.stress kill --help

Tests:

* exactness: the search, compared with CTranslate2 and with slower computations
* fuzz: malformed requests to an export
* gateway: a server with more models than its memory holds
* kill: training that is killed again and again
* server_load: a server under load, under overload and during version changes

Each test prints one JSON object. The exit code is 1 if a check fails.
"""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    """Runs the test named by the first argument, with the other arguments."""
    names = sorted({path.stem for path in FOLDER.glob("[a-z]*")})
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"{(__doc__ or '').strip()}\n", file=sys.stderr)
        sys.exit(f"error: name one of {', '.join(names)}")
    sys.path.append(str(FOLDER.parents[1] / "benchmarks"))
    name = sys.argv.pop(1)
    runpy.run_module(f"tests.stress.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
