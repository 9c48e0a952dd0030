"""Attention is the same in a run, its export and servers. Statistics of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions
from keras_transformer.export.request_params import Status
from keras_transformer.export.saved_model import exporter as saved_model
from keras_transformer.export.saved_model.signatures import MAX_ATTENTION_TOKENS, Signatures
from keras_transformer.extensions.pages.attention import (
    MEASURES,
    TITLES,
    Ask,
    Attention,
    attention,
    format_tsv,
    measure_heads,
    read_attention,
    summarize_heads,
)
from keras_transformer.extensions.pages.embeddings import embed
from keras_transformer.extensions.pages.visible_model import (
    VisibleModel,
    open_visible_model,
)
from keras_transformer.extensions.serving.client import connect
from keras_transformer.inference import loading
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.extensions.pages.pairs import random_attention
from tests.extensions.serving.running_server import running_server
from tests.messages import mentions

LONG = "ball " * 400
SOURCES = [PHRASES[0], PHRASES[2], "", LONG, "a", "\0 \ufffd", "a"]
TARGETS = [PHRASES[3], "", "  ", "a", LONG, "x\u2028", ""]


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> TranslationModule:
    """A model whose limit exceeds the limit for attention."""
    settings = {"decoding.max_source_tokens": 1000, "decoding.max_extra_tokens": 50}
    return loading.load_translator(run_directory, settings)


@pytest.fixture(scope="module")
def run(translator: TranslationModule) -> Ask:
    """The signature of a run."""
    signatures = Signatures(translator)

    def ask(inputs: Any) -> Mapping[str, Any]:
        texts = {name: tf.constant(list(column), tf.string) for name, column in inputs.items()}
        found = signatures.attention(**texts)
        return {name: each.numpy() for name, each in found.items()}

    return ask


@pytest.fixture(scope="module")
def outputs(run: Ask) -> dict[str, np.ndarray]:
    return dict(run({"source": SOURCES, "target": TARGETS}))


@pytest.fixture(scope="module")
def export(translator: TranslationModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model"
    saved_model.EXPORTER.write(translator, path / "1", ExportOptions())
    return path


@pytest.fixture(scope="module")
def exported(export: Path) -> VisibleModel:
    return open_visible_model(export)


def assert_same(own: Attention, other: Attention) -> None:
    for field, mine, theirs in zip(Attention._fields, own, other, strict=True):
        if field in TITLES:
            assert mine.dtype == theirs.dtype == np.float32
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
        else:
            assert mine == theirs, field


def test_weights_belong_to_their_tokens(outputs: dict[str, np.ndarray]) -> None:
    pairs = read_attention(outputs)
    for pair in pairs:
        s, t = len(pair.source_tokens), len(pair.target_tokens)
        assert pair.encoder.shape == (1, 2, s, s)
        assert pair.decoder.shape == (2, 2, t, t)
        assert pair.cross.shape == (2, 2, t, s)
        for kind in TITLES:
            np.testing.assert_allclose(pair.weights(kind).sum(-1), 1, atol=1e-5)
            assert len(pair.queries(kind)) == pair.weights(kind).shape[2]
            assert len(pair.keys(kind)) == pair.weights(kind).shape[3]
        assert not np.triu(pair.decoder, 1).any()
        assert pair.source_tokens[-1] == "</s>" and pair.target_tokens[0] == "<s>"
        assert pair.predicted_tokens[:-1] == pair.target_tokens[1:]
    given, own, nothing, *_ = pairs
    assert (given.status, given.remarks(), given.target_text) == (0, [], PHRASES[3])
    assert given.predicted_tokens[-1] == "</s>"
    assert given.queries("cross")[0] == "<s> → " + given.predicted_tokens[0].replace("▁", "_")
    assert own.target_text and own.target_text != given.target_text
    assert nothing.source_tokens == nothing.predicted_tokens == ["</s>"]


def test_last_layer_equals_the_alignment_of_translations(
    translator: TranslationModule, run: Ask
) -> None:
    sources = list(PHRASES)
    pairs = read_attention(run({"source": sources, "target": [""] * len(sources)}))
    texts = tf.constant(sources), tf.constant([""] * len(sources))
    details = {name: each.numpy() for name, each in translator.translate_verbose(*texts).items()}
    for row, pair in enumerate(pairs):
        length = int(details["lengths"][row, 0])
        t, s = min(length, MAX_ATTENTION_TOKENS), len(pair.source_tokens)
        assert len(pair.predicted_tokens) == t
        assert pair.status == Status.TARGET_CUT * (length > MAX_ATTENTION_TOKENS)
        expected = details["attention"][row, 0, :t, :s]
        np.testing.assert_allclose(pair.cross[-1].mean(0), expected, atol=1e-5)
        tokens = [piece.decode() for piece in details["tokens"][row, 0, :t]]
        assert pair.predicted_tokens == tokens
        whole = details["translations"][row, 0].decode()
        assert whole.startswith(pair.target_text) and (length > t or pair.target_text == whole)


def test_rows_do_not_depend_on_their_batch(run: Ask, outputs: dict[str, np.ndarray]) -> None:
    for source, target, pair in zip(SOURCES, TARGETS, read_attention(outputs), strict=True):
        assert_same(attention(run, source, target or None), pair)
    none = run({"source": [], "target": []})
    assert none["encoder"].shape == (0, 1, 2, MAX_ATTENTION_TOKENS, MAX_ATTENTION_TOKENS)
    assert read_attention(none) == []


def test_truncated_texts_are_reported(outputs: dict[str, np.ndarray]) -> None:
    pairs = read_attention(outputs)
    source, target = pairs[3], pairs[4]
    assert (source.status, target.status) == (Status.SOURCE_CUT, Status.TARGET_CUT)
    assert source.remarks() == ["The source is too long. Only its first 64 tokens are used."]
    assert target.remarks() == ["The target is too long. Only its first 64 tokens are used."]
    assert source.encoder.shape[2] == target.decoder.shape[2] == MAX_ATTENTION_TOKENS
    # A truncated source ends with the end token; a truncated target does not.
    assert source.source_tokens[-1] == "</s>" != target.predicted_tokens[-1]
    assert [pair.status for pair in pairs[:3]] == [0, pairs[1].status & Status.TARGET_CUT, 0]


def test_export_and_servers_return_the_same(
    exported: VisibleModel,
    export: Path,
    outputs: dict[str, np.ndarray],
    translator: TranslationModule,
) -> None:
    own = read_attention(outputs)
    inputs = {"source": SOURCES, "target": TARGETS}
    answers: dict[str, Mapping[str, Any]] = {"disk": exported.attention(inputs)}
    with (
        running_server(export, batches_at_once=1) as server,
        connect(f"{server.rest}/model") as client,
    ):
        answers["server"] = client.predict(inputs, "attention")

        def ask(inputs: Any) -> Mapping[str, Any]:
            return client.predict(inputs, "attention")

        assert_same(attention(ask, SOURCES[0], TARGETS[0]), own[0])
    for answer in answers.values():
        assert {name: each.shape for name, each in answer.items()} == {
            name: each.shape for name, each in outputs.items()
        }
        for mine, theirs in zip(own, read_attention(answer), strict=True):
            assert_same(mine, theirs)

    signatures = Signatures(translator)
    vectors = signatures.embed(tf.constant(PHRASES))["embeddings"]
    np.testing.assert_allclose(embed(exported.embed, PHRASES), vectors, atol=1e-5)
    for name, each in signatures.positions(tf.constant(50)).items():
        np.testing.assert_array_equal(each, exported.positions(50)[name])


def test_weights_that_are_not_finite(outputs: dict[str, np.ndarray]) -> None:
    broken = {**outputs, "cross": np.full_like(outputs["cross"], np.nan)}
    with pytest.raises(InputError, match=mentions("attention", "not finite")):
        read_attention(broken)


def test_no_translation_is_reported(translator: TranslationModule, run: Ask) -> None:
    embeddings = translator.transformer.weights_by_path()["embedding/embeddings"]
    known = embeddings.numpy()
    embeddings.assign(known * float("nan"))
    found = run({"source": ["a", "a", ""], "target": ["", "a", ""]})
    embeddings.assign(known)
    assert found["status"].tolist() == [Status.NOT_TRANSLATED, 0, 0]
    assert found["target_lengths"].tolist()[0] == 1


BACK = np.eye(5, k=-1)
BACK[0, 0] = 1  # nothing is before the first token


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (
            np.eye(4),
            {"entropy": 0, "distance": 0, "diagonal": 1, "previous": 0, "next": 0,
             "first": 1 / 4, "last": 1 / 4},
        ),
        (
            BACK,
            {"entropy": 0, "distance": 4 / 5, "diagonal": 1 / 5, "previous": 4 / 5, "next": 0,
             "first": 2 / 5, "last": 0},
        ),
        # Distances of position 0: (0 + 1 + 2 + 3) / 4, of position 1: (1 + 0 + 1 + 2) / 4, ...
        (
            np.full((4, 4), 0.25),
            {"entropy": 2, "distance": (1.5 + 1 + 1 + 1.5) / 4, "diagonal": 1 / 4,
             "previous": 3 / 16, "next": 3 / 16, "first": 1 / 4, "last": 1 / 4},
        ),
        (
            [[0.5, 0.5, 0, 0, 0], [0, 0, 0, 0.25, 0.75]],
            {"entropy": (1 - 0.25 * math.log2(0.25) - 0.75 * math.log2(0.75)) / 2,
             "distance": (0.5 + 0.25 * 2 + 0.75 * 3) / 2, "diagonal": 0.25, "previous": 0,
             "next": 0.25, "first": 0.25, "last": 0.375},
        ),
    ],
    ids=["itself", "previous", "uniform", "cross"],
)  # fmt: skip
def test_statistics_of_a_head(matrix: Any, expected: dict[str, float]) -> None:
    weights = np.array(matrix, np.float32)
    sums = measure_heads(weights[None, None])
    assert {name: float(each[0, 0]) / len(weights) for name, each in sums.items()} == pytest.approx(
        expected
    )


def test_statistics_are_means_over_all_queries_of_all_pairs() -> None:
    pairs = [
        random_attention(seed=1),
        random_attention(["▁a", "</s>"], ["<s>", "▁x"], ["▁x", "</s>"], seed=2),
    ]
    summary = summarize_heads(iter([pairs[0], pairs[1]._replace(status=Status.TARGET_CUT)]))
    assert (summary.pairs, summary.truncated) == (2, 1)
    for kind, queries in (("encoder", (5, 2)), ("decoder", (4, 2)), ("cross", (4, 2))):
        for name in MEASURES:
            one, other = (measure_heads(pair.weights(kind))[name] for pair in pairs)
            np.testing.assert_allclose(summary.means[kind][name], (one + other) / sum(queries))

    head, *lines = [line.split("\t") for line in format_tsv(summary).splitlines()]
    assert head == ["attention", "layer", "head", *MEASURES]
    layers = {"encoder": 2, "decoder": 3, "cross": 3}
    expected = [
        (kind, n + 1, h + 1) for kind, many in layers.items() for n, h in np.ndindex(many, 2)
    ]
    assert [(line[0], int(line[1]), int(line[2])) for line in lines] == expected
    last = float(lines[-1][head.index("diagonal")])
    assert last == pytest.approx(summary.means["cross"]["diagonal"][2, 1], abs=1e-6)
