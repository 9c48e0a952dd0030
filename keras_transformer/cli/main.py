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
from keras_transformer.cli import app
from keras_transformer.console import COMMAND

GROUPS = {
    "From text to a translator": ("prepare", "train", "average", "evaluate", "export"),
    "Translation": ("translate", "score"),
}
CORE = tuple(command for commands in GROUPS.values() for command in commands)


def command_modules() -> dict[str, str]:
    """Returns the module of every command, by the command's name."""
    extensions = {name: point.value for name, point in plugins.entry_points("commands").items()}
    return {**extensions, **{name: f"keras_transformer.cli.{name}" for name in CORE}}


def main() -> NoReturn:
    """Runs the command that the first argument names, and exits."""
    command, *options = sys.argv[1:] or [""]
    if command in command_modules():
        run(command, [sys.argv[0], *options])
    sys.exit(app.exit_code(lambda: _without_command(command)))


def run(command: str, argv: list[str] | None = None) -> NoReturn:
    """Runs a command and exits.

    Its flags are defined now and removed again at the end, so that one process can run several
    commands with flags of the same name.
    """

    def load_and_run() -> NoReturn:
        module = importlib.import_module(command_modules()[command])
        try:
            module.define_flags()
            app.run(module.main, sys.argv if argv is None else argv)
        finally:
            for flag in app.FLAGS.get_flags_for_module(module.__name__):
                delattr(app.FLAGS, flag.name)

    sys.exit(app.exit_code(load_and_run))


def _without_command(word: str) -> int:
    if word in ("--help", "-help", "-h", "-?", "--helpshort", "help"):
        print(_help())
        return 0
    if word == "--version":
        print(f"{COMMAND} {__version__}")
        return 0
    problem = f"{word!r} is not a command" if word else "A command is missing"
    near = difflib.get_close_matches(word.replace("-", "_"), command_modules(), n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}? " if near else ""
    print(f"error: {problem}. {hint}{COMMAND} --help lists them.", file=sys.stderr)
    return 2


def _help() -> str:
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
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)  # finding `module` would load its packages
    path = Path(spec.origin if spec and spec.origin else package).parent.joinpath(*names)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = path.read_bytes() if path.is_file() else b""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
