"""How every command starts, prints its help, and fails.

A program defines its flags and ends with `app.run(main)`. The program's docstring and its
flags are its `--help`:

    from absl import flags

    from keras_transformer.cli import app, config_flags

    config_flags.define_path_flags("data_dir", "run_dir", required=True)
    config_flags.define_config_flags("preset", "max_steps", "seed")
    flags.DEFINE_boolean("lowercase", False, "score in lower case")

    def main() -> None:
        app.load_tensorflow()
        from keras_transformer.training import training_run  # late: --help stays quick
        training_run.train(flags.FLAGS.data_dir, settings=config_flags.config_settings())

    if __name__ == "__main__":
        app.run(main)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from keras_transformer.errors import InputError, install_command
from keras_transformer.tf_import import load_tensorflow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is loaded


@contextlib.contextmanager
def hard_dependencies() -> Iterator[None]:
    """Exits with one sentence where a package is missing that every installation has."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "keras_transformer"):
            raise  # a defect of this package
        install = install_command()
        quickstart = "run bin/quickstart once and use .venv/bin/python, or "
        sys.exit(
            f"error: {package} is not installed for {sys.executable}; "
            f"{quickstart if ' -e ' in install else ''}run: {install}"
        )


with hard_dependencies():
    from absl import app as absl_app
    from absl import flags
    from absl import logging as absl_logging

    from keras_transformer.cli import config_flags

__all__ = [
    "data_folder",
    "hard_dependencies",
    "load_tensorflow",
    "read_input",
    "refuse",
    "run",
    "run_command",
]

FLAGS = flags.FLAGS
CONSOLE_COMMAND = "keras-transformer"


def run_command(command: ModuleType, argv: list[str]) -> NoReturn:
    """Runs a module of `keras_transformer.cli` and exits.

    The flags are defined now and removed again at the end, so that one process can run several
    commands with flags of the same name.

    Args:
        command: has a docstring, `define_flags()` and `main()`.
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

    Exit codes: what `main` returns, or 0; 1 after an `InputError`, whose message
    goes to stderr without a stack trace, or a missing package; 2 for a command line that cannot
    be read; 130 after Ctrl-C, or a SIGTERM that ended training with a checkpoint; 141
    when the reader of standard output is gone, as for any program in a pipe. Other
    exceptions are defects and keep their stack trace.

    Args:
        main: its module has the docstring and has defined the flags.
        argv: the program's name and the flags; `sys.argv` if None.
    """
    module = main.__module__

    def guarded(_: list[str]) -> int:
        try:
            with hard_dependencies():
                code = main()
            sys.stdout.flush()  # a broken pipe shows here, not while Python shuts down
        except InputError as error:
            print(f"error: {_in_console(str(error))}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nerror: stopped by Ctrl-C or SIGTERM before the end", file=sys.stderr)
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return code or 0

    absl_app.run(guarded, argv, flags_parser=lambda argv: _parse(argv, module))
    raise AssertionError("absl's run exits")


def refuse(names: Iterable[str], reason: str) -> None:
    """Raises `InputError` for the first of these flags that was given: it would do nothing.

    Args:
        names: of flags.
        reason: why, and what is expected, as in "without --tfds; expected both, or neither".
    """
    for name in names:
        if FLAGS[name].present:
            raise InputError(f"--{name} has no effect {reason}")


def read_input(path: str | None) -> bytes:
    """Returns what is in a file, or standard input where there is no path.

    Raises:
        InputError: where it cannot be read.
    """
    if path is None:
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); expected a text file"
        ) from error


def data_folder(name: str) -> Path:
    """Returns the folder `recipes` or `deploy`: inside an installed package, beside it in a clone.

    Example: `data_folder("recipes") / "multi30k_en_de" / "recipe.json"`
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def _parse(argv: list[str], module: str) -> list[str]:
    """Parses the command line; prints help or one sentence and exits where it ends there."""
    options = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    if {"--help", "-help", "-h", "-?", "--helpshort"} & set(options):
        print(_help(module))
        sys.exit(0)
    try:
        rest = FLAGS(argv)
        if len(rest) > 1:
            raise flags.Error(f"{rest[1]!r} is no flag; expected --name=value")
        _refuse_empty(module)
    except (flags.Error, ValueError) as error:  # ValueError: --noflag=value
        message = str(error)
        if message.endswith(_MISSING):  # "flag --x=None: Flag --x must have …"
            message = f"--{message.split('=')[0].partition('--')[2]} is missing"
        print(f"error: {message.rstrip('.')}; --help shows the flags", file=sys.stderr)
        sys.exit(2)
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(message)s"))
    if FLAGS["verbosity"].using_default_value:
        absl_logging.set_verbosity(absl_logging.WARNING)  # the libraries'; absl would take INFO
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    return rest


def _key_flags(module: str) -> list[flags.Flag]:
    """Returns the flags that a module has defined, in order."""
    # absl calls the main module by the path of its file.
    return FLAGS.get_key_flags_for_module(sys.argv[0] if module == "__main__" else module)


def _refuse_empty(module: str) -> None:
    """Raises `flags.Error` for a flag without a value, as an unset variable of a shell leaves it.

    Fields of the configuration may be empty; what they expect is said where they are read.
    """
    for flag in _key_flags(module):
        if flag.using_default_value or flag.name == "set" or flag.name in config_flags.FIELDS:
            continue
        values = flag.value if isinstance(flag.value, list) else [flag.value]
        is_list = isinstance(flag.value, list) and not isinstance(flag, flags.MultiFlag)
        if is_list or flag.name in config_flags.PATHS:  # several, with commas between
            values = [part for value in values for part in str(value).split(",")]
        if not values or "" in values:
            raise flags.Error(f"--{flag.name} has an empty value; expected one, or no such flag")


_MISSING = "must have a value other than None."  # how absl words a required flag's absence


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
        filled = textwrap.fill(_in_console(text), 76, break_on_hyphens=False)
        lines.append(start + filled.replace("\n", "\n" + indent))
    return _in_console("\n".join(lines))


def _in_console(text: str) -> str:
    """Calls scripts of bin/ by their names as commands, in what the console command prints."""
    if Path(sys.argv[0]).name != CONSOLE_COMMAND:
        return text
    text = text.replace("bin/average_checkpoints.py", "bin/average.py")
    return re.sub(r"\bbin/(\w+)\.py", rf"{CONSOLE_COMMAND} \1", text)
