"""Runs the examples in docstrings, and checks that the API has them."""

import ast
import doctest
import importlib
import inspect
import re
import shutil
from pathlib import Path

import pytest

import keras_transformer as kt
from tests.builders import PHRASES, tiny_data

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
# Classes with settings, which are described one by one.
SETTINGS = ("DecodingConfig", "ModelConfig", "TrainingConfig")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text("utf-8"))


@pytest.fixture(scope="session")
def example_folder(run_directory, litert_version, tmp_path_factory):
    """The files that examples read: a corpus of three pairs, data, a run, and other models."""
    folder: Path = tmp_path_factory.mktemp("examples")
    for name, lines in (("train.en", PHRASES[:3]), ("train.de", PHRASES[3:])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    shutil.copytree(tiny_data(), folder / "build/data")
    (folder / "build/run").symlink_to(run_directory.path)  # its searches are traced once
    shutil.copytree(litert_version, folder / "build/litert/1")
    (folder / "build/opus-mt").mkdir()
    for name in ("post_norm.npz", "vocab.yml", "source.spm", "target.spm"):
        shutil.copy(PACKAGE.parent / "tests/fixtures/marian" / name, folder / "build/opus-mt")
    return folder


@pytest.mark.usefixtures("one_replica")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_examples_print_what_they_show(path, tmp_path, monkeypatch, request):
    module = importlib.import_module(module_name(path))
    if re.search(r">>> .*\b(build/|train\.en)", path.read_text("utf-8")):
        folder = request.getfixturevalue("example_folder")
        shutil.copytree(folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)  # an example may write files
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


# What users call, besides the modules of docs/api.
PUBLIC = r"config|errors|plugins|presets|inference|layers\.\w+|decoding\.\w+|export\.model_card"
PUBLIC += r"|inference\.generation|extensions\.documents\.\w+|export\.saved_model\.signatures"
PUBLIC += r"|extensions\.serving\.client"
SECTION = re.compile(r"^\s*(?:(?:Args|Returns|Raises|Yields|Example):|>>>)", re.MULTILINE)


def test_only_what_a_user_calls_lists_arguments_and_shows_examples():
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    documented = {*re.findall(r"automodule:: ([\w.]+)", pages)}
    for path in PACKAGE.rglob("*.py"):
        name = module_name(path)
        is_public = name in documented or re.fullmatch(rf"keras_transformer\.({PUBLIC})", name)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                internal = not is_public or re.match("_[a-z]", node.name)
                assert not (internal and SECTION.search(ast.get_docstring(node) or "")), node.name


def definitions(name):
    """The docstrings of the classes and functions of a module of the package, by their names."""
    path = PACKAGE.joinpath(*name.split("."))
    paths = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    nodes = (node for module in paths for node in ast.parse(module.read_bytes()).body)
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)}


@pytest.mark.parametrize("name", sorted({*kt.__all__} - {*SETTINGS, *kt._NAMESPACES, "InputError"}))
def test_what_a_user_calls_shows_an_example(name):
    assert ">>> " in definitions(kt._MODULES[name])[name]


@pytest.mark.parametrize("space", kt._NAMESPACES)
def test_layers_and_their_like_show_an_example(space):
    module = getattr(kt, space)
    things = {name: getattr(module, name) for name in module.__all__}
    documented = {k: v for k, v in things.items() if inspect.isclass(v) or inspect.isfunction(v)}
    assert documented
    assert [k for k, v in documented.items() if ">>> " not in (v.__doc__ or "")] == []
