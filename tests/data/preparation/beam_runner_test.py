"""Apache Beam's direct runner: the bits of the local runner, and its errors."""

import contextlib
import dataclasses
import json

import pytest

from keras_transformer.data.corpora import corpus as corpus_module
from keras_transformer.data.corpora.corpus import parallel_files
from keras_transformer.data.corpora.tmx import tmx_files
from keras_transformer.data.preparation import pipeline, stages
from keras_transformer.data.preparation.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError

pytest.importorskip("apache_beam", reason="apache-beam is missing: pip install -e '.[dev]'")

from keras_transformer.data.preparation.beam_runner import BeamRunner
from tests.messages import mentions, tells

OPTIONS = PrepareOptions(vocab_size=80, drop_duplicates=True, valid_pairs=9)
TMX = {"en": "the mice", "de": "die Maus " * 9}


@pytest.fixture
def corpora(tmp_path):
    """Writes two corpora of several blocks each."""
    for name, start in (("a", 0), ("b", 25)):
        numbers = range(start, start + 40)
        (tmp_path / f"{name}.en").write_text("".join(f"the {i} dogs\n" for i in numbers))
        (tmp_path / f"{name}.de").write_text("".join(f"die {i} Hunde\n" for i in numbers))
    return parallel_files(
        [tmp_path / "a.en", tmp_path / "b.en"], [tmp_path / "a.de", tmp_path / "b.de"]
    )


def tree(directory):
    files = {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "report.json"
    }
    report = json.loads((directory / "report.json").read_bytes())
    return files, {**report, "seconds_of_stages": None}


def test_the_result_is_that_of_the_local_runner(tmp_path, monkeypatch, corpora):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 7)
    prepare(corpora, tmp_path / "local", OPTIONS)
    prepare(corpora, tmp_path / "beam", OPTIONS, runner=BeamRunner(tmp_path))
    assert tree(tmp_path / "beam") == tree(tmp_path / "local")
    assert len(list((tmp_path / "beam/train").iterdir())) > 5
    assert not list(tmp_path.glob(".*")), "nothing hidden is left"


def clean_tasks(source):
    with contextlib.chdir("/"):
        yield from stages.clean_tasks(source)


def clean_block(task):
    with contextlib.chdir("/"):
        return stages.clean_block(task)


def encode_block(task):
    with contextlib.chdir("/"):
        return stages.encode_block(task)


def test_workers_may_have_another_directory(tmp_path, monkeypatch, corpora):
    """Paths are told as they were given, and found wherever a worker stands."""
    monkeypatch.chdir(tmp_path)
    tmx = tmp_path / "c.tmx"
    segments = "".join(f"<tuv xml:lang='{c}'><seg>{t}</seg></tuv>" for c, t in TMX.items())
    tmx.write_text(f"<tmx><body><tu>{segments}</tu></body></tmx>")
    relative = [*parallel_files(["a.en"], ["a.de"]), *tmx_files([tmx.name], "en", "de")]
    options = dataclasses.replace(OPTIONS, max_length_ratio=2.0)  # has examples, which name it
    prepare(relative, "local", options)
    for function in (clean_tasks, clean_block, encode_block):
        monkeypatch.setattr(pipeline, function.__name__, function)
    prepare(relative, "beam", options, runner=BeamRunner("."))
    assert tree(tmp_path / "beam") == tree(tmp_path / "local")
    report = json.loads((tmp_path / "beam" / "report.json").read_bytes())
    assert [entry["name"] for entry in report["inputs"]["train"]] == ["a.en + a.de", "c.tmx"]
    assert report["cleaning"]["train"]["examples"]["length_ratio"][0]["corpus"] == "c.tmx"


def test_errors_are_those_of_the_local_runner(tmp_path, monkeypatch, corpora):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 7)
    with (tmp_path / "b.en").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    messages = []
    for runner in (None, BeamRunner(tmp_path)):
        with pytest.raises(InputError) as error:
            prepare(corpora, tmp_path / "d", OPTIONS, runner=runner)
        messages.append(str(error.value))
    assert messages[0] == messages[1] and tells(messages[0], "b.en", "line 17", "0xff")
    assert {path.suffix for path in tmp_path.iterdir()} == {".en", ".de"}


@pytest.mark.parametrize("option", ["--runner=NoSuchRunner", "--direct_num_workers=many"])
def test_what_beam_cannot_do_is_a_sentence(tmp_path, corpora, option):
    with pytest.raises(InputError, match=mentions("Beam", option)):
        prepare(corpora, tmp_path / "d", OPTIONS, runner=BeamRunner(tmp_path, [option]))
    assert {path.suffix for path in tmp_path.iterdir()} == {".en", ".de"}


def full_at_the_third_block(task):
    if task.name == "00002":
        raise OSError(28, "No space left on device")
    return stages.encode_block(task)


def killed_at_the_third_block(task):
    if task.name == "00002":
        raise RuntimeError("a machine went away")
    return stages.encode_block(task)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (full_at_the_third_block, mentions("No space left on device", "same command")),
        (killed_at_the_third_block, mentions("Beam", "a machine went away", "same command")),
    ],
)
def test_what_was_done_is_kept(tmp_path, monkeypatch, corpora, stage, message):
    monkeypatch.setattr(corpus_module, "BLOCK_LINES", 7)
    prepare(corpora, tmp_path / "whole", OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "encode_block", stage)
        with pytest.raises(InputError, match=message):
            prepare(corpora, tmp_path / "d", OPTIONS, runner=BeamRunner(tmp_path))
    assert (tmp_path / ".d.partial" / "work" / "train" / "00001.clean.json").exists()
    prepare(corpora, tmp_path / "d", OPTIONS, runner=BeamRunner(tmp_path))
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")
