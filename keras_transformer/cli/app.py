"""The start, the help and the errors of every command.

A command is a module with a docstring, `define_flags()` and `main()`. The docstring and the flags
are its `--help`, which is fast because only `main` loads TensorFlow, by `app.load_tensorflow()`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from absl import app as absl_app
from absl import flags
from absl import logging as absl_logging

from keras_transformer import console, plugins, tf_import
from keras_transformer.cli import config_flags
from keras_transformer.errors import InputError
from keras_transformer.runs.machine import signal_handlers

FLAGS = flags.FLAGS
load_tensorflow = tf_import.load_tensorflow


def run(main: Callable[[], int | None], argv: list[str] | None = None) -> NoReturn:
    """Parses the flags, calls `main` and exits.

    Exit codes:

    * the result of `main`, or 0
    * 1 after an `InputError`, or for a full disk, in one line on stderr
    * 2 if the command line is invalid
    * 130 after Ctrl-C, SIGTERM or SIGHUP
    * 141 if standard output is a closed pipe, for example after `| head`

    Other exceptions are bugs. They print a stack trace.
    """

    def program() -> None:
        parse = functools.partial(_parse, module=main.__module__)
        absl_app.run(lambda _: _with_local_paths(main), argv, flags_parser=parse)

    sys.exit(exit_code(program))


def _with_local_paths(main: Callable[[], int | None]) -> int | None:
    """Calls `main` with paths of this machine instead of addresses of files and of output.

    Addresses of models and data stay, because the machines of a cluster copy them.
    """
    with contextlib.ExitStack() as stack:
        for flag in _key_flags(main.__module__):
            value: Any = flag.value
            if "://" not in str(value):
                continue
            store = plugins.find("stores", "storage")
            if flag.name in ("output", "output_dir"):
                flag.value = stack.enter_context(store.upload(value))
            elif flag.name in config_flags.TEXTS:
                is_list = isinstance(value, list)
                flag.value = [*map(store.copy, value)] if is_list else store.copy(value)
            elif flag.name not in config_flags.SHARED and store.ADDRESS.match(str(value)):
                raise InputError(f"--{flag.name} must be a path of this machine.")
        return main()


def exit_code(program: Callable[[], int | None]) -> int:
    """Calls a program, and returns the exit code of the process."""
    tf_import.set_variables()
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        # A path may contain invalid UTF-8. Python represents such bytes as surrogates.
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        if isinstance(stream, io.TextIOWrapper):  # a notebook has others, and a shell can close it
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        with signal_handlers(_interrupt):  # KeyboardInterrupt lets commands clean up files
            try:
                code = program() or 0
            except SystemExit as ended:  # --help also exits here
                code = int(ended.code or 0)
            print(end="", flush=True)
            return code
    except InputError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("stopped by Ctrl-C, SIGTERM or SIGHUP before the end", 130)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
            raise
        # Otherwise, Python flushes standard output again at exit, and reports the error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:
            return 141
        return _fail(f"{error.filename or 'a file or standard output'}: {error.strerror}.")


def _fail(message: str, code: int = 1) -> int:
    console.info(f"error: {message}")
    return code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process
    raise KeyboardInterrupt


def load_engine(model_dir: str) -> None:
    """Loads TensorFlow if the model needs it."""
    from keras_transformer.inference import loading  # slow to import

    model_dir = plugins.resolve(model_dir)
    with console.without_native_log():  # an exporter may import TensorFlow
        loader, _ = loading.find_loader(model_dir)
    if loader.needs_tensorflow:
        load_tensorflow()


def reject_unused(names: Iterable[str], reason: str) -> None:
    """Raises an error for the first of these flags that was given but would have no effect."""
    for name in names:
        if FLAGS[name].present:
            raise InputError(f"--{name} does nothing {reason}")


def exclude(one: str, *others: str) -> None:
    """Raises `InputError` if a flag was given together with one of the others."""
    given = [name for name in (one, *others) if FLAGS[name].present and FLAGS[name].value]
    if given[:1] == [one] and len(given) > 1:
        raise InputError(f"--{one} and --{given[1]}: both given. Remove one of them.")


def read_input(path: str | None) -> bytes:
    """Returns the content of a file, or of standard input if the path is None."""
    try:
        return sys.stdin.buffer.read() if path is None else Path(path).read_bytes()
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise InputError(f"{path or 'standard input'} {reason}.") from error


def data_folder(name: str) -> Path:
    """Returns the folder `recipes` or `deploy`, of an installed package or of a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def _parse(argv: list[str], module: str) -> list[str]:
    """Parses the command line. Prints help or an error, and exits, if there is nothing to run."""
    if {"--help", "-help", "-h", "-?", "--helpshort"} & set(argv):
        print(_help(module))
        sys.exit(0)
    try:
        rest = FLAGS(argv)
        if len(rest) > 1:
            raise flags.Error(f"{rest[1]!r} is not a flag. Flags have the form --name=value.")
        for flag in _key_flags(module):
            # A shell with an unset variable gives an empty value. Settings may be empty.
            if flag.present and flag.value in ("", [""]) and flag.name not in config_flags.FIELDS:
                raise flags.Error(f"--{flag.name} is empty. Give it a value, or remove it.")
    except (flags.Error, ValueError) as error:  # ValueError: --noflag=value
        first = str(error).partition("\n")[0]  # absl has a line for each flag
        sys.exit(_fail(f"{first.rstrip(' .?')}. --help shows the flags.", 2))
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(message)s"))
    if FLAGS["verbosity"].using_default_value:
        # The level of the libraries. absl would use INFO.
        absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    return rest


def given_flags(module: str) -> list[str]:
    """Returns the flags of the command line that a module has defined, each as --name=value."""
    given = (flag.serialize() for flag in _key_flags(module) if flag.present)
    return [line for lines in given for line in lines.splitlines()]  # a repeated flag has several


def _key_flags(module: str) -> list[flags.Flag]:
    """Returns the flags that a module has defined, in order."""
    # absl calls the main module by the path of its file.
    return FLAGS.get_key_flags_for_module(sys.argv[0] if module == "__main__" else module)


def _help(module: str) -> str:
    """Returns the module's docstring and its own flags, a line or two for each."""
    lines = [(sys.modules[module].__doc__ or "").strip(), "", "Flags:"]
    for flag in _key_flags(module):
        name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
        text = (flag.help or "").split(";\n")[0].replace("\n", " ")  # absl adds a line to lists
        required = f"Flag --{flag.name} must have a value other than None."  # absl's message
        if any(validator.message == required for validator in flag.validators):
            text += " (required)"
        elif flag.default not in (None, False, []):
            text += f" (default: {flag.default})"
        start = f"  {name:<21} "
        lines.append(textwrap.fill(text, 100, initial_indent=start, subsequent_indent=" " * 24))
    return "\n".join(lines)
