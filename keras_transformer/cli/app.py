"""The start, the help and the errors of every command.

A program defines its flags and ends with `app.run(main)`. The program's docstring and its
flags are its `--help`:

    from absl import flags

    from keras_transformer.cli import app, config_flags

    config_flags.define_path_flags("data_dir", "run_dir", required=True)
    config_flags.define_config_flags("preset", "max_steps", "seed")
    flags.DEFINE_boolean("lowercase", False, "score in lower case")

    def main() -> None:
        app.load_tensorflow()
        from keras_transformer.training import training_run  # late, so that --help is fast
        training_run.train(flags.FLAGS.data_dir, settings=config_flags.config_settings())

    if __name__ == "__main__":
        app.run(main)
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from keras_transformer import tf_import
from keras_transformer.cli import environment
from keras_transformer.console import with_command_names
from keras_transformer.errors import InputError, install_command

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is loaded


@contextlib.contextmanager
def hard_dependencies() -> Iterator[None]:
    """Exits with one sentence if a package is missing that every installation has."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "keras_transformer"):
            raise  # a defect of this package
        install = install_command()
        is_clone = " -e " in install
        remedy = "Run bin/quickstart once and use .venv/bin/python, or run" if is_clone else "Run"
        sys.exit(f"error: {package} is not installed for {sys.executable}. {remedy}: {install}")


with hard_dependencies():
    from absl import app as absl_app
    from absl import flags
    from absl import logging as absl_logging

    from keras_transformer.cli import config_flags

__all__ = [
    "data_folder",
    "hard_dependencies",
    "load_engine",
    "load_tensorflow",
    "read_input",
    "refuse",
    "run",
    "run_command",
]

FLAGS = flags.FLAGS


def run_command(command: ModuleType, argv: list[str]) -> NoReturn:
    """Runs a module of `keras_transformer.cli` and exits.

    The flags are defined now and removed again at the end, so that one process can run several
    commands with flags of the same name.

    Args:
        command: a module with a docstring, `define_flags()` and `main()`.
        argv: the program's name and the flags.
    """
    try:
        command.define_flags()
        run(command.main, argv)
    finally:
        for flag in FLAGS.get_flags_for_module(command.__name__):
            delattr(FLAGS, flag.name)


def run(main: Callable[[], int | None], argv: list[str] | None = None) -> NoReturn:
    """Parses the flags, calls `main` and exits.

    `environment.run` lists the exit codes. In addition, the code is 1 if a package is missing, and
    2 if the command line is invalid.

    Args:
        main: a function of the module that has the docstring and has defined the flags.
        argv: name of the program and flags; `sys.argv` if None.
    """
    module = main.__module__

    def guarded(_: list[str]) -> int | None:
        with hard_dependencies():
            return main()

    atexit.register(_discard_last_log)
    environment.run(
        lambda: absl_app.run(guarded, argv, flags_parser=lambda argv: _parse(argv, module))
    )


def _discard_last_log() -> None:
    """Discards what LiteRT's C++ library logs when it is unloaded, after Python has ended."""
    if "ai_edge_litert" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def load_tensorflow() -> None:
    """Loads TensorFlow quietly."""
    tf_import.load_tensorflow()


def load_engine(model_dir: str | None) -> None:
    """Loads TensorFlow, unless the model is a LiteRT model or on a server (None)."""
    from keras_transformer.inference import loading  # late, so that --help is fast

    if model_dir is not None and loading.loader_of(model_dir).needs_tensorflow:
        load_tensorflow()


def refuse(names: Iterable[str], reason: str) -> None:
    """Raises `InputError` for the first of these flags that was given but would have no effect.

    Args:
        names: names of flags.
        reason: end of the message, such as "without --tfds. Give both, or neither."
    """
    for name in names:
        if FLAGS[name].present:
            raise InputError(f"--{name} does nothing {reason}")


