"""The console command `keras-transformer COMMAND --flag=value ...`.

Each command is the module of this folder that has its name. Only that module is loaded.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import sys
from pathlib import Path
from typing import NoReturn

from keras_transformer import __version__
from keras_transformer.cli import environment
from keras_transformer.console import COMMAND

GROUPS = {
    "From text to a translator": ("prepare", "train", "average", "evaluate", "export", "convert"),
    "Translation": ("translate", "translate_corpus", "score", "serve", "demo"),
    "Pictures and reports": ("report", "visualize"),
    "The paper's experiments": ("recipe", "sweep", "baseline"),
    "Parsing": ("prepare_trees", "parse", "score_trees"),
    "Corpus and maintenance": ("phrasebook",),
}
COMMANDS = tuple(command for commands in GROUPS.values() for command in commands)


def main() -> NoReturn:
    """Runs the command that the first argument names, and exits."""
    environment.run(_main)


def run(command: str, argv: list[str] | None = None) -> NoReturn:
    """Runs a command and exits.

    Args:
        command: one of `COMMANDS`.
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
    if command in COMMANDS:
        _run(command, [sys.argv[0], *options])
    near = difflib.get_close_matches(command.replace("-", "_"), COMMANDS, n=1, cutoff=0.5)
    print(
        f"error: {f'{command!r} is not a command' if command else 'A command is missing'}. "
        f"{f'Did you mean {near[0]}? ' if near else ''}{COMMAND} --help lists them.",
        file=sys.stderr,
    )
    return 2


def _run(command: str, argv: list[str]) -> NoReturn:
    from keras_transformer.cli import app  # late: signals are handled by now

    with app.hard_dependencies():
        module = importlib.import_module(f"keras_transformer.cli.{command}")
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
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"    {command:<21}{_summary(command)}" for command in commands]
    folders = ", ".join(f"{app.data_folder(name)}" for name in ("recipes", "deploy"))
    return "\n".join([*lines, "", f"Recipes and files for deployment: {folders}"])


def _summary(command: str) -> str:
    """Returns the first line of a command's docstring. The module is not loaded."""
    source = Path(__file__).with_name(f"{command}.py").read_bytes()
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
