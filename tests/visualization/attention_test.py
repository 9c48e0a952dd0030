"""Attention of a run, of its export and of servers: the same numbers, or one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status
from keras_transformer.export.saved_model import export as saved_model
from keras_transformer.export.saved_model.attention_signature import MAX_TOKENS
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import loading
from keras_transformer.inference.translator import Translator
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.serving.client import connect
from keras_transformer.visualization.attention import (
    TITLES,
    Ask,
    Attention,
    attention,
    read_attention,
)
from keras_transformer.visualization.embeddings import embed
from keras_transformer.visualization.visible_model import VisibleModel, open_model
from tests.conftest import PHRASES
from tests.messages import mentions
from tests.serving.running_server import running_server

LONG = "ball " * 400
SOURCES = [PHRASES[0], PHRASES[2], "", LONG, "a", "\0 \ufffd", "a"]
TARGETS = [PHRASES[3], "", "  ", "a", LONG, "x\u2028", ""]


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> Translator:
    """Of more tokens than attention is told of."""
    settings = {"decoding.max_source_tokens": 1000, "decoding.max_extra_tokens": 50}
    return loading.load_translator(run_directory, settings)


@pytest.fixture(scope="module")
def run(translator: Translator) -> Iterator[Ask]:
    """What `open_model` makes of a run, of a translator that is there already."""
    signatures = Signatures(translator)

    def ask(inputs: Any) -> Mapping[str, Any]:
        texts = {name: tf.constant(list(column), tf.string) for name, column in inputs.items()}
        return {
            name: each.numpy() for name, each in signatures.inspection.attention(**texts).items()
        }

    yield ask


@pytest.fixture(scope="module")
def outputs(run: Ask) -> dict[str, np.ndarray]:
    return dict(run({"source": SOURCES, "target": TARGETS}))


@pytest.fixture(scope="module")
def export(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model"
    saved_model._save(translator, None, path / "1")
    return path


@pytest.fixture(scope="module")
def exported(export: Path) -> VisibleModel:
    return open_model(export)


def assert_same(own: Attention, other: Attention) -> None:
    for field, mine, theirs in zip(Attention._fields, own, other, strict=True):
        if field in TITLES:
            assert mine.dtype == theirs.dtype == np.float32
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
        else:
            assert mine == theirs, field


def test_a_pair_has_as_many_places_as_tokens(outputs: dict[str, np.ndarray]) -> None:
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


def test_the_last_layer_is_what_translations_are_aligned_by(
    translator: Translator, run: Ask
) -> None:
    sources = list(PHRASES)
    pairs = read_attention(run({"source": sources, "target": [""] * len(sources)}))
    texts = tf.constant(sources), tf.constant([""] * len(sources))
    details = {name: each.numpy() for name, each in translator.translate_verbose(*texts).items()}
    for row, pair in enumerate(pairs):
        length = int(details["lengths"][row, 0])
        t, s = min(length, MAX_TOKENS), len(pair.source_tokens)
        assert len(pair.predicted_tokens) == t
        assert pair.status == Status.TARGET_CUT * (length > MAX_TOKENS)
        expected = details["attention"][row, 0, :t, :s]
        np.testing.assert_allclose(pair.cross[-1].mean(0), expected, atol=1e-5)
        tokens = [piece.decode() for piece in details["tokens"][row, 0, :t]]
        assert pair.predicted_tokens == tokens
        whole = details["translations"][row, 0].decode()
        assert whole.startswith(pair.target_text) and (length > t or pair.target_text == whole)


def test_a_row_is_what_it_is_alone(run: Ask, outputs: dict[str, np.ndarray]) -> None:
    for source, target, pair in zip(SOURCES, TARGETS, read_attention(outputs), strict=True):
        assert_same(attention(run, source, target or None), pair)
    none = run({"source": [], "target": []})
    assert none["encoder"].shape == (0, 1, 2, MAX_TOKENS, MAX_TOKENS)
    assert read_attention(none) == []


def test_what_is_too_long_is_cut_and_said_so(outputs: dict[str, np.ndarray]) -> None:
    pairs = read_attention(outputs)
    source, target = pairs[3], pairs[4]
    assert (source.status, target.status) == (Status.SOURCE_CUT, Status.TARGET_CUT)
    assert source.remarks() == ["the source is longer; its first 64 tokens were taken"]
    assert target.remarks() == ["the target is longer; its first 64 tokens were taken"]
    assert source.encoder.shape[2] == target.decoder.shape[2] == MAX_TOKENS
    # A source ends as all that the model has seen; a target that is cut goes on.
    assert source.source_tokens[-1] == "</s>" != target.predicted_tokens[-1]
    assert [pair.status for pair in pairs[:3]] == [0, pairs[1].status & Status.TARGET_CUT, 0]


def test_an_export_and_its_servers_tell_the_same(
    exported: VisibleModel, export: Path, outputs: dict[str, np.ndarray], translator: Translator
) -> None:
    own = read_attention(outputs)
    inputs = {"source": SOURCES, "target": TARGETS}
    answers: dict[str, Mapping[str, Any]] = {"disk": exported.attention(inputs)}
    with running_server(export, batches_at_once=1) as server:
        for address in (server.rest, f"grpc://{server.grpc}"):
            with connect(f"{address}/model") as client:
                answers[address] = client.predict(inputs, "attention")

                def ask(inputs: Any, client: Any = client) -> Mapping[str, Any]:
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
    for name, each in signatures.inspection.positions(tf.constant(50)).items():
        np.testing.assert_array_equal(each, exported.positions(50)[name])


class Older(tf.Module):
    """An export from before there was a signature `attention`."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = tf.expand_dims(text, 1)
        return {"translations": texts, "tokens": tf.strings.length(text)}


def test_what_does_not_show_its_attention(tmp_path: Path) -> None:
    older = Older()
    functions = {"serving_default": older.translate, "lengths": older.translate}
    tf.saved_model.save(older, str(tmp_path / "1"), signatures=functions)
    with pytest.raises(InputError, match=mentions("attention", "LiteRT")):
        open_model(tmp_path / "1")
    with pytest.raises(InputError, match=mentions(tmp_path / "none", "there")):
        open_model(tmp_path / "none")


def test_weights_that_are_no_numbers(outputs: dict[str, np.ndarray]) -> None:
    broken = {**outputs, "cross": np.full_like(outputs["cross"], np.nan)}
    with pytest.raises(InputError, match=mentions("attention", "number")):
        read_attention(broken)


def test_a_model_that_finds_nothing_says_so(translator: Translator, run: Ask) -> None:
    embeddings = translator.transformer.weights_by_path()["embedding/embeddings"]
    known = embeddings.numpy()
    embeddings.assign(known * float("nan"))
    found = run({"source": ["a", "a", ""], "target": ["", "a", ""]})
    embeddings.assign(known)
    assert found["status"].tolist() == [Status.NOT_TRANSLATED, 0, 0]
    assert found["target_lengths"].tolist()[0] == 1
