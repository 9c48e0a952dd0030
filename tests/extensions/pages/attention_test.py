"""Attention is the same in a run and its export. Statistics of heads, embeddings, and pages."""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages import attention
from keras_transformer.inference import Status
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.conftest import PHRASES
from tests.extensions.pages.pairs import random_attention
from tests.messages import mentions

LONG = "ball " * 400
SOURCES = [PHRASES[0], PHRASES[2], "", LONG, "a"]
TARGETS = [PHRASES[3], "", "  ", "a", LONG]
INPUTS = {"source": SOURCES, "target": TARGETS}


@pytest.fixture(scope="module")
def run(run_directory: RunDirectory) -> attention.VisibleModel:
    return attention.open_visible_model(run_directory.path)


@pytest.fixture(scope="module")
def outputs(run: attention.VisibleModel) -> Mapping[str, np.ndarray]:
    return run.signatures["attention"](INPUTS)


def test_weights_belong_to_their_tokens(outputs: Mapping[str, np.ndarray]) -> None:
    pairs = attention.read_attention(outputs)
    for pair in pairs:
        for kind in attention.TITLES:
            queries, keys = pair.weights(kind).shape[2:]
            assert (len(pair.queries(kind)), len(pair.keys(kind))) == (queries, keys)
            np.testing.assert_allclose(pair.weights(kind).sum(-1), 1, atol=1e-5)
        assert pair.source_tokens[-1] == "</s>" and pair.target_tokens[0] == "<s>"
        assert pair.predicted_tokens[:-1] == pair.target_tokens[1:]
    given, own, nothing, long_source, long_target = pairs
    assert (given.status, given.remarks(), given.target_text) == (0, [], PHRASES[3])
    assert given.queries("cross")[0] == "<s> → " + given.predicted_tokens[0].replace("▁", "_")
    assert own.target_text and own.target_text != given.target_text
    assert nothing.source_tokens == nothing.predicted_tokens == ["</s>"]
    assert long_source.remarks() == ["The source is too long. Only its first 40 tokens are used."]
    assert len(long_source.source_tokens) == 40 and long_target.status == Status.TARGET_CUT
    assert len(long_target.remarks()) == 1 and long_target.predicted_tokens[-1] != "</s>"


def test_an_export_returns_the_same(
    run: attention.VisibleModel, outputs: Mapping[str, np.ndarray], exported_run: Path
) -> None:
    exported = attention.open_visible_model(exported_run)
    found = exported.signatures["attention"](INPUTS)
    assert found.keys() == outputs.keys()
    for one, other in zip(
        attention.read_attention(found), attention.read_attention(outputs), strict=True
    ):
        for field, mine, theirs in zip(one._fields, one, other, strict=True):
            if field in attention.TITLES:
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
            else:
                assert mine == theirs, field
    one, other = (attention.embed(model.signatures["embed"], PHRASES) for model in (exported, run))
    np.testing.assert_allclose(one, other, atol=1e-5)
    for name, array in run.positions({"count": 50}).items():
        np.testing.assert_array_equal(exported.positions({"count": 50})[name], array)


def test_damaged_weights_and_models_without_attention_are_refused(
    outputs: Mapping[str, np.ndarray], litert_version: Path
) -> None:
    broken = {**outputs, "cross": np.full_like(outputs["cross"], np.nan)}
    refuses(attention.read_attention, (broken,), "attention", "not finite")
    with pytest.raises(InputError, match=mentions("embeddings", "not finite")):
        attention.embed(lambda inputs: {"embeddings": np.full((1, 4), np.nan)}, ["a"])

    refuses(attention.open_visible_model, (litert_version,), "attention", "LiteRT")


BACK = np.eye(5, k=-1)
BACK[0, 0] = 1  # nothing is before the first token


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (np.eye(4), (0, 0, 1, 0, 0, 1 / 4, 1 / 4)),
        (BACK, (0, 4 / 5, 1 / 5, 4 / 5, 0, 2 / 5, 0)),
        # Distances of position 0: (0 + 1 + 2 + 3) / 4, of position 1: (1 + 0 + 1 + 2) / 4, ...
        (np.full((4, 4), 0.25), (2, (1.5 + 1 + 1 + 1.5) / 4, 1 / 4, 3 / 16, 3 / 16, 1 / 4, 1 / 4)),
        (
            [[0.5, 0.5, 0, 0, 0], [0, 0, 0, 0.25, 0.75]],
            (
                (1 - 0.25 * math.log2(0.25) - 0.75 * math.log2(0.75)) / 2,
                (0.5 + 0.25 * 2 + 0.75 * 3) / 2,
                *(0.25, 0, 0.25, 0.25, 0.375),
            ),
        ),
    ],
    ids=["itself", "previous", "uniform", "cross"],
)
def test_statistics_of_a_head(matrix: Any, expected: Sequence[float]) -> None:
    weights = np.array(matrix, np.float32)
    sums = attention.measure_heads(weights[None, None])
    means = {name: float(total[0, 0]) / len(weights) for name, total in sums.items()}
    assert means == pytest.approx(dict(zip(attention.MEASURES, expected, strict=True)))


