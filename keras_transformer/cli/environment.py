"""Protects commands from the settings and the shell of the user.

Every program inherits environment variables, standard streams and signals from the user's shell.
`run` handles them in the same way for all commands:

* It ignores variables that configure Python, Keras or TensorFlow (`tf_import.set_variables` resets
  those of Keras and TensorFlow).
* Text on the standard streams is UTF-8 in every locale.
* If standard output is closed or full, the command fails with a one-line message. If standard error
  is closed or full, messages are lost. A closed stream is opened as the null device, so that no
  other file gets its number.
* Ctrl-C, SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that files are cleaned up. During an
  import, they end the process without a message.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from keras_transformer import tf_import
from keras_transformer.console import with_command_names
from keras_transformer.errors import InputError
from keras_transformer.runs.machine import stop_signals


def run(program: Callable[[], int | None]) -> NoReturn:
    """Calls a program and exits with its result.

    Exit codes:

    * the result of `program`, or 0
    * 1 after an `InputError`, whose message goes to stderr without a stack trace
    * 130 after Ctrl-C, SIGTERM or SIGHUP
    * 141 if standard output is a closed pipe, for example after `| head`

    Other exceptions are bugs. They print a stack trace.

    Args:
        program: a function without arguments. It may call `run` again.

    Example:
    >>> run(lambda: 3)
    Traceback (most recent call last):
    SystemExit: 3
    """
    _restart_python()
    _ignore_variables()
    _open_streams()
    with _interrupted_by_signals():
        sys.exit(_exit_code(program))


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # a second signal ends the process
        if _is_import(frame):
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(130)  # a library may catch an exception, and go on without a module
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)  # None: the handler was not set by Python


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None


def _exit_code(program: Callable[[], int | None]) -> int:
    try:
        try:
            code = program() or 0
        except SystemExit as ended:  # also --help, whose output may be a closed pipe
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
                code = 1
            else:
                code = int(ended.code or 0)
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {with_command_names(str(error))}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("\nerror: stopped by Ctrl-C, SIGTERM or SIGHUP before the end", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 141
    try:
        sys.stdout.flush()
    except (BrokenPipeError, InputError):
        # Otherwise, Python flushes again at exit and reports the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _restart_python() -> None:
    """Starts Python again if libraries do not work with its settings.

    TensorFlow needs paths in UTF-8, but Python uses another encoding in a few locales.
    tensorflow-text needs docstrings, but PYTHONOPTIMIZE=2 removes them.
    """
    restart = False
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        restart = True
    if sys.flags.optimize > 1 and os.environ.pop("PYTHONOPTIMIZE", None) is not None:
        restart = True
    if restart:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _ignore_variables() -> None:
    """Makes this process and its child processes ignore environment variables."""
    tf_import.set_variables()
    os.environ["MPLBACKEND"] = (
        "agg"  # commands only write image files; a notebook sets another backend
    )
    if not os.environ.get("TF_CONFIG", "{}").strip():
        del os.environ["TF_CONFIG"]  # TensorFlow would read an empty value as JSON
    if os.environ.pop("PYTHONWARNINGS", None) is not None:
        sys.warnoptions.clear()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", category)
        warnings.simplefilter("ignore", ResourceWarning)


def _open_streams() -> None:
    """Replaces the standard streams of the process, unless a caller (a test) has replaced them."""
    # A closed stream is opened in the wrong direction, so that using it still fails.
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # takes the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__ and not _is_ours(sys.stdout):
        sys.stdout = _text_stream(_StandardOutput(1, "w", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__ and not _is_ours(sys.stderr):
        sys.stderr = _text_stream(_StandardError(2, "w", closefd=False), sys.stderr, True)


class _StandardOutput(io.FileIO):
    """Reports a failed write to the user, because output is lost."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            is_closed = error.errno == errno.EBADF
            reason = "is closed" if is_closed else f"cannot be written ({error.strerror})"
            raise InputError(f"standard output {reason}.") from error


class _StandardError(io.FileIO):
    """Drops messages that cannot be written, because a lost message must not stop the command."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data).cast("B"))


def _is_ours(stream: Any) -> bool:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, _StandardOutput | _StandardError)


def _text_stream(raw: io.FileIO, before: Any, is_log: bool = False) -> io.TextIOWrapper:
    if before is not None:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8",
        # A path may contain invalid UTF-8. Python represents such bytes as surrogates.
        errors="backslashreplace" if is_log else "surrogateescape",
        line_buffering=is_log or bool(before and before.line_buffering),
        write_through=bool(before and before.write_through),
    )
