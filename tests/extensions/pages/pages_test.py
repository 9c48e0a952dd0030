"""The pages: well-formed HTML for any tokens."""

from __future__ import annotations

import base64

import hypothesis
import numpy as np
from hypothesis import strategies as st

from keras_transformer.extensions.pages.attention import TITLES
from keras_transformer.extensions.pages.embeddings import project
from keras_transformer.extensions.pages.pages import (
    attention_page,
    embeddings_page,
)
from tests.extensions.pages.pairs import random_attention
from tests.html_page import Page


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
