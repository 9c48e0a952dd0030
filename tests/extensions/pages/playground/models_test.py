"""The playground shows the translations of the model, and reports invalid input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.playground.models import (
    MAX_CHARACTERS,
    PlaygroundModel,
    open_playground_model,
)
from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def model(run_directory: RunDirectory) -> PlaygroundModel:
    return open_playground_model(str(run_directory.path))


def test_translations_equal_those_of_the_run(
    model: PlaygroundModel, run_directory: RunDirectory
) -> None:
    beam = run_directory.config.decoding.beam_size
    translated = model.translate(PHRASES[0])
    assert len(translated.hypotheses) == beam > 1 and translated.remarks == []
    run = loading.load_model(run_directory.path, {"decoding.n_best": beam})
    (detail,) = translate.translate_verbose(run, PHRASES[:1])
    assert translated.source_tokens == detail["source_tokens"]
    for found, expected in zip(translated.hypotheses, detail["translations"], strict=True):
        assert (found.text, found.tokens) == (expected["text"], expected["tokens"])
        assert found.alignment == expected["alignment"]
        np.testing.assert_allclose(found.score, expected["score"], atol=1e-5)
        np.testing.assert_allclose(found.log_probs, expected["token_log_probs"], atol=1e-5)


def test_prefix_and_length_penalty(model: PlaygroundModel) -> None:
    started = model.translate(PHRASES[0], prefix="ein roter")
    assert all(each.text.startswith("ein roter") for each in started.hypotheses)
    own, other = (model.translate(PHRASES[0], length_penalty=alpha) for alpha in (None, 0.0))
    best = other.hypotheses[0]
    assert own.hypotheses[0].score != pytest.approx(best.score)
    assert best.score == pytest.approx(sum(best.log_probs), abs=1e-4)
    assert own.remarks == other.remarks == []
    whole, exact = (model.translate(PHRASES[0], length_penalty=alpha) for alpha in (1, 1.0))
    assert whole == exact
    (remark,) = model.translate(PHRASES[0], length_penalty=-1.0).remarks
    assert tells(remark, "length penalty")


def test_truncated_source_is_reported(model: PlaygroundModel) -> None:
    translated = model.translate("ball " * 300)
    (remark,) = translated.remarks
    assert tells(remark, "source", len(translated.source_tokens))


@pytest.mark.parametrize(
    ("text", "prefix", "facts"),
    [
        (" \n", "", ("nothing",)),
        ("a" * (MAX_CHARACTERS + 1), "", ("text", "10,001", "10,000", "characters")),
        ("a \ud800", "", ("text", "UTF-8")),
        ("a", "a" * 20_000, ("beginning", "20,000")),
    ],
    ids=["blank", "long", "surrogate", "prefix"],
)
def test_invalid_text(
    model: PlaygroundModel, text: str, prefix: str, facts: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match=mentions(*facts)):
        model.translate(text, prefix)


def test_invalid_models(run_directory: RunDirectory) -> None:
    for place, settings, facts in (
        ("localhost:1/export", {"decoding.beam_size": "2"}, mentions("server", "decoding")),
        ("localhost:1/export", {}, mentions("localhost:1", "respond")),
        ("no/such/run", {}, "no/such/run"),
        (str(run_directory.path), {"decoding.beam_size": "0"}, mentions("beam_size", "0")),
    ):
        with pytest.raises(InputError, match=facts):
            open_playground_model(place, settings)
    with pytest.raises(InputError, match=mentions("signatures", "attention", "LiteRT")):
        PlaygroundModel("a place", {})


def test_examples_are_validation_sentences_of_the_data(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_directory.path, run)
    assert open_playground_model(str(run)).examples == []
    (run / "data_report.json").write_text(json.dumps({"examples": ["a dog", 3, " ", "a cat"]}))
    assert open_playground_model(str(run)).examples == ["a dog", "a cat"]
    (run / "data_report.json").write_text("[")
    assert open_playground_model(str(run)).examples == []
