"""`LiteRTModel`: damaged files, missing operations, memory and threads."""

import concurrent.futures
import gc
import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.litert import passes
from keras_transformer.extensions.litert.archive import read_archive
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.inference import loading
from keras_transformer.inference.translate import translate_lines
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.conftest import PHRASES, ROOT


@pytest.fixture(scope="module")
def file(litert_version: Path) -> Path:
    return litert_version / "model.tflite"


def test_tensorflow_is_not_imported_and_one_line_is_logged(file: Path) -> None:
    code = (
        "import sys, keras_transformer as kt; print(kt.load(sys.argv[1])(sys.argv[2])); "
        "from keras_transformer.extensions.litert.engine import LiteRTModel; "
        "LiteRTModel(sys.argv[1], low_memory=True).translate(sys.argv[2]); "
        "assert not [n for n in sys.modules if n.startswith(('tensorflow', 'keras.'))]"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(file), PHRASES[0]],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert {*result.stderr.splitlines()} <= {
        "INFO: Created TensorFlow Lite XNNPACK delegate for CPU."
    }
    assert result.stdout == LiteRTModel(file).translate(PHRASES[0])[0].text + "\n"


def test_with_less_memory_and_other_threads(file: Path) -> None:
    expected = [LiteRTModel(file, threads=1).translate(text)[0] for text in PHRASES]
    for model in (LiteRTModel(file, threads=3), LiteRTModel(file, low_memory=True)):
        for text, exact in zip(reversed(PHRASES), reversed(expected), strict=True):
            found = model.translate(text)[0]  # buffers are used again
            assert found.text == exact.text
            assert found.score == pytest.approx(exact.score, abs=1e-4)


@pytest.mark.parametrize("low_memory", [False, True])
def test_threads_may_share_a_model(file: Path, low_memory: bool) -> None:
    model = LiteRTModel(file, threads=3, low_memory=low_memory)
    expected = [model.translate(phrase) for phrase in PHRASES]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [*pool.map(model.translate, PHRASES * 5)] == expected * 5


@pytest.mark.parametrize("change", ["replaced", "overwritten"])
def test_a_file_may_change_while_its_model_is_used(file: Path, tmp_path: Path, change: str) -> None:
    path = Path(shutil.copy(file, tmp_path))
    model = LiteRTModel(path, threads=3)  # the other interpreters are made later
    expected = [model.translate(phrase) for phrase in PHRASES]
    if change == "replaced":
        (tmp_path / "other").write_bytes(b"")
        (tmp_path / "other").replace(path)
    else:
        path.write_bytes(b"")
    model.warm_up()
    model.release_memory()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert [*pool.map(model.translate, PHRASES * 5)] == expected * 5


def test_invalid_utf8_is_translated_as_by_the_run(file: Path, run_directory: RunDirectory) -> None:
    model, translator = LiteRTModel(file), loading.load_translator(run_directory)
    for data in (b"a \xff b", b"\xed\xa0\xbd dog", b"the \xf0\x9f river"):
        expected = translator.translate(tf.constant([data]))["translations"][0, 0].numpy()
        text = data.decode("utf-8", "surrogateescape")
        assert model.translate(text)[0].text == expected.decode()
    assert model.translate("\ud83d dog") == model.translate("\udced\udca0\udcbd dog")


@pytest.mark.parametrize(
    ("method", "arguments", "facts"),
    [
        ("translate", (b"a",), ("b'a'", "text")),
        ("translate", ("a", 2**31), ("max_length", 2**31, "int32")),
        ("translate", ("a", 0, "x"), ("length_penalty", "'x'", "float32")),
        ("translate_ids", ([2**31],), ("ids", "int32")),
        ("translate_ids", ([9.5, 3],), ("ids", "int32", "9.5")),
        ("translate_ids", ([9, 3], 2.5), ("max_length", "int32", "2.5")),
        ("translate_ids", ([[1, 2]],), ("ids", "int32")),
        ("translate_batch", ([[9, 3], [3]], [0]), ("max_length", "[0]", 2)),
        (
            "translate_batch",
            ([[9, 3], [3]], None, [1.0] * 3),
            ("length_penalty", "[1.0, 1.0, 1.0]", 2),
        ),
    ],
)
def test_invalid_arguments_are_refused(file: Path, method: str, arguments: Any, facts: Any) -> None:
    model = LiteRTModel(file)
    refuses(getattr(model, method), arguments, *facts)
    assert model.translate_ids([]).scores[0] == 0


def test_compiled_models_leave_standard_error_empty(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = LiteRTModel(file, low_memory=True)
    assert model.translate(PHRASES[0])
    del model
    gc.collect()
    assert capfd.readouterr().err == ""


def test_the_manifest_describes_a_version_and_not_a_file(file: Path, tmp_path: Path) -> None:
    version = shutil.copytree(file.parent, tmp_path / "1")
    manifest = (version / "manifest.json").read_text("utf-8")
    digest = json.loads(manifest)["files"]["model.tflite"]["sha256"]
    (version / "manifest.json").write_text(manifest.replace(digest, "0" * 64), "utf-8")
    model = loading.load_model(version / "model.tflite")  # such a file replaced the exported one
    assert translate_lines(model, PHRASES[:1])[0][0].text
    refuses(loading.load_model, (version,), "SHA-256", digest, "manifest.json")


def repacked(file: Path, path: Path, model: bytes, **changes: Any) -> Path:
    """Writes another model with the archive of `file`, and a checksum that fits."""
    with zipfile.ZipFile(file) as archive:
        fields = json.loads(archive.read("model.json"))
        vocabulary = archive.read("joint.model")
    path.write_bytes(model)
    with zipfile.ZipFile(path, "a") as archive:
        changes = {"model_crc32": zlib.crc32(model), **changes}
        archive.writestr("model.json", json.dumps({**fields, **changes}))
        archive.writestr("joint.model", vocabulary)
    return path


def newer_operations(content: bytes) -> bytes:
    model = passes.read(content)
    for code in model.operatorCodes:
        code.version = 1000
    return passes.write(model)


def test_files_that_cannot_be_used(file: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "other.tflite", file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        model = content[: min(info.header_offset for info in archive.infolist())]
    refuses(LiteRTModel, {"path": file, "threads": 0}, "threads", 0, "1,024")
    refuses(LiteRTModel, {"path": file.parent}, "directory")
    refuses(LiteRTModel, {"path": tmp_path / "none.tflite"}, "none.tflite", "No such file")
    assert LiteRTModel(repacked(file, path, model)).metadata == LiteRTModel(file).metadata
    for other, changes, facts in (
        (b"", {}, ("ai-edge-litert", "other.tflite")),
        (newer_operations(model), {}, ("newer", "ai-edge-litert")),
        (model, {"format_version": 2}, ("format version", 2, 3)),
        (model, {"format_version": 99}, ("format version", 99, 3)),
    ):
        refuses(LiteRTModel, (repacked(file, path, other, **changes),), *facts)


@hypothesis.settings(max_examples=300)
@hypothesis.given(data=st.data())
def test_any_archive_is_read_or_refused(
    file: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with zipfile.ZipFile(file) as archive:
        begin = min(info.header_offset for info in archive.infolist())
    content = bytearray(file.read_bytes()[begin:])
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(content) - 1))
        content[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.getbasetemp() / "fuzzed.tflite"
    path.write_bytes(bytes(content))
    with path.open("rb") as damaged, pytest.raises(InputError, match=re.escape(str(path))):
        read_archive(path, damaged)  # at least the checksum of the missing model is wrong
