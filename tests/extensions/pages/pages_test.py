"""The pages: well-formed HTML for any tokens, and what a user sees in a browser."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from keras_transformer.extensions.pages.attention import TITLES, Attention
from keras_transformer.extensions.pages.embeddings import project
from keras_transformer.extensions.pages.pages import (
    attention_page,
    embeddings_page,
)
from tests.browser import Visit
from tests.extensions.pages.pairs import SOURCE, random_attention
from tests.html_page import Page

ODD = ["▁</script>", "<b>", "&amp;", "\"'", "▁ü\u2028猫", "</s>"]


def test_page_has_all_weights() -> None:
    pair = random_attention(heads=3)
    page = Page(attention_page(pair, "run", "the cat sleeps", None))
    for kind, name in TITLES.items():
        data = page.data["attentions"][kind]
        weights = pair.weights(kind)
        assert (data["layers"], data["heads"]) == weights.shape[:2]
        found = np.frombuffer(base64.b64decode(data["weights"]), np.uint8) / 255
        np.testing.assert_allclose(found.reshape(weights.shape), weights, atol=0.5 / 255 + 1e-6)
        assert data["queries"] == pair.queries(kind) and data["keys"] == pair.keys(kind)
        assert name in page.text
    for fact in (
        "Model run ",
        "Source the cat sleeps ",
        "Target (by the model) die katze schläft ",
    ):
        assert fact in page.text


def test_page_of_a_base_model_is_small() -> None:
    tokens = [f"▁token{i}" for i in range(64)]
    pair = random_attention(tokens, tokens, tokens, layers=(6, 6), heads=8)
    assert len(attention_page(pair, "run", "source", "target").encode()) < 1_000_000


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
@hypothesis.example(["</script>", "<!--", "<script>", "]]>"])
@hypothesis.example(["\u2028", "\u2029", "&lt;", '"'])
@hypothesis.example(["\0", "\ud800", "\\u003c", "'"])
def test_any_token_is_text(tokens: list[str]) -> None:
    pair = random_attention(tokens, tokens, tokens, layers=(1, 1), heads=1, target_text=tokens[0])
    page = Page(attention_page(pair, tokens[0], " ".join(tokens), None))
    assert page.data["attentions"]["encoder"]["queries"] == [t.replace("▁", "_") for t in tokens]
    assert page.tags["script"] == 2
    points = Page(embeddings_page(project(np.eye(len(tokens))), tokens, tokens[0]))
    assert points.data["sentences"] == tokens and points.tags["script"] == 2


# In a browser.


def open_pair(visit: Visit, pair: Attention, folder: Path) -> Any:
    path = folder / "attention.html"
    path.write_text(attention_page(pair, "build/run", "the source", None), encoding="utf-8")
    return visit.open(path)


def choose(page: Any, kind: str, layer: int, head: int | None) -> None:
    """Chooses a layer and a head, counted from 1. None is the mean of all heads."""
    page.check(f"input[value={kind}]")
    page.select_option("select[name=layer]", label=str(layer))
    page.select_option("select[name=head]", label="mean of all" if head is None else str(head))


def token(page: Any, side: str, index: int) -> Any:
    return page.locator(f"#{side} button").nth(index)


def listed(page: Any) -> dict[int, int]:
    """Returns percent by position, from 1, as the table shows them."""
    rows = page.locator("#weights tbody tr").all()
    cells = [[cell.text_content() for cell in row.locator("td").all()] for row in rows]
    return {int(position): int(percent.removesuffix(" %")) for percent, _, position in cells}


def assert_shown(page: Any, weights: np.ndarray) -> None:
    """Checks that all large weights are listed, the largest first, with an error below 1 %."""
    found = listed(page)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    expected = [position for position, weight in enumerate(weights, start=1) if weight > 0.01]
    assert set(expected) <= set(found)
    for position, percent in found.items():
        assert abs(percent - 100 * weights[position - 1]) < 0.8


def lines(page: Any) -> dict[tuple[int, int], float]:
    """Returns the opacities of the lines by their ends."""
    row = page.evaluate(
        "parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row'))"
    )
    found = page.eval_on_selector_all(
        "#lines line",
        "(all) => all.map((line) => ['y1', 'y2', 'stroke-opacity'].map("
        "(name) => Number(line.getAttribute(name))))",
    )
    return {(int(y1 / row), int(y2 / row)): opacity for y1, y2, opacity in found}


def test_chosen_head_and_token_are_shown(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(heads=3)
    page = open_pair(visit, pair, tmp_path)
    for kind, layer, head, side, index in (
        ("encoder", 1, None, "queries", 2),
        ("encoder", 2, 3, "queries", 2),
        ("decoder", 3, 1, "queries", 3),
        ("cross", 3, 2, "queries", 1),
        ("cross", 1, None, "keys", 4),
    ):
        choose(page, kind, layer, head)
        all_heads = pair.weights(kind)[layer - 1]
        weights = all_heads.mean(0) if head is None else all_heads[head - 1]
        page.mouse.move(0, 0)
        opacities = lines(page)
        visible = {ends for ends, weight in np.ndenumerate(weights) if weight > 0.013}
        assert visible <= set(opacities)
        for ends, opacity in opacities.items():
            assert opacity == pytest.approx(weights[ends], abs=0.004)
        assert page.locator("#queries button").all_text_contents() == pair.queries(kind)
        assert page.locator("#keys button").all_text_contents() == pair.keys(kind)
        assert page.locator("#matrix text").all_text_contents() == pair.keys(kind)

        token(page, side, index).hover()
        assert_shown(page, weights[index] if side == "queries" else weights[:, index])
        label = token(page, side, index).text_content()
        assert page.locator("#of").text_content().startswith(label)
        assert {ends[side == "keys"] for ends in lines(page)} == {index}
    assert page.locator("select[name=layer] option").count() == 3
    page.check("input[value=encoder]")
    assert page.locator("select[name=layer] option").all_text_contents() == ["1", "2"]
    assert visit.said == [] and len(visit.requests) == 1


def test_clicked_token_stays(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention()
    page = open_pair(visit, pair, tmp_path)
    choose(page, "cross", 1, 1)
    token(page, "queries", 1).click()
    assert token(page, "queries", 1).get_attribute("aria-pressed") == "true"
    for position in ((0, 0), None, (0, 0)):
        if position is None:
            token(page, "queries", 3).hover()
        else:
            page.mouse.move(*position)
        assert_shown(page, pair.cross[0, 0, 3 if position is None else 1])
    choose(page, "cross", 3, 2)
    assert_shown(page, pair.cross[2, 1, 1])
    token(page, "queries", 1).click()  # releases it
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    assert listed(page) == {} and page.locator("#help").is_visible()
    token(page, "keys", 0).click()
    page.keyboard.press("Escape")
    assert page.locator("[aria-pressed=true]").count() == 0
    choose(page, "encoder", 1, 1)
    assert visit.said == []


def test_matrix_selects_the_row_at_the_pointer(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(heads=1)
    page = open_pair(visit, pair, tmp_path)
    choose(page, "encoder", 2, 1)
    box = page.locator("#matrix .frame").bounding_box()
    row = box["height"] / len(SOURCE)
    for index in (0, 3, 4):
        page.mouse.move(box["x"] + 20, box["y"] + (index + 0.5) * row)
        assert_shown(page, pair.encoder[1, 0, index])
        beside = token(page, "queries", index).bounding_box()
        middle = beside["y"] + beside["height"] / 2
        assert middle == pytest.approx(box["y"] + (index + 0.5) * row, abs=3)
    page.mouse.click(box["x"] + 20, box["y"] + 1.5 * row)
    page.mouse.move(0, 0)
    assert_shown(page, pair.encoder[1, 0, 1])
    cells = page.eval_on_selector_all(
        "#matrix .cells rect", "(all) => all.map((r) => Number(r.getAttribute('fill-opacity')))"
    )
    expected = pair.encoder[1, 0].ravel()
    np.testing.assert_allclose(cells, expected[np.round(255 * expected) >= 1], atol=0.004)


def test_keyboard_and_screen_reader(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(heads=1)
    page = open_pair(visit, pair, tmp_path)
    page.focus("select[name=head]")
    page.keyboard.press("Tab")
    assert_shown(page, pair.encoder[0].mean(0)[0])
    for key, index in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 4), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent") == pair.queries("encoder")[index]
        assert_shown(page, pair.encoder[0, 0, index])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert token(page, "queries", 1).get_attribute("aria-pressed") == "true"
    said = page.locator("#said")
    assert said.get_attribute("aria-live") == "polite"
    best = int(pair.encoder[0, 0, 1].argmax())
    assert said.text_content().startswith(f"_cat attends to {pair.keys('encoder')[best]} ")
    page.keyboard.press("Tab")  # one stop for each side
    assert page.evaluate("document.activeElement.closest('ol').id") == "keys"
    for role, name in (
        ("list", "Tokens that attend"),
        ("list", "Tokens that are attended to"),
        ("combobox", "Layer"),
        ("radio", "Cross-attention"),
    ):
        assert page.get_by_role(role, name=name, exact=True).count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_tokens_on_a_narrow_screen(browser: Any, scheme: str, tmp_path: Path) -> None:
    pair = random_attention(ODD, ["<s>", *ODD[:-1]], ODD, target_text="<i>a</i>")
    visit = Visit(browser, color_scheme=scheme, viewport={"width": 360, "height": 700})
    page = open_pair(visit, pair, tmp_path)
    for kind in ("encoder", "cross"):
        choose(page, kind, 1, 1)
        assert page.locator("#keys button").all_text_contents() == pair.keys(kind)
        token(page, "queries", 0).hover()
        assert_shown(page, pair.weights(kind)[0, 0, 0])
    assert page.locator("b, i, header script").count() == 0
    assert "<i>a</i>" in page.text_content("header")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360  # the page does not scroll
    assert visit.said == [] and len(visit.requests) == 1
    visit.close()


def test_sentences_are_found_by_point_and_by_word(visit: Visit, tmp_path: Path) -> None:
    sentences = ["a cat", "a <b>dog</b>", "the cat", "</script>", *ODD]
    projection = project(np.random.default_rng(0).normal(size=(len(sentences), 6)))
    path = tmp_path / "embeddings.html"
    path.write_text(embeddings_page(projection, sentences, "run"), encoding="utf-8")
    page = visit.open(path)
    assert page.locator("#sentences button").all_text_contents() == sentences
    first, second = (f"{100 * share:.1f} %" for share in projection.explained)
    assert f"{first} horizontally, {second} vertically" in page.text_content("header")
    positions = page.eval_on_selector_all(
        "#points circle", "(all) => all.map((c) => [c.cx.baseVal.value, c.cy.baseVal.value])"
    )
    for axis, sign in ((0, 1), (1, -1)):  # SVG counts downwards
        order = np.argsort(sign * np.array(positions)[:, axis])
        assert order.tolist() == np.argsort(projection.points[:, axis]).tolist()
    page.locator("#points circle").nth(1).hover()
    assert page.locator("#sentence").text_content() == "2. a <b>dog</b>"
    assert page.locator("#sentences .chosen").all_text_contents() == ["a <b>dog</b>"]
    page.locator("#sentences button").nth(3).focus()
    assert page.locator("#sentence").text_content() == "4. </script>"
    assert page.locator("#points circle.chosen").get_attribute("data-index") == "3"
    page.fill("input[name=find]", "CAT")
    assert page.locator("#found").text_content() == f"2 of {len(sentences)}"
    found = page.locator("#points circle.found").all()
    assert [circle.get_attribute("data-index") for circle in found] == ["0", "2"]
    page.keyboard.press("Enter")
    assert visit.said == [] and len(visit.requests) == 1