def read_input(path: str | None) -> bytes:
    """Returns the content of a file, or of standard input if the path is None.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        return sys.stdin.buffer.read() if path is None else Path(path).read_bytes()
    except OSError as error:
        is_closed = path is None and error.errno == errno.EBADF
        reason = "is closed" if is_closed else f"cannot be read ({error.strerror})"
        raise InputError(f"{path or 'standard input'} {reason}.") from error


def data_folder(name: str) -> Path:
    """Returns the folder `recipes` or `deploy`, of an installed package or of a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def _parse(argv: list[str], module: str) -> list[str]:
    """Parses the command line. Prints help or an error, and exits, if there is nothing to run."""
    options = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    if {"--help", "-help", "-h", "-?", "--helpshort"} & set(options):
        print(_help(module))
        sys.exit(0)
    for flag in _key_flags(module):
        flag.allow_overwrite = False  # the last of two values would win silently
    try:
        rest = FLAGS(argv)
        if len(rest) > 1:
            raise flags.Error(f"{rest[1]!r} is not a flag. Flags have the form --name=value.")
        _reject_empty(module)
    except flags.UnrecognizedFlagError as error:
        names = [flag.name for flag in _key_flags(module)]
        near = difflib.get_close_matches(error.flagname.replace("-", "_"), names, n=1, cutoff=0.5)
        hint = f" Did you mean --{near[0]}?" if near else ""
        print(
            f"error: --{error.flagname} is not a flag.{hint} --help shows the flags.",
            file=sys.stderr,
        )
        sys.exit(2)
    except (flags.Error, ValueError) as error:  # ValueError: --noflag=value
        message = str(error)
        if message.endswith(_MISSING):  # "flag --x=None: Flag --x must have …"
            message = f"--{message.split('=')[0].partition('--')[2]} is missing"
        if ": already defined as " in message:
            name, _, value = message.removeprefix("flag --").partition(": already defined as ")
            message = f"--{name} repeats a flag, which was {value} before. Remove one of them"
        print(f"error: {message.rstrip('.')}. --help shows the flags.", file=sys.stderr)
        sys.exit(2)
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(message)s"))
    if FLAGS["verbosity"].using_default_value:
        absl_logging.set_verbosity(
            absl_logging.WARNING
        )  # level of the libraries; absl would use INFO
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    return rest


def _key_flags(module: str) -> list[flags.Flag]:
    """Returns the flags that a module has defined, in order."""
    # absl calls the main module by the path of its file.
    return FLAGS.get_key_flags_for_module(sys.argv[0] if module == "__main__" else module)


def _reject_empty(module: str) -> None:
    """Raises `flags.Error` for a flag with an empty value, such as an unset variable of a shell.

    Fields of the configuration may be empty. Their values are checked later.
    """
    for flag in _key_flags(module):
        if flag.using_default_value or flag.name == "set" or flag.name in config_flags.FIELDS:
            continue
        values = flag.value if isinstance(flag.value, list) else [flag.value]
        is_list = isinstance(flag.value, list) and not isinstance(flag, flags.MultiFlag)
        if is_list or flag.name in config_flags.PATHS:  # several, separated by commas
            values = [part for value in values for part in str(value).split(",")]
        if not values or "" in values:
            raise flags.Error(f"--{flag.name} is empty. Give it a value, or remove it.")


_MISSING = "must have a value other than None."  # message of absl for a missing required flag


def _help(module: str) -> str:
    """Returns the module's docstring and its own flags, a line or two for each."""
    lines = [(sys.modules[module].__doc__ or "").strip(), "", "Flags:"]
    for flag in _key_flags(module):
        name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
        text = (flag.help or "").split(";\n")[0].replace("\n", " ")  # absl adds a line to lists
        if any(validator.message.endswith(_MISSING) for validator in flag.validators):
            text += " (required)"
        elif flag.default not in (None, False, []):
            text += f" (default: {flag.default})"
        indent = " " * 24
        start = f"  {name:<21} " if len(name) <= 21 else f"  {name}\n{indent}"
        filled = textwrap.fill(with_command_names(text), 76, break_on_hyphens=False)
        lines.append(start + filled.replace("\n", "\n" + indent))
    return with_command_names("\n".join(lines))
