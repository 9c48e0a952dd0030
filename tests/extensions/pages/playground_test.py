"""The playground shows the translations of a run, an export and a server, and reports problems."""

import importlib
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.conftest import PHRASES
from tests.extensions.serving.running_server import running_server
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def playground() -> Any:
    """The module, which takes seconds to load, so processes without these tests do not load it."""
    pytest.importorskip("gradio", reason="the extra [demo] is not installed; bin/test installs it")
    return importlib.import_module("keras_transformer.extensions.pages.playground")


@pytest.fixture(scope="module")
def model(playground: Any, run_directory: RunDirectory) -> Any:
    return playground.open_playground_model(str(run_directory.path))


def test_translations_equal_those_of_the_run(model: Any, run_directory: RunDirectory) -> None:
    beam = run_directory.config.decoding.beam_size
    answer = model.translate(PHRASES[0])
    assert len(answer.hypotheses) == beam > 1 and answer.remarks == []
    run = loading.load_model(run_directory.path, {"decoding.n_best": beam})
    (detail,) = translate.translate_verbose(run, PHRASES[:1])
    assert answer.source_tokens == detail["source_tokens"]
    for found, expected in zip(answer.hypotheses, detail["translations"], strict=True):
        assert (found.text, found.tokens) == (expected["text"], expected["tokens"])
        assert found.alignment == expected["alignment"]
        np.testing.assert_allclose(found.score, expected["score"], atol=1e-5)
        np.testing.assert_allclose(found.log_probs, expected["token_log_probs"], atol=1e-5)


@pytest.mark.long
def test_an_export_and_a_server_show_the_same(
    playground: Any, model: Any, exported_run: Path
) -> None:
    with running_server(exported_run) as served:
        with pytest.raises(InputError, match=mentions("server", "decoding.beam_size")):
            playground.open_playground_model(served.rest, {"decoding.beam_size": "2"})
        others = [
            playground.open_playground_model(label) for label in (str(exported_run), served.rest)
        ]
        for source, other in itertools.product([PHRASES[0], "a " * 100], others):
            expected, found = model.translate(source, "ein"), other.translate(source, "ein")
            assert found.source_tokens == expected.source_tokens
            assert found.remarks == expected.remarks
            assert len(found.hypotheses) == 2 < len(expected.hypotheses)
            for one, same in zip(found.hypotheses, expected.hypotheses, strict=False):
                assert one._replace(score=0, log_probs=[]) == same._replace(score=0, log_probs=[])
                assert one.score == pytest.approx(same.score, abs=1e-4)
            target = expected.hypotheses[0].text
            seen, known = other.attention(source, target), model.attention(source, target)
            assert seen.predicted_tokens == known.predicted_tokens
            np.testing.assert_allclose(seen.cross, known.cross, atol=1e-4)


def test_prefix_length_penalty_and_remarks(model: Any) -> None:
    started = model.translate(PHRASES[0], prefix="ein roter")
    assert all(hypothesis.text.startswith("ein roter") for hypothesis in started.hypotheses)
    own, other = (model.translate(PHRASES[0], length_penalty=alpha) for alpha in (None, 0))
    best = other.hypotheses[0]
    assert own.hypotheses[0].score != pytest.approx(best.score)
    assert best.score == pytest.approx(sum(best.log_probs), abs=1e-4)
    assert own.remarks == other.remarks == []
    (remark,) = model.translate(PHRASES[0], length_penalty=-1.0).remarks
    assert tells(remark, "length penalty")
    long = model.translate("ball " * 300)
    assert tells(long.remarks[0], "source", len(long.source_tokens))


def test_invalid_models(playground: Any, run_directory: RunDirectory) -> None:
    refuses(playground.open_playground_model, ("no/such/run", {}), "no/such/run")
    settings = {"decoding.beam_size": "0"}
    refuses(playground.open_playground_model, (str(run_directory.path), settings), "beam_size", "0")
    refuses(playground.PlaygroundModel, ("a label", {}), "signatures", "attention", "LiteRT")


def test_two_models_answer_in_one_event_and_a_port_in_use_is_refused(
    playground: Any, run_directory: RunDirectory, model: Any, tmp_path: Path
) -> None:
    run = shutil.copytree(run_directory.path, tmp_path / "run")
    (run / "data_report.json").write_text(json.dumps({"examples": ["a dog", "a cat"]}))
    assert playground.open_playground_model(str(run)).examples == ["a dog", "a cat"]
    (run / "data_report.json").write_text('["damaged"]')
    assert playground.open_playground_model(str(run)).examples == []
    page = playground.build_page([model, model], examples=PHRASES[:2])
    [event] = [event for event in page.fns.values() if event.api_name == "translate"]
    answers = event.fn(PHRASES[0], "", None)
    assert len(answers) == 2 * 5
    expected = model.translate(PHRASES[0]).hypotheses
    for summary, update, aligned, attention, kept in (answers[:5], answers[5:]):
        assert [label.split(maxsplit=1)[1] for label, _ in update["choices"]] == [
            hypothesis.text or "(empty)" for hypothesis in expected
        ]
        assert PHRASES[0] in summary and kept.hypotheses == expected
        assert aligned.count("<li ") == len(expected[0].tokens)
        assert "<iframe" in attention and "\u240a" not in attention
    blank = event.fn(" ", "", None)
    assert "There is nothing to translate" in blank[0] and blank[1]["choices"] == []

    address = playground.serve(page, "127.0.0.1", 0, open_browser=False)
    port = int(address.rstrip("/").rpartition(":")[2])
    with pytest.raises(InputError, match=f"127.0.0.1:{port}"):
        playground.serve(playground.build_page([model]), "127.0.0.1", port, open_browser=False)
    upload = httpx.post(f"{address}gradio_api/upload", files={"files": b"ab"}, trust_env=False)
    assert upload.status_code == 413
    page.close(verbose=False)


def test_markup_is_shown_as_text(playground: Any) -> None:
    odd = "<img src=x onerror=alert(1)>"
    hypothesis = playground.Hypothesis(odd, -1.0, [odd, "</s>"], [-1.0, float("-inf")], [0, -1])
    shown = playground.show_alignment([odd], hypothesis)
    assert "<img" not in shown and shown.count("&lt;img") == 2
    assert re.findall(r"<small>(.*?)</small>", shown) == ["37 %", "0 %"]
