"""Runs the examples in docstrings, and checks that the API has them."""

import ast
import doctest
import importlib
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import PHRASES

PACKAGE = Path(__file__).parents[1] / "keras_transformer"
# What a user calls: `kt.*`, and the modules of the API reference.
SCRIPT = PACKAGE / "extensions" / "litert" / "example.py"  # it is copied next to a model
API_MODULES = sorted(
    name
    for page in (PACKAGE.parent / "docs" / "api").glob("*.md")
    for name in re.findall(r"automodule:: (\S+)", page.read_text("utf-8"))
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text("utf-8"))
# Modules with slow examples.
LONG = (
    "export/saved_model/export.py",
    "training/training_run.py",
    "extensions/pages/gallery.py",
)


@pytest.fixture(scope="session")
def example_folder(run_directory, exported_run, litert_version, tmp_path_factory):
    """The files that examples read: a corpus of three pairs, and data, a run and its exports."""
    from keras_transformer.data.corpus import parallel_files
    from keras_transformer.data.prepare import PrepareOptions, prepare

    folder: Path = tmp_path_factory.mktemp("examples")
    half = len(PHRASES) // 2
    for name, lines in (("train.en", PHRASES[:half]), ("train.de", PHRASES[half:])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    corpora = parallel_files([folder / "train.en"], [folder / "train.de"])
    prepare(corpora, folder / "build/data", PrepareOptions(vocab_size=60, valid_pairs=1))
    shutil.copytree(run_directory.path, folder / "build" / "run")
    shutil.copytree(exported_run, folder / "build" / "export")
    shutil.copytree(litert_version.parent, folder / "build" / "litert")
    marian = folder / "build" / "opus-mt"
    marian.mkdir()
    for name in ("post_norm.npz", "vocab.yml", "source.spm", "target.spm"):
        shutil.copy(PACKAGE.parent / "tests" / "fixtures" / "marian" / name, marian)
    for toolkit, variant in (
        ("opennmt_tf", "shared"),
        ("tensor2tensor", "shared"),
        ("fairseq", "words"),
        ("fsmt", ""),
    ):
        fixture = PACKAGE.parent / "tests" / "fixtures" / toolkit / variant
        shutil.copytree(fixture, folder / "build" / toolkit)
    return folder


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=module_name(path),
            marks=pytest.mark.long if str(path.relative_to(PACKAGE)) in LONG else (),
        )
        for path in WITH_EXAMPLES
    ],
)
def test_examples_print_what_they_show(path, tmp_path, monkeypatch, request):
    module = importlib.import_module(module_name(path))
    if re.search(r">>> .*\b(build/|train\.en)", path.read_text("utf-8")):
        shutil.copytree(request.getfixturevalue("example_folder"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)  # an example may write files
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def public_definitions(path):
    """Public classes and functions of a module."""
    for node in ast.parse(path.read_bytes()).body if path != SCRIPT else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def missing_examples(paths):
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for path in paths
        for node in public_definitions(path)
        if ">>> " not in (ast.get_docstring(node) or "")
    ]


def test_slow_examples_are_in_modules_that_exist():
    assert {PACKAGE / path for path in LONG} <= {*WITH_EXAMPLES}


@pytest.mark.parametrize("name", API_MODULES)
def test_the_api_reference_shows_examples(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    paths = [path / "__init__.py"] if path.is_dir() else [path.with_suffix(".py")]
    assert missing_examples(paths) == []
