"""The pages as text: whole HTML, whatever the tokens are, that needs nothing but itself."""

from __future__ import annotations

import base64
import html.parser
import json
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from keras_transformer.visualization.attention import TITLES
from keras_transformer.visualization.embeddings import project
from keras_transformer.visualization.pages import attention_page, embeddings_page
from tests.visualization.pairs import random_attention

VOID = {"meta", "input", "br"}


class Page(html.parser.HTMLParser):
    """A page read as a browser would, that fails where a browser would have to guess."""

    def __init__(self, source: str):
        super().__init__()
        self.data: Any = None
        self.scripts = 0
        self._words: list[str] = []
        self._open: list[str] = []
        self._is_data = False
        assert source.startswith("<!DOCTYPE html>")
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert not {"href", "src", "srcset", "onclick"} & set(given), given
        self._is_data = given.get("id") == "data"
        self.scripts += tag == "script"
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._is_data and self._open[-1:] == ["script"]:
            self.data = json.loads(data)
        elif "script" not in self._open and "style" not in self._open:
            self._words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._words).split())


def test_the_page_holds_all_weights() -> None:
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
    said = page.text
    assert "the cat sleeps" in said and "die katze schläft" in said and "run" in said
    assert "Target, the model's own" in said


def test_the_page_of_a_base_model_is_small() -> None:
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
    source = " ".join(tokens)
    page = Page(attention_page(pair, tokens[0], source, None))
    assert page.data["attentions"]["encoder"]["queries"] == [t.replace("▁", "_") for t in tokens]
    assert page.scripts == 2
    points = Page(embeddings_page(project(np.eye(len(tokens))), tokens, tokens[0]))
    assert points.data["sentences"] == tokens and points.scripts == 2


def test_the_page_of_sentences_says_what_it_shows() -> None:
    projection = project(np.random.default_rng(0).normal(size=(4, 3)))
    page = Page(embeddings_page(projection, list("abcd"), "run"))
    np.testing.assert_allclose(page.data["points"], projection.points, atol=1e-5)
    first, second = (f"{100 * share:.1f} %" for share in projection.explained)
    assert f"{first} across, {second} up" in page.text
