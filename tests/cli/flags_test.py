"""A flag means the same in every command: the same help, type and default."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import partial
from pathlib import Path

import pytest
from absl import flags

from keras_transformer import cli

COMMANDS = sorted(
    path.stem
    for path in Path(inspect.getfile(cli)).parent.glob("*.py")
    if "def define_flags" in path.read_text("utf-8")
)
Table = dict[str, dict[str, tuple[str, str, str]]]

# Flags that differ between commands, with the reason.
BY_HELP = {
    "input": "a conversion reads a model, other commands read text",
    "model_dir": "each command names the kinds of models that it takes",
    "output": "a conversion writes a run, other commands write text",
}
# All types of a flag accept the same spelling on the command line.
BY_TYPE = {
    "model_dir": "the demo compares two models",
    "num_microbatches": "a recipe needs the number, training passes on the text",
    "reference": "an evaluation accepts several references",
    "seed": "preparation needs the number, training passes on the text",
    "server": "the demo compares two models",
    "source": "preparation takes several files",
    "target": "preparation takes several files",
    "valid_source": "preparation takes several files",
    "valid_target": "preparation takes several files",
}
BY_DEFAULT = {
    "format": "an export, scores and translations have different formats",
    "max_tokens": "a tree has more symbols than a sentence has tokens",
    "seed": "training takes the default of its configuration",
}


@pytest.fixture(scope="module")
def table() -> Table:
    """The help, type and default of every flag, by its name and the command."""
    found: Table = {}
    for command in COMMANDS:
        values = flags.FlagValues()
        module = importlib.import_module(f"keras_transformer.cli.{command}")
        with pytest.MonkeyPatch.context() as patch:
            # The flags of a command would collide with those of the others.
            for name in filter(re.compile("DEFINE_").match, dir(flags)):
                patch.setattr(flags, name, partial(getattr(flags, name), flag_values=values))
            module.define_flags()
        for name in values:
            flag = values[name]
            kind = flag.flag_type().replace("string enum", "string")
            # Absl adds the choices before the help, and a line after the help of repeatable flags.
            text = flag.help.split(">: ")[-1].split(";\n")[0]
            found.setdefault(name, {})[command] = (text, kind, str(flag.default or None))
    return found


@pytest.mark.parametrize(("index", "exceptions"), [(0, BY_HELP), (1, BY_TYPE), (2, BY_DEFAULT)])
def test_a_flag_is_the_same_in_every_command(
    table: Table, index: int, exceptions: dict[str, str]
) -> None:
    differing = {
        name: by_command
        for name, by_command in table.items()
        if len({entry[index] for entry in by_command.values()}) > 1
    }
    assert {name: each for name, each in differing.items() if name not in exceptions} == {}
    assert exceptions.keys() <= differing.keys(), "remove the exceptions that hold no longer"


def test_all_commands_are_looked_at(table: Table) -> None:
    assert len(COMMANDS) > 15 and len(table) > 100
    assert table["max_steps"].keys() >= {"train", "sweep"}
