"""`LiteRTModel`: damaged files, missing operations, memory and threads."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.extensions.litert import archive as litert_archive
from keras_transformer.extensions.litert import flatbuffer
from keras_transformer.extensions.litert.engine import LiteRTModel
from keras_transformer.inference import loading
from keras_transformer.inference.translate import translate_lines
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.conftest import PHRASES, ROOT
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def file(litert_version: Path) -> Path:
    return litert_version / "model.tflite"


def changed(file: Path, tmp_path: Path, change: Any) -> Path:
    """Returns a copy with a changed model and the same archive, whose checksum is now wrong."""
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        begin = min(info.header_offset for info in archive.infolist())
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    model = flatbuffer.read(content[:begin])
    change(model)
    path = tmp_path / "changed.tflite"
    path.write_bytes(flatbuffer.write(model))
    with zipfile.ZipFile(path, "a") as archive:
        for info, data in entries:
            archive.writestr(info.filename, data)
    return path


def test_tensorflow_is_not_imported(file: Path) -> None:
    code = (
        "import sys; from keras_transformer.extensions.litert.engine import LiteRTModel; "
        "print(LiteRTModel(sys.argv[1]).translate(sys.argv[2])[0].text); "
        "assert not [n for n in sys.modules if n.startswith(('tensorflow', 'keras.'))]"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(file), PHRASES[0]],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == LiteRTModel(file).translate(PHRASES[0])[0].text + "\n"


def test_with_less_memory_and_other_threads(file: Path) -> None:
    expected = LiteRTModel(file, threads=1).translate(PHRASES[0])[0]
    for model in (LiteRTModel(file, threads=3), LiteRTModel(file, low_memory=True)):
        found = model.translate(PHRASES[0])[0]
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-4)
        for text in reversed(PHRASES):  # buffers are used again
            assert model.translate(text)[0].text == LiteRTModel(file).translate(text)[0].text


@pytest.mark.parametrize("low_memory", [False, True])
def test_threads_may_share_a_model(file: Path, low_memory: bool) -> None:
    model = LiteRTModel(file, threads=3, low_memory=low_memory)
    expected = [model.translate(phrase) for phrase in PHRASES]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [*pool.map(model.translate, PHRASES * 5)] == expected * 5


@pytest.mark.parametrize("change", ["replaced", "overwritten", "deleted"])
def test_a_file_may_change_while_its_model_is_used(file: Path, tmp_path: Path, change: str) -> None:
    path = Path(shutil.copy(file, tmp_path))
    model = LiteRTModel(path, threads=3)  # the other interpreters are made later
    expected = [model.translate(phrase) for phrase in PHRASES]
    if change == "replaced":
        (tmp_path / "other").write_bytes(b"")
        (tmp_path / "other").replace(path)
    elif change == "overwritten":
        path.write_bytes(b"")
    else:
        path.unlink()
    model.warm_up()
    assert len(model._idle) == 3
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
    ("method", "arguments", "sentence"),
    [
        ("translate", (b"a",), mentions("b'a'", "text")),
        ("translate", (None,), mentions("None", "text")),
        (
            "translate",
            ("a", 2**31),
            mentions("max_length", "2147483648", "int32"),
        ),
        ("translate", ("a", 1.5), mentions("max_length", "int32")),
        ("translate", ("a", 0, "x"), mentions("length_penalty", "float32")),
        ("translate_ids", ([5.5],), mentions("ids", "int32")),
        ("translate_ids", ([2**31],), mentions("ids", "int32")),
        ("translate_ids", ([[1, 2]],), mentions("ids", "list")),
    ],
)
def test_invalid_arguments_are_refused(
    file: Path, method: str, arguments: Any, sentence: str
) -> None:
    model = LiteRTModel(file)
    with pytest.raises(InputError, match=sentence):
        getattr(model, method)(*arguments)
    assert model.translate("a", length_penalty=1e300)
    assert model.translate_ids([]).scores.tolist() == [0.0]


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([0],), mentions("max_length", 1, 2)),
        (([0, 0, 0],), mentions("max_length", 3, 2)),
        ((5,), mentions("max_length", 2, "list")),
        (([0, 2**31],), mentions("max_length", 2**31, "int32")),
        ((None, [1.0]), mentions("length_penalty", 1, 2)),
        ((None, []), mentions("length_penalty", 0, 2)),
        ((None, [1.0, "x"]), mentions("length_penalty", "'x'", "float32")),
    ],
)
def test_lists_of_different_lengths_are_refused(
    file: Path, low_memory: bool, arguments: Any, sentence: str
) -> None:
    model = LiteRTModel(file, low_memory=low_memory)
    sources = [model.source_ids(phrase) for phrase in PHRASES[:2]]
    with pytest.raises(InputError, match=sentence):
        model.translate_batch(sources, *arguments)


def test_compiled_models_leave_standard_error_empty(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = LiteRTModel(file, low_memory=True)
    assert model.translate(PHRASES[0])
    del model
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", 1025, True])
def test_invalid_numbers_of_threads(file: Path, threads: Any) -> None:
    with pytest.raises(InputError, match=mentions("threads", "1", "1,024")):
        LiteRTModel(file, threads)


def test_of_two_models_the_faster_one_is_used(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.tflite").write_bytes(file.read_bytes())
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert isinstance(loading.load_model(tmp_path).owner, LiteRTModel)
    assert tells(capsys.readouterr().err, tmp_path, "two models", "model.tflite")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_truncated_files(file: Path, tmp_path: Path, share: float) -> None:
    content = file.read_bytes()
    path = tmp_path / "model.tflite"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=mentions("model.tflite", "archive", "cut off")):
        LiteRTModel(path)


def test_changed_files_are_refused_unless_not_verified(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # in the weights
    path.write_bytes(content)
    with pytest.raises(InputError, match=mentions("model.tflite", "changed after the export")):
        LiteRTModel(path)
    assert LiteRTModel(path, verify=False).metadata == LiteRTModel(file).metadata


def test_another_vocabulary_is_refused(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    with zipfile.ZipFile(file) as archive:
        path.write_bytes(
            file.read_bytes()[: min(each.header_offset for each in archive.infolist())]
        )
        fields = archive.read("model.json")
    lines = [phrase.encode() for phrase in PHRASES]
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.json", fields)
        archive.writestr("joint.model", learn_vocabulary(lines, vocab_size=100))
    with pytest.raises(InputError, match=mentions("vocabulary", "model.tflite", "changed")):
        LiteRTModel(path)
    assert LiteRTModel(path, verify=False).vocabulary.source_vocab_size <= 100
    # The first files of this format version do not describe their vocabulary.
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(path, "w") as other:
        vocabulary = archive.read("joint.model")
        described = json.loads(fields)
        assert described.pop("vocabulary")["joint.model"]["bytes"] == len(vocabulary)
        other.writestr("model.json", json.dumps({**described, "model_crc32": 0}))
        other.writestr("joint.model", vocabulary)
    metadata, _ = litert_archive.read_archive(path, path.open("rb"), verify=True)
    assert metadata == LiteRTModel(file).metadata


def test_the_manifest_describes_a_version_and_not_a_file(file: Path, tmp_path: Path) -> None:
    version = shutil.copytree(file.parent, tmp_path / "1")
    manifest = (version / "manifest.json").read_text("utf-8")
    digest = json.loads(manifest)["files"]["model.tflite"]["sha256"]
    (version / "manifest.json").write_text(manifest.replace(digest, "0" * 64), "utf-8")
    model = loading.load_model(version / "model.tflite")  # such a file replaced the exported one
    assert translate_lines(model, PHRASES[:1])[0][0].text
    with pytest.raises(InputError, match=mentions("SHA-256", digest, "manifest.json")):
        loading.load_model(version)


def test_invalid_files(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions("directory", "model.tflite")):
        LiteRTModel(file.parent)
    with pytest.raises(InputError, match=mentions("none.tflite", "No such file")):
        LiteRTModel(tmp_path / "none.tflite")
    other = tmp_path / "other.tflite"
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(other, "w") as copy:
        fields = json.loads(archive.read("model.json"))
        copy.writestr("model.json", json.dumps({**fields, "model_crc32": 0}))
        copy.writestr("joint.model", archive.read("joint.model"))
    with pytest.raises(InputError, match=mentions("ai-edge-litert", "file")):
        LiteRTModel(other)
    for version in (2, 99):
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("model.json", json.dumps({"format_version": version}))
        with pytest.raises(InputError, match=mentions("format", version, 3)) as caught:
            LiteRTModel(other)
        assert "cut off" not in str(caught.value)


def test_an_older_runtime(file: Path, tmp_path: Path) -> None:
    def newer(model: Any) -> None:
        for code in model.operatorCodes:
            code.version = 1000

    with pytest.raises(InputError, match=mentions("newer", "ai-edge-litert")):
        LiteRTModel(changed(file, tmp_path, newer), verify=False)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(data=st.data())
def test_any_archive_is_read_or_refused(
    file: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with zipfile.ZipFile(file) as archive:
        begin = min(info.header_offset for info in archive.infolist())
    content = bytearray(file.read_bytes()[begin:])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.getbasetemp() / "fuzzed.tflite"
    path.write_bytes(bytes(content))
    try:
        litert_archive.read_archive(path, path.open("rb"), verify=True)
    except InputError as error:
        assert str(path) in str(error)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    fields=st.dictionaries(
        st.sampled_from([*litert_archive.LiteRTMetadata._fields, "format_version", "other"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just([])),
    )
)
def test_any_metadata_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "described.tflite"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.json", json.dumps(fields))
    with pytest.raises(InputError):  # the archive has no vocabulary
        litert_archive.read_archive(path, path.open("rb"), verify=True)


def test_a_tag_selects_the_translation(tagged_run: RunDirectory, tmp_path: Path) -> None:
    exported = export(tagged_run, tmp_path, ["<2de> a small dog"], format="litert")
    model = loading.load_model(exported.path)
    assert model.symbols == ("<2de>", "<2fr>", "<number>")
    lines = [f"{tag}a small dog" for tag in ("<2de> ", "<2fr> ", "")]
    found, expected = (
        [[best.text for best in each] for each in translate_lines(loaded, lines)]
        for loaded in (model, loading.load_model(tagged_run.path))
    )
    assert found == expected and found[0] != found[2]
