"""Translation of lines and test sets."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference import Translation, batching, loading, scoring
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.translate import (
    NO_TRANSLATION,
    changed_numbers,
    evaluate,
    format_translations,
    translate_lines,
    translate_to_text,
    translate_verbose,
    translation_warnings,
    with_details,
)
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import nan_weights, old_vocabulary, refuses
from tests.conftest import PHRASES
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def model(run_directory: RunDirectory) -> Engine:
    return loading.load_model(run_directory.path)


@pytest.fixture(scope="module")
def several(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An ensemble that finishes some translations."""
    path = shutil.copytree(run_directory.path, tmp_path_factory.mktemp("several") / "run")
    members = f"{path}@step-00000100,{path}@step-00000300"
    model = loading.load_model(members, {"decoding.n_best": 2})
    for transformer in model.module.transformers:
        embeddings = transformer.weights_by_path()["embedding/embeddings"]
        factors = np.ones_like(embeddings[:, :1])
        factors[model.module.tokenizer.end_id] = 8
        embeddings.assign(embeddings * factors)
    return model


class TestTranslateLines:
    def test_results_are_in_the_order_of_the_lines(self, model: Engine) -> None:
        lines = [*PHRASES, "", "ball " * 12, *reversed(PHRASES)]
        results = translate_lines(model, lines)
        for line, result in zip(lines, results, strict=True):
            alone = model.translate(text=tf.constant([line]))
            assert [t.text for t in result] == [alone["translations"].numpy()[0, 0].decode()]
            assert result[0].score == pytest.approx(alone["scores"].numpy()[0, 0], abs=1e-4)

    def test_unused_places_are_omitted(self, several: Engine) -> None:
        results = translate_lines(several, [PHRASES[0], ""])
        assert [len(result) for result in results] == [2, 1]
        assert results[1] == [Translation("", 0.0)]
        text = format_translations(several, results)
        assert [line.split(" ||| ")[0] for line in text.splitlines()] == ["0"] * 2 + ["1"]
        assert text.endswith("1 |||  ||| 0.0000\n")

    def test_aligned_words_follow_the_translation(self, model: Engine) -> None:
        details = {
            "source_tokens": ["▁a", "▁small", "▁do", "g", "</s>"],
            "tokens": ["▁ein", "▁kleine", "r", "▁Hund", ".", "</s>"],
            "alignment": [0, 1, 1, 3, 4, 4],
            "finished": True,
        }
        results = [[Translation("ein kleiner Hund.", -1.0, details)], [NO_TRANSLATION]]
        expected = "ein kleiner Hund. ||| 0-0 1-1 2-2\n ||| \n"
        assert format_translations(model, results, with_alignment=True) == expected
        text, _, _ = translate_to_text(model, PHRASES, format="moses")
        expected = [best.text for best, *_ in translate_lines(model, PHRASES)]
        assert [line.split(" ||| ")[0] for line in text.splitlines()] == expected

    def test_no_lines(self, model: Engine) -> None:
        assert translate_lines(model, []) == []
        assert translate_to_text(model, []) == ("", [], None)
        assert translate_verbose(model, [], []) == []

    def test_warnings_name_unused_prefixes(self, model: Engine) -> None:
        results = [[Translation(text, -1.0)] for text in ("ein Hund", "", "das Haus")]
        prefixes = ["  ein ", "", "☃ das"]
        counts = batching.token_counts(model.lengths, ["a"] * 3)
        (warning,) = translation_warnings(model, counts, results, prefixes)
        assert tells(warning, "line 3", "prefix")


def test_numbers_that_an_old_vocabulary_changes_are_reported() -> None:
    model, plain = Engine(), Engine()
    model.vocabulary = old_vocabulary()
    [(index, remark)] = changed_numbers(model, ["a", "é 10³ liters, 5é"])
    assert index == 1 and tells(remark, "'10³'", "'103'", "nfkc_numbers")
    assert changed_numbers(model, ["10 é"]) == [] == changed_numbers(plain, ["10³"])


def test_nan_weights_translate_nothing(model: Engine) -> None:
    with nan_weights(model.module.transformer.weights_by_path()["embedding/embeddings"]):
        text, (nothing, empty), remark = translate_to_text(model, [PHRASES[0], ""])
    assert (text, remark) == ("\n\n", None)
    assert tells(nothing, "line 1", "translation", "logits")
    assert tells(empty, "line 2", "empty")
    assert with_details([{"source_tokens": ["a"], "translations": []}]) == [[NO_TRANSLATION]]


