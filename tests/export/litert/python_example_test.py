"""`example.py` of an export translates, or ends with one sentence that says what is wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_transformer.export import ExportOptions, export
from keras_transformer.inference.litert import LiteRTModel
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.damage import DAMAGES, cut, delete, flip
from tests.messages import mentions


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", folder / "example.py"], input=text, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def version(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    options = ExportOptions(quantization="int8", references=PHRASES, max_bleu_loss=100.0)
    settings = {"decoding.beam_size": 3, "decoding.n_best": 2}
    return export(run_directory, folder, PHRASES, options, format="litert", settings=settings).path


@pytest.fixture
def copy(version: Path, tmp_path: Path) -> Path:
    """Returns a folder with a copy of the export."""
    for name in ("example.py", "manifest.json", "model.tflite"):
        shutil.copy(version / name, tmp_path)
    return tmp_path


def assert_refused(folder: Path, *facts: str) -> None:
    result = run(folder, PHRASES[0])
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert re.search(mentions(*facts), line)
    assert line.endswith(".")


@pytest.mark.parametrize("has_manifest", [True, False])
def test_the_example_runs_without_this_package(copy: Path, has_manifest: bool) -> None:
    model = LiteRTModel(copy / "model.tflite")
    if not has_manifest:
        (copy / "manifest.json").unlink()
    result = run(copy, "\n".join([*PHRASES, "ball " * 1000]))
    assert result.returncode == 0, result.stderr
    expected = [model.translate(phrase)[0].text for phrase in PHRASES]
    assert result.stdout.split("\n")[:-2] == expected
    assert f"Line {len(PHRASES) + 1} is too long" in result.stderr
    assert result.stderr.count("is too long") == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_without_a_manifest(copy: Path, damage: Callable[[Path], None]) -> None:
    (copy / "manifest.json").unlink()
    damage(copy / "model.tflite")
    assert_refused(copy, "model.tflite", "missing" if damage is delete else "cut off")


def test_a_truncated_model_with_a_manifest(copy: Path) -> None:
    cut(copy / "model.tflite")
    assert_refused(copy, "model.tflite", "cut off")


def test_changed_weights_without_a_manifest(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    content = bytearray((copy / "model.tflite").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "model.tflite").write_bytes(content)
    assert_refused(copy, "model.tflite", "changed after the export")


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_manifest(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy / "manifest.json")
    assert_refused(copy, "manifest.json", "damaged")


@pytest.mark.parametrize("content", [[], {"files": {"model.tflite": {}}}])
def test_a_manifest_without_the_hash(copy: Path, content: object) -> None:
    (copy / "manifest.json").write_text(json.dumps(content), "utf-8")
    assert_refused(copy, "manifest.json", "damaged")
