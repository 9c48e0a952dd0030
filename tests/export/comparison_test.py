"""What counts as the same translation of a run and its export, and in which process."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export import comparison, fresh_process
from keras_transformer.inference import loading, translate
from keras_transformer.inference.translator import Translator
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> Translator:
    return loading.load_translator(run_directory, {"decoding.n_best": 2})


@pytest.fixture(scope="module")
def exported(exported_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(exported_run / "1", tmp_path_factory.mktemp("export") / ".exporting")


def test_all_sentences_are_translated_in_their_order(
    translator: Translator, exported: Path
) -> None:
    sentences = [*PHRASES, "", *PHRASES[:2]] * 15  # of different lengths, more than a batch
    before = {path: path.stat() for path in [exported, *exported.rglob("*")]}
    ties, translations = comparison.compare(translator, exported, sentences)
    assert ties == [] and len(set(translations)) > 3
    found = translate.translate_lines(_model(translator), sentences)
    assert translations == [best.text for best, *_ in found]
    after = {path: path.stat() for path in [exported, *exported.rglob("*")]}
    assert {p: (s.st_mode, s.st_size) for p, s in after.items()} == {
        p: (s.st_mode, s.st_size) for p, s in before.items()
    }


def _model(translator: Translator) -> loading.LoadedModel:
    return loading.LoadedModel("", 1, translator.translate, translator.lengths, translator)


def test_the_export_is_elsewhere_and_read_only_meanwhile(
    translator: Translator, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(model: Path, *_: Any) -> None:
        assert model != exported and not exported.exists()
        modes = [path.stat().st_mode for path in [model, *model.rglob("*")]]
        assert len(modes) > 4 and not any(mode & 0o222 for mode in modes)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "_Process", failing)
    with pytest.raises(KeyboardInterrupt):
        comparison.compare(translator, exported, PHRASES)
    assert (exported / "saved_model.pb").stat().st_mode & stat.S_IWUSR
    assert not list(exported.parent.glob("*-moved"))


def test_what_needs_more_than_tensorflow_is_refused(
    translator: Translator, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    with pytest.raises(RuntimeError, match=mentions("TensorFlow", "tensorflow-text", "OSError")):
        comparison.compare(translator, broken, PHRASES[:1])
    # And it is noticed when this package comes along.
    script = tmp_path / "script.py"
    own = Path(fresh_process.__file__).read_text("utf-8")
    package = Path(comparison.__file__).parents[2]
    own = own.replace(
        "from __future__ import annotations",
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport keras_transformer.errors",
    )
    script.write_text(own)
    monkeypatch.setattr(fresh_process, "__file__", str(script))
    with pytest.raises(RuntimeError, match=r"keras_transformer.*TensorFlow"):
        comparison.compare(translator, exported, PHRASES[:1])


def test_ties_pass_and_are_named(translator: Translator) -> None:
    result = translator.search(tf.constant(["a"]))
    ids, lengths, scores = (f.numpy() for f in (result.ids, result.lengths, result.scores))
    own = comparison.Found(ids, lengths, scores)

    def difference(of_scores: float, of_ids: int = 1) -> str | None:
        other = comparison.Found(ids + of_ids, lengths, scores + np.float32(of_scores))
        return comparison.difference(own, other, 0, "sentence 1", "a")

    assert difference(5e-5, of_ids=0) is None
    assert tells(difference(5e-5) or "", "sentence 1", "'a'", "score")
    with pytest.raises(InputError, match=mentions("sentence 1", "'a'", "score")):
        difference(2e-4)
    with pytest.raises(InputError, match=mentions("score", "nan")):
        difference(float("nan"), of_ids=0)


def test_a_run_that_finds_nothing_is_not_exported(translator: Translator, exported: Path) -> None:
    none = np.zeros([1, 1], np.int32)
    nothing = comparison.Found(none[..., None], none, np.full([1, 1], -1e9))
    with pytest.raises(InputError, match=mentions("sentence 2", "'a'", "run")):
        comparison.difference(nothing, nothing, 0, "sentence 2", "a")
    assert comparison.difference(nothing, nothing, 0, "sentence 1", " ") is None


def test_a_signature_that_gives_other_texts_is_refused(
    translator: Translator, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, real = comparison._Process.wait, []

    def other_scores(process: Any) -> Any:
        real.extend(wait(process))
        served, found = real
        return {**served, "translate_ids": served["translate_ids"] + 0.01}, found

    monkeypatch.setattr(comparison._Process, "wait", other_scores)
    with pytest.raises(InputError, match=mentions("translate_ids", "scores")):
        comparison.compare(translator, exported, PHRASES[:2])

    served, found = real
    others = served, [each._replace(ids=each.ids + 1) for each in found]
    replayed = SimpleNamespace(wait=lambda: others, stop=lambda: None)
    monkeypatch.setattr(comparison, "_Process", lambda *_: replayed)
    with pytest.raises(InputError, match=mentions("2 of 2", "tokens")):
        comparison.compare(translator, exported, PHRASES[:2])
    assert os.listdir(exported.parent) == [exported.name]
