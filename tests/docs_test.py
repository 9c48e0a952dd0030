"""The documents agree with the repository: links, commands, flags and functions exist."""

from __future__ import annotations

import ast
import functools
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_transformer
from keras_transformer.cli.main import command_modules
from keras_transformer.presets import preset
from tests.driver import Driver

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for folder, pattern in (
        (".", "*.md"),
        ("docs", "*.md"),
        ("deploy", "*.md"),
        ("recipes", "*/*.md"),
        ("benchmarks", "results/*.md"),
    )
    for path in (ROOT / folder).glob(pattern)
)
COMMAND = re.compile(r"(benchmarks/\w+\.py|keras-transformer [a-z_]+)((?:[^\n`|\\]|\\\n)*)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
DEFINED = re.compile(r"(?:flags\.DEFINE_\w+|define_numbers)\(\s*\"(\w+)\"")
FLAG = re.compile(r"(?<![\w-])--(?:no)?([a-z_][a-z0-9_]*)")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the commands of a text: the file, and its flags, including continuation lines."""
    for command, arguments in COMMAND.findall(text):
        flags = FLAG.findall(arguments.split(" -- ")[0])
        yield command, [flag for flag in flags if flag != "help"]


@functools.cache
def help_of(command: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return Driver().run(Path(folder), command, ["--help"], "").out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in LINK.findall(prose):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


CURRENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # which names old commands


@pytest.mark.parametrize("path", CURRENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_the_flags_that_are_shown(path: Path) -> None:
    for command, flags in commands(path.read_text(encoding="utf-8")):
        if command.startswith("keras-transformer "):
            name = command.split()[1]
            assert flags == [] or name in command_modules(), f"{path.name} names {command}"
            known = help_of(name) if flags else ""
            for flag in flags:
                assert re.search(rf"--(\[no\])?{flag}\b", known), f"{path.name}: {command} --{flag}"
        else:  # because each --help takes seconds
            known = (ROOT / command).read_text()
            for module in re.findall(r"^(?:import|from) (\w+)", known, flags=re.MULTILINE):
                beside = ROOT / "benchmarks" / f"{module}.py"  # it shares the flags of this command
                known += beside.read_text() if beside.is_file() else ""
            for flag in flags:
                assert flag in DEFINED.findall(known), f"{path.name}: {command} --{flag}"


def variants(text: str, recipe: str) -> Iterator[tuple[str, str]]:
    """Yields the recipe and the variant of each command."""
    lines = re.findall(
        r"^    .*|(?<=`)(?:benchmarks/|keras-transformer )[^`]*",
        text.replace("\\\n", ""),
        re.M,
    )
    for command in (part for line in lines for part in line.partition(" # ")[0].split("&&")):
        named = dict(re.findall(r"--(recipe|variant)[= ]'?([\w.+]+)", command))
        looped = " ".join(re.findall(r"for variant in ([^;]+);", command)).split()
        for variant in filter(None, [*looped, *named.get("variant", "").split("+")]):
            yield named.get("recipe", recipe), variant


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_follow_variants_that_recipes_have(path: Path) -> None:
    for recipe, variant in variants(path.read_text(encoding="utf-8"), path.parent.name):
        file = ROOT / "recipes" / recipe / "recipe.json"
        assert file.is_file(), f"{path.name}: which recipe has --variant={variant}?"
        known = json.loads(file.read_text())["variants"]
        assert variant in known, f"{path.parent.name}/{path.name}: {recipe} --variant={variant}"


def defined_names(path: Path) -> set[str]:
    """Returns the functions, classes and methods (`Class.method`) of a module."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (member for member in node.body if isinstance(member, ast.FunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def test_the_guide_for_users_of_kerashub_names_what_exists() -> None:
    text = (ROOT / "docs" / "kerashub.md").read_text(encoding="utf-8")
    names = set(re.findall(r"\bkt\.([\w.]*\w)", text))
    assert len(names) > 20
    for name in names:
        assert functools.reduce(getattr, name.split("."), keras_transformer) is not None, name


def test_the_walks_name_functions_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+)\. `([\w/]+\.py):([\w.]+)`", text, re.M)
    assert [number for number, *_ in steps].count("1") == 4
    for _, module, name in steps:
        assert name in defined_names(ROOT / "keras_transformer" / module), f"{module}:{name}"


def test_gpu_hours_of_the_recipes_follow_from_the_measured_rates() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    numbers = text.replace(",", "")
    rates = dict(re.findall(r"^\| H200 \| `(\w+)`[^|]*\| (\d+) \|", numbers, re.MULTILINE))
    hours_of = {
        recipe: (int(steps), float(hours))
        for names, steps, hours in re.findall(
            r"^\| (\[wmt14_.*) \| (\d+) \| ([\d.]+) \|$", numbers, re.MULTILINE
        )
        for recipe in re.findall(r"\[(wmt14_\w+)\]", names)
    }
    assert hours_of.keys() == {path.name for path in (ROOT / "recipes").glob("wmt14_*")}
    for recipe, found in hours_of.items():
        settings = json.loads((ROOT / "recipes" / recipe / "recipe.json").read_text())["settings"]
        steps, tokens = settings["training.max_steps"], settings["training.batch_tokens"]
        size = recipe.rpartition("_")[2]
        [flop] = re.findall(rf"`{size}` \((\d+) MFLOP", numbers)
        more = 6 * preset(size).model.d_model * (37_000 - 8_000) / (float(flop) * 1e6)
        hours = steps * tokens / float(rates[size]) * (1 + more) / 3600
        assert found == (steps, round(hours, 1)), recipe
