"""`example.py` of an export translates, or ends with one sentence that says what is wrong."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_transformer.export import export
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.inference import loading
from keras_transformer.inference.translate import translate_lines
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.damage import DAMAGES, delete
from tests.messages import tells


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", folder / "example.py"], input=text, capture_output=True, text=True
    )


def test_the_example_runs_without_this_package(litert_version: Path) -> None:
    model = LiteRTModel(litert_version / "model.tflite")
    result = run(litert_version, "\n".join([*PHRASES, "ball " * 1000]))
    assert result.returncode == 0, result.stderr
    expected = [model.translate(phrase)[0].text for phrase in PHRASES]
    assert result.stdout.split("\n")[:-2] == expected
    assert result.stderr.count("is too long") == 1
    assert f"Line {len(PHRASES) + 1} is too long" in result.stderr


@pytest.mark.long
def test_a_tag_selects_the_translation(tagged_run: RunDirectory, tmp_path: Path) -> None:
    loaded = loading.load_model(export(tagged_run, tmp_path, PHRASES, format="litert").path)
    assert loaded.symbols == ("<2de>", "<2fr>", "<number>")
    german, any_language = translate_lines(loaded, ["<2de> a small dog", "a small dog"])
    assert german[0].text != any_language[0].text


def flip_a_weight(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [*DAMAGES, flip_a_weight])
def test_a_damaged_model_is_refused(
    litert_version: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for name in ("example.py", "model.tflite"):
        shutil.copy(litert_version / name, tmp_path)
    damage(tmp_path / "model.tflite")
    result = run(tmp_path, PHRASES[0])
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert tells(line, "model.tflite", "missing" if damage is delete else "cut off")
