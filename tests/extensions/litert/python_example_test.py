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
from keras_transformer.extensions.litert.engine import LiteRTModel
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


# Prints the results of a new process that has XNNPACK's packed weights in a file.
PROGRAM = """
import json, sys
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel, CpuOptions, Options

path, cache, sources = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
cpu = CpuOptions(num_threads=2, xnnpack_weight_cache_path=cache)
model = CompiledModel.from_file(path, options=Options(cpu_options=cpu))
inputs = model.get_input_tensor_details("translate_ids")
outputs = model.get_output_tensor_details("translate_ids")
given = {name: model.create_input_buffer_by_name("translate_ids", name) for name in inputs}
found = {name: model.create_output_buffer_by_name("translate_ids", name) for name in outputs}
given["max_length"].write(np.array([0], np.int32))
given["length_penalty"].write(np.array([np.nan], np.float32))
for ids in sources:
    padded = np.zeros(inputs["ids"]["shape"], np.int32)
    padded[0, : len(ids)] = ids
    given["ids"].write(padded)
    given["lengths"].write(np.array([len(ids)], np.int32))
    model.run_by_name("translate_ids", given, found)
    lengths, ids = (
        found[name].read(int(np.prod(outputs[name]["shape"])), np.int32).reshape(shape)
        for name, shape in (("lengths", [-1]), ("ids", outputs["ids"]["shape"][1:]))
    )
    print([row[:length].tolist() for row, length in zip(ids, lengths)])
"""


def test_a_cache_file_of_packed_weights(version: Path, tmp_path: Path) -> None:
    model, cache = LiteRTModel(version / "model.tflite"), tmp_path / "weights.xnnpack"
    sources = [model.source_ids(phrase) for phrase in PHRASES]
    expected = []
    for ids in sources:
        result = model.translate_ids(ids)
        rows = zip(result.ids, result.lengths, strict=True)
        expected.append(str([row[:length].tolist() for row, length in rows]))

    def translate() -> list[str]:
        arguments = (model.path, cache, json.dumps(sources))
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], check=True, capture_output=True, text=True
        )
        return process.stdout.splitlines()

    assert translate() == expected
    content = cache.read_bytes()
    assert len(content) > 10_000
    assert translate() == expected
    assert cache.read_bytes() == content  # it was only read
    cut(cache)
    assert translate() == expected
    assert cache.read_bytes() == content  # it was made again
