"""The binaries run one after the other in a single process, which loads TensorFlow once.

Each is run as `__main__`, with its own flags and streams, in the folder it is called in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

_PROGRAM = """
import io, json, os, pathlib, runpy, sys, traceback

bin_dir = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(bin_dir))
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever writes there by itself is no answer
for line in sys.stdin:
    folder, name, arguments, text = json.loads(line)
    os.chdir(folder)
    path = str(bin_dir / f"{name}.py")
    before = set(pathlib.Path().rglob("*"))
    contents = (text.encode("latin-1"), b"", b"")
    streams = [io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in contents]
    old = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv, (sys.stdin, sys.stdout, sys.stderr) = [path, *arguments], streams
    try:
        runpy.run_path(path, run_name="__main__")
        code = None
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        traceback.print_exc()
        code = "exception"
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = old
    out, err = (stream.flush() or stream.buffer.getvalue().decode() for stream in streams[1:])
    left = sorted(map(str, set(pathlib.Path().rglob("*")) - before))
    print(json.dumps([code, out, err, left]), file=answers, flush=True)
"""


class Ended(NamedTuple):
    """The result of a binary."""

    code: Any  # exit code, or "exception" if it had none
    out: str
    err: str
    left: list[str]  # new files below the folder


class Driver:
    """The process; it ends with the block.

    Args:
        environment: environment variables, in addition to the current ones.
    """

    def __init__(self, **environment: str):
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(ROOT / "bin")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip

    def run(self, folder: Path, name: str, arguments: Sequence[str], text: str | bytes) -> Ended:
        """Runs `keras-transformer NAME` in a folder, with a text as its standard input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        data = text.encode() if isinstance(text, str) else text
        command = [str(folder), name, list(arguments), data.decode("latin-1")]
        self._process.stdin.write(f"{json.dumps(command)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._said.seek(0)
            raise AssertionError(f"bin/{name}.py ended the process: {self._said.read()}")
        return Ended(*json.loads(answer))

    def run_all(self, folder: Path, commands: Iterable[tuple[str, str, str]]) -> list[Ended]:
        """Runs binaries in turn, each of `(name, flags with spaces between them, text)`."""
        return [self.run(folder, name, flags.split(), text) for name, flags, text in commands]

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()
