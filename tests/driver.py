"""Runs commands in this process, with their own streams, in the folder they are called in."""

import contextlib
import io
import logging as stdlib_logging
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from absl import logging

from keras_transformer.cli import main


class CommandResult(NamedTuple):
    """The result of a command."""

    code: Any  # exit code, or "exception" if it had none
    out: str
    err: str
    left: list[str]  # new files below the folder


class Driver:
    """Runs commands one after the other."""

    def run(
        self, folder: Path, name: str, arguments: Sequence[str], text: str | bytes
    ) -> CommandResult:
        """Runs a command in a folder, with a text as its standard input."""
        data = text.encode() if isinstance(text, str) else text
        stdin, out, err = (io.TextIOWrapper(io.BytesIO(part), "utf-8") for part in (data, b"", b""))
        before = set(folder.rglob("*"))
        with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "argv", ["keras-transformer", name, *arguments])
            patch.setattr(logging.get_absl_handler().python_handler, "stream", err)
            # TensorFlow warns when a process traces a function often, as many models do.
            patch.setattr(stdlib_logging.getLogger("tensorflow"), "disabled", True)
            try:
                main.main()
            except SystemExit as ended:
                code: Any = ended.code
            except BaseException:
                traceback.print_exc()
                code = "exception"
            for stream in (out, err):
                stream.flush()
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        left = sorted(str(path.relative_to(folder)) for path in {*folder.rglob("*")} - before)
        return CommandResult(code, *texts, left)

    def run_all(
        self, folder: Path, commands: Iterable[tuple[str, str, str]]
    ) -> list[CommandResult]:
        """Runs commands in turn, each of `(name, flags with spaces between them, text)`."""
        return [self.run(folder, name, flags.split(), text) for name, flags, text in commands]
