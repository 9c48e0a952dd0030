"""Protects commands from the settings and the shell of the user.

Environment variables, standard streams and signals of the user's shell reach every program. `run`
decides for all commands which of them have an effect:

* Variables that change Python, Keras or TensorFlow for other work have none
  (`tf_import.set_variables` has those of Keras and TensorFlow).
* Text on the standard streams is UTF-8 in every locale.
* A closed or full standard output is an error of one sentence. A closed or full standard error only
  loses messages. No file that is opened later takes the place of a closed stream.
* Ctrl-C, SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that files are cleaned up.
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
    * 141 if the reader of standard output has ended, as in `| head`

    Other exceptions are defects and print a stack trace.

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
def ended_by_signals() -> Iterator[None]:
    """Lets a signal end the process immediately and silently, while the block runs.

    For imports: a library that catches the `KeyboardInterrupt` of Ctrl-C would go on without one of
    its modules, or print a stack trace.

    Example:
    >>> with ended_by_signals():
    ...     signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    True
    """
    with _handled_by(signal.SIG_DFL):
        yield


@contextlib.contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)  # None: not set by Python


def _interrupted_by_signals() -> contextlib.AbstractContextManager[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # a second one ends the process
        raise KeyboardInterrupt

    return _handled_by(interrupt)


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
        # Python would try again at its end, and report it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _restart_python() -> None:
    """Starts Python again if libraries do not work with its settings.

    TensorFlow takes only UTF-8 paths, which Python uses itself in most locales. tensorflow-text
    needs docstrings, which PYTHONOPTIMIZE=2 removes.
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
    """Removes the effect of environment variables, also on child processes."""
    tf_import.set_variables()
    os.environ["MPLBACKEND"] = "agg"  # pictures are files; a notebook sets its own backend
    if not os.environ.get("TF_CONFIG", "{}").strip():
        del os.environ["TF_CONFIG"]  # TensorFlow would read an empty value as JSON
    if os.environ.pop("PYTHONWARNINGS", None) is not None:
        sys.warnoptions.clear()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", category)
        warnings.simplefilter("ignore", ResourceWarning)


def _open_streams() -> None:
    """Replaces the standard streams of the process. Streams of a caller, as in a test, stay."""
    # Opened in the wrong direction: using the stream fails, as if it were closed.
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
    """Drops messages that cannot be written, because they must not end the work."""

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
        # A path may have bytes that are not UTF-8. Python shows them as surrogates.
        errors="backslashreplace" if is_log else "surrogateescape",
        line_buffering=is_log or bool(before and before.line_buffering),
        write_through=bool(before and before.write_through),
    )
