"""The page of the playground, without a browser."""

from __future__ import annotations

import re

import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.playground.models import Hypothesis, open_playground_model
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES

pytest.importorskip("gradio", reason="the extra [demo] is not installed; bin/test installs it")
from keras_transformer.extensions.pages.playground import page as playground


def test_two_models_answer_in_one_event_and_a_port_in_use_is_refused(
    run_directory: RunDirectory,
) -> None:
    places = [f"{run_directory.path}{end}" for end in ("", "@step-00000100")]
    models = [open_playground_model(place) for place in places]
    page = playground.build_page(models, examples=PHRASES[:2])
    [event] = [each for each in page.fns.values() if each.api_name == "translate"]
    answers = event.fn(PHRASES[0], "", None)
    assert len(answers) == 2 * 5
    for model, (summary, update, aligned, attention, kept) in zip(
        models, (answers[:5], answers[5:]), strict=True
    ):
        expected = model.translate(PHRASES[0]).hypotheses
        assert [label.split(maxsplit=1)[1] for label, _ in update["choices"]] == [
            hypothesis.text or "(empty)" for hypothesis in expected
        ]
        assert PHRASES[0] in summary and kept.translated.hypotheses == expected
        assert aligned.count("<li ") == len(expected[0].tokens) and "<iframe" in attention
    blank = event.fn(" ", "", None)
    assert "There is nothing to translate" in blank[0] and blank[1]["choices"] == []

    address = playground.serve(page, "127.0.0.1", 0, open_browser=False)
    port = int(address.rstrip("/").rpartition(":")[2])
    with pytest.raises(InputError, match=f"127.0.0.1:{port}"):
        playground.serve(playground.build_page(models[:1]), "127.0.0.1", port, open_browser=False)
    page.close(verbose=False)


def test_markup_is_shown_as_text() -> None:
    odd = "<img src=x onerror=alert(1)>"
    hypothesis = Hypothesis(odd, -1.0, [odd, "</s>"], [-1.0, float("-inf")], [0, -1])
    shown = playground.alignment([odd], hypothesis)
    assert "<img" not in shown and shown.count("&lt;img") == 2
    assert re.findall(r"<small>(.*?)</small>", shown) == ["37 %", "0 %"]
