"""Runs the examples in docstrings, and checks that the API has them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keras_transformer as kt
from tests.conftest import PHRASES

if TYPE_CHECKING:
    from keras_transformer.runs.run_directory import RunDirectory

PACKAGE = Path(__file__).parents[1] / "keras_transformer"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text("utf-8"))


@pytest.fixture(scope="session")
def example_folder(
    run_directory: RunDirectory, exported_run: Path, litert_version: Path, tmp_path_factory: Any
) -> Path:
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
    [pytest.param(path, id=module_name(path)) for path in WITH_EXAMPLES],
)
def test_examples_print_what_they_show(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = importlib.import_module(module_name(path))
    if re.search(r">>> .*\b(build/|train\.en)", path.read_text("utf-8")):
        shutil.copytree(request.getfixturevalue("example_folder"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)  # an example may write files
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def public_objects() -> dict[str, Any]:
    """What a user calls: `kt.*`, the layers and their like, and the search."""
    spaces = {name: getattr(kt, name) for name in ("layers", "losses", "metrics", "schedules")}
    spaces["decoding"] = kt.decoding
    found = {
        f"{space}.{name}": getattr(module, name)
        for space, module in spaces.items()
        for name in module.__all__
    }
    return found | {name: getattr(kt, name) for name in set(kt.__all__) - set(spaces)}


def test_what_a_user_calls_shows_an_example() -> None:
    documented = {
        name: thing
        for name, thing in public_objects().items()
        if inspect.isclass(thing) or inspect.isfunction(thing)
    }
    # Their parent, `Config`, shows them.
    shown = {"ModelConfig", "TrainingConfig", "DecodingConfig", "InputError"}
    missing = {name for name, thing in documented.items() if ">>> " not in (thing.__doc__ or "")}
    assert missing <= shown and len(documented) > 30
