"""The comparison of an export with its run: ties, differences, and the separate process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export import comparison, fresh_process
from keras_transformer.export.probes import ProbeTexts
from keras_transformer.inference import loading, translate
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> TranslationModule:
    return loading.load_translator(run_directory, {"decoding.n_best": 2})


@pytest.fixture(scope="module")
def exported(exported_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(exported_run / "1", tmp_path_factory.mktemp("export") / ".exporting")


def test_translations_are_in_the_order_of_the_sentences(
    translator: TranslationModule, exported: Path
) -> None:
    sentences = [*PHRASES, "", *PHRASES[:2]] * 15  # of different lengths, more than a batch
    ties, translations = comparison.compare(translator, exported, sentences)
    assert ties == [] and len(set(translations)) > 3
    found = translate.translate_lines(_model(translator), sentences)
    assert translations == [best.text for best, *_ in found]


def _model(translator: TranslationModule) -> loading.LoadedModel:
    return loading.LoadedModel("", 1, translator.translate, translator.lengths, translator)


def test_an_export_that_needs_more_than_tensorflow_is_refused(
    translator: TranslationModule, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    with pytest.raises(RuntimeError, match=mentions("TensorFlow", "tensorflow-text", "OSError")):
        comparison.compare(translator, broken, PHRASES[:1])
    # The package must not be imported.
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


def test_ties_are_reported_and_differences_are_refused(translator: TranslationModule) -> None:
    (own,) = comparison.Hypotheses.of(translator.search(tf.constant(["a"])))

    def difference(of_scores: float, of_ids: int = 1) -> str | None:
        other = own._replace(ids=own.ids + of_ids, scores=own.scores + np.float32(of_scores))
        return comparison.compare_sentence(own, other, "sentence 1 ('a')", "a")

    assert difference(5e-5, of_ids=0) is None
    assert tells(difference(5e-5) or "", "sentence 1", "'a'", "score")
    with pytest.raises(InputError, match=mentions("sentence 1", "'a'", "score")):
        difference(2e-4)
    with pytest.raises(InputError, match=mentions("score", "nan")):
        difference(float("nan"), of_ids=0)


def test_a_run_without_translations_is_not_exported() -> None:
    none = np.zeros(1, np.int32)
    nothing = comparison.Hypotheses(none[:, None], none, np.full(1, -1e9))
    with pytest.raises(InputError, match=mentions("sentence 2", "'a'", "run")):
        comparison.compare_sentence(nothing, nothing, "sentence 2 ('a')", "a")
    assert comparison.compare_sentence(nothing, nothing, "sentence 1", " ") is None


def test_different_scores_and_tokens_are_errors(
    translator: TranslationModule, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_process, answers = comparison._fresh_process, {}

    @contextlib.contextmanager
    def changed(path: Path, request: Any) -> Iterator[Any]:
        if not answers:
            with fresh_process(path, request) as wait:
                answers.update(wait())
        yield lambda: {**answers, name: answers[name] + difference}

    monkeypatch.setattr(comparison, "_fresh_process", changed)
    name, difference = "translate_ids", 0.01
    with pytest.raises(InputError, match=mentions("translate_ids", "scores")):
        comparison.compare(translator, exported, PHRASES[:2])
    probes = ProbeTexts(["a", "a\u3000b"], ["a"])
    answers.clear()
    name, difference = "tokens", 0
    assert comparison.compare(translator, exported, PHRASES[:2], probes=probes).ties == []
    answers["tokens"][-2] += 1
    with pytest.raises(InputError, match=mentions(r"'a\u3000b'", "tokens", "Nothing was exported")):
        comparison.compare(translator, exported, PHRASES[:2], probes=probes)
    answers["tokens"][-2] -= 1
    name, difference = "scores_0", np.where(np.arange(3)[:, None] == 2, 0.01, 0)
    with pytest.raises(InputError, match=mentions("the generated text 'a'", "score")):
        comparison.compare(translator, exported, PHRASES[:2], probes=probes)
    answers.clear()
    name, difference = "ids_0", 1
    with pytest.raises(InputError, match=mentions("2 of 2", "tokens")):
        comparison.compare(translator, exported, PHRASES[:2])
