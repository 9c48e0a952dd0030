"""The console command `keras-transformer COMMAND --flag=value ...`.

The commands of the core are the modules of this folder; extensions add theirs by entry points.
Only the module of the command that runs is loaded.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import NoReturn

from keras_transformer import __version__, plugins
from keras_transformer.cli import environment
from keras_transformer.console import COMMAND

GROUPS = {
    "From text to a translator": ("prepare", "train", "average", "evaluate", "export"),
    "Translation": ("translate", "translate_corpus", "score"),
}
CORE = tuple(command for commands in GROUPS.values() for command in commands)


def command_modules() -> dict[str, str]:
    """Returns the module of every command, by the command's name."""
    extensions = {name: point.value for name, point in plugins.entry_points("commands").items()}
    return {**extensions, **{name: f"keras_transformer.cli.{name}" for name in CORE}}


def main() -> NoReturn:
    """Runs the command that the first argument names, and exits."""
    environment.run(_main)


def run(command: str, argv: list[str] | None = None) -> NoReturn:
    """Runs a command and exits.

    Args:
        command: a key of `command_modules()`.
        argv: the program's name and the flags; `sys.argv` if None, as for the scripts of bin/.
    """
    environment.run(lambda: _run(command, sys.argv if argv is None else argv))


def _main() -> int:
    command, *options = sys.argv[1:] or [""]
    if command in ("--help", "-help", "-h", "-?", "--helpshort", "help"):
        print(_help())
        return 0
    if command == "--version":
        print(f"{COMMAND} {__version__}")
        return 0
    if command in command_modules():
        _run(command, [sys.argv[0], *options])
    near = difflib.get_close_matches(command.replace("-", "_"), command_modules(), n=1, cutoff=0.5)
    print(
        f"error: {f'{command!r} is not a command' if command else 'A command is missing'}. "
        f"{f'Did you mean {near[0]}? ' if near else ''}{COMMAND} --help lists them.",
        file=sys.stderr,
    )
    return 2


def _run(command: str, argv: list[str]) -> NoReturn:
    from keras_transformer.cli import app  # late: signals are handled by now

    with app.hard_dependencies():
        module = importlib.import_module(command_modules()[command])
    app.run_command(module, argv)


def _help() -> str:
    from keras_transformer.cli import app

    lines = [
        "Trains, evaluates and serves Transformers that translate.",
        "",
        "Usage:",
        f"    {COMMAND} COMMAND --flag=value ...",
        f"    {COMMAND} COMMAND --help",
    ]
    modules = command_modules()
    extensions = tuple(name for name in modules if name not in CORE)
    for group, commands in {**GROUPS, "Extensions": extensions}.items():
        lines += ["", f"{group}:"]
        lines += [f"    {command:<21}{_summary(modules[command])}" for command in commands]
    folders = ", ".join(f"{app.data_folder(name)}" for name in ("recipes", "deploy"))
    return "\n".join([*lines, "", f"Recipes and files for deployment: {folders}"])


def _summary(module: str) -> str:
    """Returns the first line of a module's docstring. The module is not loaded."""
    spec = importlib.util.find_spec(module)
    source = Path(spec.origin).read_bytes() if spec and spec.origin else b""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
