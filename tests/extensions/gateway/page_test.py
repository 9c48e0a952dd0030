"""The page in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser import launched_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched_browser() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_translates_text_and_files(
    browser: Any, client: httpx.Client, tmp_path: Path, scheme: str
) -> None:
    size = {"width": 1200, "height": 800} if scheme == "light" else {"width": 360, "height": 640}
    from playwright.sync_api import expect

    page = browser.new_page(viewport=size, color_scheme=scheme, accept_downloads=True)
    requested, problems = list[str](), list[str]()
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(str(client.base_url))
    page.wait_for_selector("#source option[value=en]", state="attached")
    assert page.locator("#source option").count() == 5
    assert page.text_content("#target option[value=es]") == "Spanish"  # only a target
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    page.select_option("#target", "fr")
    page.keyboard.press("Tab")
    page.fill("#text", "A wall")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#result")).to_have_text("Adefr walldefr")
    assert "English (75 %), by way of German" in page.text_content("#state")
    assert page.text_content("#others li") == "ADEFR WALLDEFR"
    page.select_option("#source", "en")
    page.select_option("#target", "de")
    expect(page.locator("#result")).to_have_text("Ade wallde")
    page.keyboard.press("Alt+S")
    expect(page.locator("#result")).to_have_text("Adeen walldeen")
    assert (page.input_value("#source"), page.input_value("#target")) == ("de", "en")
    (tmp_path / "a.txt").write_text("A wall")
    page.set_input_files("#file", tmp_path / "a.txt")
    with page.expect_download() as download:
        page.click("#state a")
    assert Path(download.value.path()).read_text() == "Aen wallen"
    page.fill("#text", "a" * 6_000)  # the page cuts it, but the server would refuse it, too
    assert len(page.input_value("#text")) >= 5_000
    assert {url.startswith((str(client.base_url), "data:")) for url in requested} == {True}
    assert problems == []
    page.close()