def test_statistics_are_means_over_all_queries_of_all_pairs() -> None:
    pairs = [
        random_attention(seed=1),
        random_attention(["▁a", "</s>"], ["<s>", "▁x"], ["▁x", "</s>"], seed=2),
    ]
    summary = attention.summarize_heads(
        iter([pairs[0], pairs[1]._replace(status=Status.TARGET_CUT)])
    )
    assert (summary.pairs, summary.truncated) == (2, 1)
    for kind, queries in (("encoder", (5, 2)), ("decoder", (4, 2)), ("cross", (4, 2))):
        for name in attention.MEASURES:
            one, other = (attention.measure_heads(pair.weights(kind))[name] for pair in pairs)
            np.testing.assert_allclose(summary.means[kind][name], (one + other) / sum(queries))
    head, *lines = [line.split("\t") for line in summary.as_tsv().splitlines()]
    assert head == ["attention", "layer", "head", *attention.MEASURES] and len(lines) == 2 * (
        2 + 3 + 3
    )
    last = float(lines[-1][head.index("diagonal")])
    assert last == pytest.approx(summary.means["cross"]["diagonal"][2, 1], abs=1e-6)


@pytest.mark.parametrize("shape", [(50, 7), (5, 20), (3, 2)])
def test_points_are_on_the_first_eigenvectors(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    vectors = (random.normal(size=shape) * np.linspace(3, 0.1, shape[1]) + 100).astype(np.float32)
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(0)
    values, eigenvectors = np.linalg.eigh(centred.T @ centred)  # the smallest first
    points, explained = attention.project(vectors)
    np.testing.assert_allclose(explained, values[::-1][:2] / values.sum(), rtol=1e-6)
    for axis in (0, 1):
        largest = np.abs(eigenvectors[:, -1 - axis]).argmax()
        sign = np.sign(eigenvectors[largest, -1 - axis])
        np.testing.assert_allclose(
            points[:, axis], sign * centred @ eigenvectors[:, -1 - axis], atol=1e-6
        )


@pytest.mark.parametrize("vectors", [np.ones((4, 3)), np.ones((1, 3)), np.zeros((3, 1))])
def test_equal_vectors_are_one_point(vectors: np.ndarray) -> None:
    points, explained = attention.project(vectors)
    np.testing.assert_array_equal(points, np.zeros((len(vectors), 2)))
    np.testing.assert_array_equal(explained, [0, 0])


def test_embeddings_are_in_the_order_of_the_sentences() -> None:
    sizes: list[int] = []

    def ask(inputs: Mapping[str, Sequence[bytes]]) -> Mapping[str, Any]:
        sizes.append(len(inputs["text"]))
        return {"embeddings": np.array([[len(text), text[0]] for text in inputs["text"]])}

    sentences = [chr(65 + i % 26) * (1 + i * 7 % 100) for i in range(200)]
    expected = [[len(text), ord(text[0])] for text in sentences]
    assert attention.embed(ask, sentences).tolist() == expected
    assert sum(sizes) == 200 and len(sizes) > 1


def data_of(page: str) -> Any:
    """Returns the data of a page, which has two scripts and loads nothing."""
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.search(r"<(link|img|iframe)|\s(src|href)=|url\(|@import", page)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_page_has_all_weights() -> None:
    pair = random_attention(heads=3)
    page = attention.attention_page(pair, {"Source": "the cat <sleeps>"})
    assert "<dt>Source</dt><dd>the cat &lt;sleeps&gt;</dd>" in page
    for kind in attention.TITLES:
        data, weights = data_of(page)["attentions"][kind], pair.weights(kind)
        assert (data["layers"], data["heads"]) == weights.shape[:2]
        found = np.frombuffer(base64.b64decode(data["weights"]), np.uint8) / 255
        np.testing.assert_allclose(found.reshape(weights.shape), weights, atol=0.5 / 255 + 1e-6)
        assert data["queries"] == pair.queries(kind) and data["keys"] == pair.keys(kind)
    tokens = [f"▁token{i}" for i in range(64)]
    base = random_attention(tokens, tokens, tokens, layers=(6, 6), heads=8)
    assert len(attention.attention_page(base, {}).encode()) < 1_000_000


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
@hypothesis.example(["</script>", "<!--", "<script>", "]]>"])
@hypothesis.example(["\u2028", "\u2029", "&lt;", '"'])
@hypothesis.example(["\0", "\ud800", "\\u003c", "'"])
def test_any_token_is_text(tokens: list[str]) -> None:
    pair = random_attention(tokens, tokens, tokens, layers=(1, 1), heads=1)
    page = attention.attention_page(pair, {tokens[0]: " ".join(tokens)})
    expected = [token.replace("▁", "_") for token in tokens]
    assert data_of(page)["attentions"]["encoder"]["queries"] == expected
    page = attention.embeddings_page(np.eye(len(tokens)), tokens, tokens[0])
    assert data_of(page)["sentences"] == tokens
