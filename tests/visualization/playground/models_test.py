"""What the page is told of a model, and what it is refused."""

from __future__ import annotations

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.visualization.playground import answers
from keras_transformer.visualization.playground.models import (
    MAX_CHARACTERS,
    Hypothesis,
    PlaygroundModel,
    open_model,
)
from tests.conftest import PHRASES
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def model(run_directory: RunDirectory) -> PlaygroundModel:
    return open_model(str(run_directory.path))


def test_is_what_bin_translate_tells_in_detail(
    model: PlaygroundModel, run_directory: RunDirectory
) -> None:
    beam = run_directory.config.decoding.beam_size
    translated = model.translate(PHRASES[0])
    assert len(translated.hypotheses) == beam > 1 and translated.remarks == []
    run = loading.load_model(run_directory.path, {"decoding.n_best": beam})
    (detail,) = translate.translate_in_detail(run, PHRASES[:1])
    assert translated.source_tokens == detail["source_tokens"]
    for found, expected in zip(translated.hypotheses, detail["translations"], strict=True):
        assert (found.text, found.tokens) == (expected["text"], expected["tokens"])
        assert found.alignment == expected["alignment"]
        np.testing.assert_allclose(found.score, expected["score"], atol=1e-5)
        np.testing.assert_allclose(found.log_probs, expected["token_log_probs"], atol=1e-5)


def test_prefix_and_length_penalty_count(model: PlaygroundModel) -> None:
    begun = model.translate(PHRASES[0], prefix="ein roter")
    assert all(each.text.startswith("ein roter") for each in begun.hypotheses)
    own, other = (model.translate(PHRASES[0], length_penalty=alpha) for alpha in (None, 0.0))
    best = other.hypotheses[0]
    assert own.hypotheses[0].score != pytest.approx(best.score)
    assert best.score == pytest.approx(sum(best.log_probs), abs=1e-4)  # log P alone
    assert own.remarks == other.remarks == []
    whole, exact = (model.translate(PHRASES[0], length_penalty=alpha) for alpha in (1, 1.0))
    assert whole == exact
    (remark,) = model.translate(PHRASES[0], length_penalty=-1.0).remarks
    assert tells(remark, "length penalty")


def test_what_is_cut_is_said(model: PlaygroundModel) -> None:
    translated = model.translate("ball " * 300)
    limit = len(translated.source_tokens)
    assert translated.remarks == [f"the source is longer; its first {limit} tokens were taken"]


def test_refusals(model: PlaygroundModel, run_directory: RunDirectory) -> None:
    for text, sentence in (
        (" \n", mentions("nothing")),
        ("a" * (MAX_CHARACTERS + 1), mentions("10,001", "10,000", "characters")),
        ("a \ud800", mentions("text", "UTF-8")),
    ):
        with pytest.raises(InputError, match=sentence):
            model.translate(text)
    with pytest.raises(InputError, match=mentions("beginning", "20,000")):
        model.translate("a", prefix="a" * 20_000)
    for place, settings, sentence in (
        ("localhost:1/export", {"decoding.beam_size": "2"}, mentions("server", "decoding")),
        ("grpc://localhost:1/export", {}, mentions("localhost:1", "answer")),
        ("no/such/run", {}, "no/such/run"),
        (str(run_directory.path), {"decoding.beam_size": "0"}, mentions("beam_size", "0")),
    ):
        with pytest.raises(InputError, match=sentence):
            open_model(place, settings)
    with pytest.raises(InputError, match=mentions("signature", "attention", "LiteRT")):
        PlaygroundModel("a place", {})


def test_text_is_never_markup() -> None:
    odd = "<b>&\"'</script>"
    hypothesis = Hypothesis(odd, -1.0, [odd, "</s>"], [0.0, float("-inf")], [0, -1])
    shown = answers.alignment([odd], hypothesis) + answers.failure(odd) + answers.remarks([odd])
    assert '<b>&"' not in shown and "</script>" not in shown
    assert shown.count("&lt;b&gt;&amp;&quot;&#x27;&lt;/script&gt;") == 4
    assert "100 %" in shown and ">0 %" in shown