class TestTranslateInDetail:
    LINES = (PHRASES[0], "", "ball", *PHRASES[3:], "ball " * 30)

    def test_details_of_each_translation(self, several: Engine) -> None:
        results = translate_verbose(several, self.LINES, attention=True)
        json.dumps(results, allow_nan=False)
        plain = translate_lines(several, self.LINES)
        used = batching.token_counts(several.lengths, self.LINES)["used"]
        scorer = scoring.Scorer(several.module)
        for line, best, length, result in zip(self.LINES, plain, used, results, strict=True):
            source, found = result["source_tokens"], result["translations"]
            assert len(source) == length and source[-1] == "</s>"
            text = "".join(source[:-1]).replace("▁", " ").strip()
            assert text == line.strip() or length == 40 and line.startswith(text)
            assert [translation["text"] for translation in found] == [one.text for one in best]
            for translation, one in zip(found, best, strict=True):
                assert translation["score"] == pytest.approx(one.score, abs=1e-4)
                assert_consistent(translation, len(source))
                if ids := translation["ids"]:
                    (rescored,) = scoring.score_ids(scorer, [line], [ids])
                    assert translation["log_prob"] == pytest.approx(rescored.sum(), abs=1e-4)
                    score = scoring.penalized(rescored, several.module.config)
                    assert translation["score"] == pytest.approx(score, abs=1e-4)
        assert {t["finished"] for result in results for t in result["translations"]} == {0, 1}
        assert results[1]["translations"] == [
            {"text": "", "score": 0.0, "log_prob": 0.0, "finished": False, "tokens": [], "ids": []}
            | {"token_log_probs": [], "alignment": [], "attention": []}
        ]

    def test_prefixes_stay_with_their_lines(self, several: Engine) -> None:
        prefixes = ["", "ein", "das", "zwei", "", "mit", "Haus"]  # batches have another order
        results = translate_verbose(several, self.LINES, prefixes)
        assert results[1]["translations"][0]["text"] == ""  # empty sources have empty translations
        for prefix, result in list(zip(prefixes, results, strict=True))[2:]:
            for translation in result["translations"]:
                assert translation["text"].startswith(prefix)
        with pytest.raises(InputError, match=mentions("7", "lines", "6", "prefixes")):
            translate_verbose(several, self.LINES, prefixes[1:])


def assert_consistent(translation: dict[str, Any], source_length: int) -> None:
    """Checks that the fields of a translation are consistent."""
    length = len(translation["ids"])
    assert sum(translation["token_log_probs"]) == pytest.approx(translation["log_prob"], abs=1e-4)
    for name in ("tokens", "token_log_probs", "alignment", "attention"):
        assert len(translation[name]) == length
    assert translation["finished"] == (translation["tokens"][-1:] == ["</s>"])
    pieces = translation["tokens"][: length - translation["finished"]]
    assert "".join(pieces).replace("▁", " ").strip() == translation["text"]
    for row, position in zip(translation["attention"], translation["alignment"], strict=True):
        assert len(row) == source_length
        assert sum(row) == pytest.approx(1, abs=1e-2)
        assert row[position] == max(row)


class TestEvaluate:
    def test_own_translations_score_perfectly(self, model: Engine) -> None:
        sources = list(PHRASES)
        own = [best.text for best, *_ in translate_lines(model, sources)]
        result = evaluate(model, sources, own, tokenize="none")
        assert result.hypotheses == own
        assert (result.scores.exact_match, result.scores.sentences) == (1, 6)
        others = [*own[:3], *["something else"] * 3]
        assert evaluate(model, sources, others).scores.exact_match == 0.5

    def test_invalid_inputs_are_refused_before_translating(
        self, model: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            raise AssertionError("translated")

        monkeypatch.setattr(model, "translate", translate)
        refuses(evaluate, (model, ["a", "b"], ["a"]), "source", "2", "reference", "1")
        refuses(lambda: evaluate(model, ["a"], ["a"], tokenize="14a"), (), "'14a'", "tokenizer")
        refuses(evaluate, (model, [], []), "sentence", "needed")
