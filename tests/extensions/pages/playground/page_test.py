"""The playground in a browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.playground.models import (
    Hypothesis,
    PlaygroundModel,
    Translated,
    open_playground_model,
)
from keras_transformer.runs.run_directory import RunDirectory
from tests.browser import Visit
from tests.conftest import PHRASES
from tests.messages import mentions, tells

pytest.importorskip("gradio", reason="the extra [demo] is not installed; bin/test installs it")
from keras_transformer.extensions.pages.playground import page as playground


@pytest.fixture(scope="module")
def models(run_directory: RunDirectory) -> list[PlaygroundModel]:
    models = [open_playground_model(f"{run_directory.path}{end}") for end in ("", "@step-00000100")]
    for model in models:
        model.warm_up()  # no test waits for graphs
    return models


@pytest.fixture(scope="module")
def address(models: list[PlaygroundModel]) -> Iterator[str]:
    blocks = playground.build_page(models, examples=PHRASES[:2])
    yield playground.serve(blocks, "127.0.0.1", 0, open_browser=False)
    blocks.close(verbose=False)


@pytest.fixture
def page(visit: Visit, address: str) -> Any:
    visit.page.set_default_timeout(30_000)
    visit.page.goto(address)
    visit.page.get_by_text("Settings").wait_for()  # the last element
    return visit.page


def listed(page: Any, number: int) -> list[str]:
    """Returns the translations of a model with their scores, after waiting for them."""
    page.locator(f"#n-best-{number} label").first.wait_for()
    found = page.locator(f"#n-best-{number} label").all_text_contents()
    return [re.sub(r"\s+", " ", each).strip() for each in found]


def translate(page: Any, source: str) -> None:
    page.get_by_label("Source").fill(source)
    page.get_by_role("button", name="Translate", exact=True).click()


def test_two_models_translate_the_same_text(
    page: Any, visit: Visit, address: str, models: list[PlaygroundModel]
) -> None:
    translate(page, PHRASES[0])
    expected = [model.translate(PHRASES[0]).hypotheses for model in models]
    for number, hypotheses in enumerate(expected):
        assert listed(page, number) == [f"{each.score:.3f} {each.text}" for each in hypotheses]
    assert expected[0][0].text != expected[1][0].text

    aligned = page.locator("#alignment-0 .alignment b").all_text_contents()
    assert aligned == [token.replace("▁", "_") for token in expected[0][0].tokens]
    page.locator("#n-best-0 input").nth(1).check()
    second = [token.replace("▁", "_") for token in expected[0][1].tokens]
    page.wait_for_function(
        "(all) => [...document.querySelectorAll('#alignment-0 b')].map((b) => b.textContent)"
        ".join(' ') == all",
        arg=" ".join(second),
    )

    page.get_by_role("tab", name="Attention").first.click()
    frame = page.frame_locator("#attention-0 iframe")
    frame.locator("#queries button").first.wait_for()
    source = models[0].translate(PHRASES[0]).source_tokens
    assert frame.locator("#queries button").all_text_contents() == [
        token.replace("▁", "_") for token in source
    ]
    foreign = [url for url in visit.requests if not url.startswith((address, "data:", "about:"))]
    assert foreign == []
    assert PHRASES[0] not in page.evaluate("JSON.stringify(localStorage)")


def test_enter_key_and_settings(page: Any, models: list[PlaygroundModel]) -> None:
    page.get_by_text("Settings").click()
    page.get_by_label("The translation begins with").fill("ein")
    page.get_by_label("Length penalty").fill("1")
    page.get_by_label("Source").fill(PHRASES[1])
    page.get_by_label("Source").press("Enter")
    for number, model in enumerate(models):
        hypotheses = model.translate(PHRASES[1], "ein", 1).hypotheses
        assert listed(page, number) == [f"{each.score:.3f} {each.text}" for each in hypotheses]
        assert f"“{PHRASES[1]}”" in page.locator(f"#said-{number}").text_content()
        assert page.get_by_role("heading", name=model.name, exact=True, level=2).count() == 1
    both = f"Playground: {models[0].name} and {models[1].name}"
    assert page.get_by_role("heading", name=both, level=1).count() == 1
    page.get_by_label("Length penalty").fill("-1")
    page.get_by_role("button", name="Translate", exact=True).click()
    page.get_by_text("The length penalty is out of range.").first.wait_for()
    assert page.locator("#said-0 .legend").count() == 1  # the text is translated


def test_both_models_translate_the_text_of_the_click(
    page: Any, models: list[PlaygroundModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    original = models[0].translate

    def slowly(*arguments: Any) -> Translated:
        asked.wait(10)
        return original(*arguments)

    monkeypatch.setattr(models[0], "translate", slowly)
    translate(page, PHRASES[0])
    page.wait_for_timeout(300)
    page.get_by_label("Source").fill(PHRASES[1])
    asked.set()
    for number in (0, 1):
        page.locator(f"#said-{number}").get_by_text(f"“{PHRASES[0]}”").wait_for()


def test_error_disappears_with_the_next_translation(page: Any) -> None:
    page.get_by_role("button", name="Translate", exact=True).click()
    alert = page.locator("#said-0 [role=alert]")
    alert.wait_for()
    assert tells(alert.text_content(), "nothing", "sentence")
    translate(page, "ball " * 300)
    page.get_by_text("The source is too long.").first.wait_for()
    assert alert.count() == 0 and len(listed(page, 0)) > 1
    page.locator("#n-best-0 input").nth(1).check()
    page.wait_for_timeout(500)
    assert "The source is too long." in page.locator("#said-0").text_content()


def test_markup_is_shown_as_text(
    page: Any, models: list[PlaygroundModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "<img src=x onerror=alert(1)> ${1+1} {{source}} </textarea>"
    hypothesis = Hypothesis(odd, -1.0, [odd, "</s>"], [-1.0, float("-inf")], [0, -1])
    monkeypatch.setattr(models[0], "translate", lambda *_: Translated([odd], [hypothesis], [odd]))
    translate(page, odd)
    assert listed(page, 0) == [f"-1.000 {odd}"]
    assert page.locator("#alignment-0 b").all_text_contents() == [odd, "</s>"]
    assert page.locator("#alignment-0 small").all_text_contents() == ["37 %", "0 %"]
    assert page.locator("#said-0").text_content().count(odd) == 2
    page.get_by_role("tab", name="Attention").first.click()
    frame = page.frame_locator("#attention-0 iframe")
    frame.locator("#queries button").first.wait_for()
    assert odd in frame.locator("header").text_content()
    page.get_by_text("The tokens of this text differ").wait_for()
    for place in ("#said-0", "#n-best-0", "#alignment-0", "#attention-0"):
        assert page.locator(f"{place} img").count() == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("The server is down."), "The server is down."),
        (RuntimeError("a bug"), "An unexpected error occurred. The terminal shows the details."),
    ],
)
def test_failing_attention_leaves_the_translations(
    page: Any,
    models: list[PlaygroundModel],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(models[0], "attention", fail)
    translate(page, PHRASES[0])
    assert len(listed(page, 0)) > 1 and page.locator("#alignment-0 b").count() > 1
    page.get_by_role("tab", name="Attention").first.click()
    assert page.locator("#attention-0 [role=alert]").text_content() == message
    page.get_by_role("tab", name="Attention").nth(1).click()
    page.frame_locator("#attention-1 iframe").locator("#queries button").first.wait_for()


def test_port_that_is_in_use(models: list[PlaygroundModel], address: str) -> None:
    port = int(address.rstrip("/").rpartition(":")[2])
    with pytest.raises(InputError, match=mentions(f"127.0.0.1:{port}")):
        playground.serve(playground.build_page(models[:1]), "127.0.0.1", port, open_browser=False)
