"""The documents agree with the repository: links, commands, flags and functions exist."""

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
from tests.driver import Driver
from tests.site_test import code_of

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for folder, pattern in (
        (".", "*.md"),
        ("docs", "**/*.md"),
        ("docs", "*.ipynb"),
        ("deploy", "*.md"),
        ("recipes", "*/*.md"),
        ("benchmarks", "results/*.md"),
    )
    for path in (ROOT / folder).glob(pattern)
)
COMMAND = re.compile(r"(benchmarks/\w+\.py|keras-transformer [a-z_]+)((?:[^\n`|\\]|\\\n)*)")
LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)[^)]*\)")
CODE = re.compile(r"```.*?```", re.DOTALL)
DEFINED = re.compile(r"(?:flags\.DEFINE_\w+|define_numbers)\(\s*\"(\w+)\"")
FLAG = re.compile(r"(?<![\w-])--(?:no)?([a-z_][a-z0-9_]*)")


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
        text = "\n".join("".join(cell["source"]) for cell in cells)
    return text


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
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for target, anchor in LINK.findall(CODE.sub("", text_of(path))):
        if not target.startswith(("http://", "https://", "mailto:")):
            file = path.parent / target if target else path
            assert file.is_file(), f"{path.name} links to {target}"  # a site has no folders
            if anchor and file.suffix == ".md":
                headings = re.findall(r"^#{1,4} (.*)", CODE.sub("", text_of(file)), re.MULTILINE)
                words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
                assert anchor in [name.replace(" ", "-") for name in words], (
                    f"{path.name}: {anchor}"
                )


def test_the_site_has_all_pages_and_begins_with_a_picture_and_code_that_runs() -> None:
    first = ROOT / "docs/index.md"
    trees = "".join(re.findall(r"```{toctree}\n(.*?)```", text_of(first), re.DOTALL))
    names = re.findall(r"^(?:.* <)?([\w./]+)>?$", trees, re.MULTILINE)
    files = [first.parent / f"{name}{end}" for name in names for end in (".md", ".ipynb")]
    assert {first, *(file.resolve() for file in files if file.is_file())} == {*DOCUMENTS}
    assert len(names) == len(DOCUMENTS) - 1 and "](attention.png)" in text_of(first)
    code, run = (code_of(f"docs/{page}.md", "python").splitlines() for page in ("index", "python"))
    assert sum(map(bool, code)) == 5 and {*code} <= {*run}  # wheel_test runs the other page


# The changelog names old commands, and the page about formats a flag of its example.
CURRENT = [path for path in DOCUMENTS if path.name not in ("CHANGELOG.md", "export.md")]


@pytest.mark.parametrize("path", CURRENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_the_flags_that_are_shown(path: Path) -> None:
    for command, flags in commands(text_of(path)):
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


def test_variants_of_the_commands_exist() -> None:
    recipes = [json.loads(path.read_text()) for path in (ROOT / "recipes").glob("*/recipe.json")]
    known = {name for recipe in recipes for name in recipe.get("variants", ())}
    for path in DOCUMENTS:
        for names in re.findall(r"--variant[= ]'?([\w.+]+)", text_of(path)):
            assert {*names.split("+")} <= known, f"{path}: --variant={names}"


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
