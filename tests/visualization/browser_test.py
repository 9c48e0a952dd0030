"""The pages in a real browser: what a person sees who chooses, points and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.visualization.attention import Attention
from keras_transformer.visualization.embeddings import project
from keras_transformer.visualization.pages import attention_page, embeddings_page
from tests.browser import Visit
from tests.visualization.pairs import PREDICTED, READ, SOURCE, random_attention

ODD = ["▁</script>", "<b>", "&amp;", "\"'", "▁ü\u2028猫", "</s>"]


def open_pair(visit: Visit, pair: Attention, folder: Path) -> Any:
    path = folder / "attention.html"
    path.write_text(attention_page(pair, "build/run", "the source", None), encoding="utf-8")
    return visit.open(path)


def choose(page: Any, kind: str, layer: int, head: int | None) -> None:
    """Chooses as a person does, who counts from 1; no head is the mean of all."""
    page.check(f"input[value={kind}]")
    page.select_option("select[name=layer]", label=str(layer))
    page.select_option("select[name=head]", label="mean of all" if head is None else str(head))


def token(page: Any, side: str, index: int) -> Any:
    return page.locator(f"#{side} button").nth(index)


def listed(page: Any) -> dict[int, int]:
    """Percent by place, from 1, as the table shows them."""
    rows = page.locator("#weights tbody tr").all()
    cells = [[cell.text_content() for cell in row.locator("td").all()] for row in rows]
    return {int(place): int(percent.removesuffix(" %")) for percent, _, place in cells}


def assert_shown(page: Any, weights: np.ndarray) -> None:
    """All of the largest weights are listed, the largest first, to a percent."""
    found = listed(page)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    expected = [place for place, weight in enumerate(weights, start=1) if weight > 0.01]
    assert set(expected) <= set(found)
    for place, percent in found.items():
        assert abs(percent - 100 * weights[place - 1]) < 0.8


def lines(page: Any) -> dict[tuple[int, int], float]:
    """Opacities of the lines by their ends."""
    row = page.evaluate(
        "parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row'))"
    )
    found = page.eval_on_selector_all(
        "#lines line",
        "(all) => all.map((line) => ['y1', 'y2', 'stroke-opacity'].map("
        "(name) => Number(line.getAttribute(name))))",
    )
    return {(int(y1 / row), int(y2 / row)): opacity for y1, y2, opacity in found}


def test_what_is_chosen_is_what_is_shown(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(heads=3)
    page = open_pair(visit, pair, tmp_path)
    shown = []
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
        assert {ends for ends, weight in np.ndenumerate(weights) if weight > 0.013} <= set(
            opacities
        )
        for ends, opacity in opacities.items():
            assert opacity == pytest.approx(weights[ends], abs=0.004)
        labels = page.locator("#queries button").all_text_contents()
        assert labels == pair.queries(kind)
        assert page.locator("#keys button").all_text_contents() == pair.keys(kind)
        assert page.locator("#matrix text").all_text_contents() == pair.keys(kind)

        token(page, side, index).hover()
        of = weights[index] if side == "queries" else weights[:, index]
        assert_shown(page, of)
        assert (
            page.locator("#of").text_content().startswith(token(page, side, index).text_content())
        )
        own = {ends[side == "keys"] for ends in lines(page)}
        assert own == {index}
        shown.append(listed(page))
    assert len({str(each) for each in shown}) == len(shown)
    assert page.locator("select[name=layer] option").count() == 3
    page.check("input[value=encoder]")  # which has two layers
    assert page.locator("select[name=layer] option").all_text_contents() == ["1", "2"]
    assert "build/run" in page.text_content("header") and "the source" in page.text_content(
        "header"
    )
    assert visit.said == [] and len(visit.requests) == 1


def test_a_chosen_token_stays(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention()
    page = open_pair(visit, pair, tmp_path)
    choose(page, "cross", 1, 1)
    weights = pair.cross[0, 0]
    token(page, "queries", 1).click()
    assert token(page, "queries", 1).get_attribute("aria-pressed") == "true"
    page.mouse.move(0, 0)
    assert_shown(page, weights[1])
    token(page, "queries", 3).hover()  # a look at another, and back
    assert_shown(page, weights[3])
    page.mouse.move(0, 0)
    assert_shown(page, weights[1])
    choose(page, "cross", 3, 2)  # the same token in another head
    assert_shown(page, pair.cross[2, 1, 1])
    token(page, "queries", 1).click()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    assert listed(page) == {} and page.locator("#help").is_visible()
    token(page, "keys", 0).click()
    page.keyboard.press("Escape")
    assert page.locator("[aria-pressed=true]").count() == 0
    choose(page, "encoder", 1, 1)  # other tokens
    assert visit.said == []


def test_the_matrix_shows_the_row_that_is_pointed_at(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(heads=1)
    page = open_pair(visit, pair, tmp_path)
    choose(page, "encoder", 2, 1)
    box = page.locator("#matrix .frame").bounding_box()
    row = box["height"] / len(SOURCE)
    for index in (0, 3, 4):
        page.mouse.move(box["x"] + 20, box["y"] + (index + 0.5) * row)
        assert_shown(page, pair.encoder[1, 0, index])
        # Beside its token, so that one reads across.
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


def test_it_is_used_by_keyboard_and_heard(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(heads=1)
    page = open_pair(visit, pair, tmp_path)
    page.focus("select[name=head]")
    page.keyboard.press("Tab")  # the first token
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
    for name in ("Tokens that attend", "Tokens that are attended to"):
        assert page.get_by_role("list", name=name).count() == 1
    assert page.get_by_role("combobox", name="Layer").count() == 1
    assert page.get_by_role("radio", name="Cross-attention").count() == 1


def test_odd_tokens_are_text(visit: Visit, tmp_path: Path) -> None:
    pair = random_attention(ODD, ["<s>", *ODD[:-1]], ODD, target_text="<i>a</i>")
    page = open_pair(visit, pair, tmp_path)
    for kind in ("encoder", "cross"):
        choose(page, kind, 1, 1)
        assert page.locator("#keys button").all_text_contents() == pair.keys(kind)
        token(page, "queries", 0).hover()
        assert_shown(page, pair.weights(kind)[0, 0, 0])
    assert page.locator("b, i, header script").count() == 0
    assert "<i>a</i>" in page.text_content("header")
    assert visit.said == [] and len(visit.requests) == 1


def test_light_and_dark_and_a_narrow_screen(browser: Any, tmp_path: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        visit = Visit(browser, color_scheme=scheme, viewport={"width": 360, "height": 700})
        page = open_pair(visit, random_attention(), tmp_path)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        # What is wide scrolls in itself, not the page.
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        visit.close()
    assert grounds[0] == "rgb(255, 255, 255)" != grounds[1]


def test_sentences_are_found_and_pointed_at(visit: Visit, tmp_path: Path) -> None:
    sentences = ["a cat", "a <b>dog</b>", "the cat", "</script>", *READ, *PREDICTED]
    projection = project(np.random.default_rng(0).normal(size=(len(sentences), 6)))
    path = tmp_path / "embeddings.html"
    path.write_text(embeddings_page(projection, sentences, "run"), encoding="utf-8")
    page = visit.open(path)
    assert page.locator("#sentences button").all_text_contents() == sentences
    places = page.eval_on_selector_all(
        "#points circle", "(all) => all.map((c) => [c.cx.baseVal.value, c.cy.baseVal.value])"
    )
    for axis, sign in ((0, 1), (1, -1)):  # to the right, and upwards
        order = np.argsort(sign * np.array(places)[:, axis])
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
