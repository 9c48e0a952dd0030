"""Texts of several sentences: by default, on request, in Python, in the server and its client."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.extensions import documents
from keras_transformer.extensions.serving.client import Client, ServerEngine
from keras_transformer.extensions.serving.engines import Version, _text_signatures, with_sentences
from keras_transformer.inference import Translation
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.translate import split_texts, translate_to_text
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.extensions.documents.fakes import fake_engine
from tests.messages import tells

LINES = ["One dog.", "A dog. Two {x}.", "", "Mr. Smith."]
CAPITALS = ["ONE DOG.", "A DOG. TWO {x}.", "", "MR. SMITH."]


def model_of_single_sentences(**fields: object) -> Engine:
    """A model that writes capitals, and refuses lines with two sentences."""

    def translate(line: str) -> str:
        assert not ("A dog." in line and "Two" in line)
        return line.upper()

    return fake_engine(translate, single_sentences=True, **fields)


def test_texts_are_split_by_default_if_the_model_was_trained_on_single_sentences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents._warn_once.cache_clear()
    model = model_of_single_sentences()
    for _ in range(2):
        assert split_texts(model, LINES, None, "", 1)[:2] == ({1: CAPITALS[1]}, [])
        text, [warning], _ = translate_to_text(model, LINES, document=None)
        assert text.split("\n") == [*CAPITALS, ""]
        assert tells(warning, "line 3", "empty")
    [message] = capsys.readouterr().err.splitlines()
    assert tells(message, "single sentences", "--nodocument", "document=False")


def test_other_models_and_settings_split_nothing() -> None:
    several = model_of_single_sentences(n_best=2)
    cases = (fake_engine(str), None), (several, None), (model_of_single_sentences(), False)
    for model, document in cases:
        assert split_texts(model, LINES, document, "", 1)[:2] == ({}, [])
    assert "A DOG. TWO {X}." in translate_to_text(fake_engine(str.upper), LINES)[0]


def test_nothing_is_split_by_default_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "keras_transformer.extensions.documents.sentences"
    monkeypatch.setitem(__import__("sys").modules, name, None)
    model = model_of_single_sentences()
    assert split_texts(model, LINES, None, "", 1)[:2] == ({}, [])
    assert documents.share_of_several(LINES) is None


def test_all_texts_are_split_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    short = fake_engine(str.upper, limit=4)
    split, remarks, _ = split_texts(short, ["A\nb c d e", "B"], True, "", 5)
    assert split == {0: "A\nB C D E", 1: "B"}
    assert tells(remarks[0], "line 5", "3 parts")
    text, _, _ = translate_to_text(fake_engine(str.upper), ["x", "A. {b}"], document=True)
    assert text == "X\nA. {b}\n"
    [line] = capsys.readouterr().err.splitlines()
    assert tells(line, "spans", "0 symbols, 1 kept, 0 aligned")


def test_a_translator_splits_texts() -> None:
    translator = kt.Translator.from_engine(fake_engine(str.upper))
    assert translator("A dog. %s\n\n two", document=True) == "A DOG. %s\n\n TWO"
    [[best]] = translator.translate(["A dog. Two."], document=True)
    assert best == Translation("A DOG. TWO.", 0.0)
    given = {"lines": ["A."], "document": True, "return_details": True}
    refuses(translator.translate, given, "document", "details")
    assert kt.Translator.from_engine(model_of_single_sentences())(LINES) == CAPITALS


@pytest.mark.parametrize(("document", "split"), [(None, True), (True, True), (False, False)])
def test_a_server_splits_texts(document: bool | None, split: bool) -> None:
    model = model_of_single_sentences() if split else fake_engine(str.lower)
    version = with_sentences(Version(model, _text_signatures(model)), document)
    call = version.signatures["serving_default"].call
    outputs = call({"text": np.array([line.encode() for line in LINES], object)})
    expected = CAPITALS if split else [line.lower() for line in LINES]
    assert [text.decode() for [text] in outputs["translations"].tolist()] == expected
    assert outputs["scores"].shape == (4, 1)
    if document:
        given = {"version": version._replace(engine=fake_engine(str, n_best=2)), "document": True}
        refuses(with_sentences, given, "fake", "2 translations", "1")


def test_a_client_splits_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fake_engine(str.upper)
    signatures = _text_signatures(model)
    monkeypatch.setattr(Client, "wait_until_ready", lambda self, timeout: None)
    monkeypatch.setattr(Client, "metadata", lambda self: signatures)
    monkeypatch.setattr(Client, "tags", lambda self: (("<2de>",), None))
    monkeypatch.setattr(
        Client, "predict", lambda _, inputs, name="serving_default": signatures[name].call(inputs)
    )
    with Client("localhost:1", "model") as client:
        assert ServerEngine("localhost:1", client).client is client
        [[best]] = client.translate(["A dog.\nTwo {x}."], source_tag="<2de>", document=True)
        found = client.translate(["<2de> a dog", "<2de> a"], glossary={"dog": "Hund"})
    assert best.text == "<2DE> A DOG.\n<2DE> TWO {x}."
    assert [texts[0].text for texts in found] == ["<2DE> A Hund", "<2DE> A"]


def test_prepared_data_runs_and_exports_say_whether_training_had_single_sentences(
    tmp_path: Path, run_directory: RunDirectory, exported_run: Path
) -> None:
    shares = {"single": 0.0, "several": 0.5}
    for name, share in shares.items():
        lines = [f"A dog {i} barks." + " Two." * (name == "several" and i % 2) for i in range(100)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        (tmp_path / "target").write_text("".join(f"Ein Hund {i}.\n" for i in range(100)))
        corpus = parallel_files([tmp_path / name], [tmp_path / "target"])
        options = PrepareOptions(vocab_size=60, augment={})
        data = prepare(corpus, tmp_path / f"data-{name}", options)
        found = data.report["train"]["source"]["several_sentences"]
        assert found == pytest.approx(share, abs=0.05)
        run = RunDirectory(run_directory.path)
        run.path = tmp_path
        shutil.copy(tmp_path / f"data-{name}" / "report.json", tmp_path / "data_report.json")
        assert run.single_sentences == (share == 0)
        (tmp_path / "data_report.json").write_text("{}")
        assert not run.single_sentences and run.max_train_source_length is None
    model = load_model(exported_run)
    assert not model.single_sentences and not load_model(run_directory.path).single_sentences
