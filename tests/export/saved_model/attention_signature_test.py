"""Attention and positions as the paper's equations have them, of a run and of its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.export.request_params import Status
from keras_transformer.export.saved_model.attention_signature import Inspection
from keras_transformer.inference import loading
from tests import reference
from tests.conftest import PHRASES
from tests.export.model_variants import make_run

KINDS = ("encoder", "decoder", "cross")
SOURCES = [PHRASES[0], PHRASES[2], PHRASES[1], PHRASES[1], "", "b"]
TARGETS = [PHRASES[3], "", PHRASES[5], "  ", "", "x"]
GIVEN = [True, False, True, False, False, True]  # two spaces are no token


def ask(inspection: Inspection, sources: list[Any], targets: list[Any]) -> dict[str, np.ndarray]:
    texts = tf.constant(sources, tf.string), tf.constant(targets, tf.string)
    found = inspection.attention(*texts)
    return {name: each.numpy() for name, each in found.items()}


def read(pieces: np.ndarray, length: int) -> list[str]:
    return [piece.decode() for piece in pieces[:length]]


@pytest.mark.parametrize(
    ("name", "changes"), [("paper", {"model__attention_window": 8}), ("separate", {})]
)
def test_weights_and_positions_are_the_papers(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", name, **changes)
    translator = loading.load_translator(run)
    tokenizer, config = translator.tokenizer, run.config.model
    weights = {
        k: v.numpy().astype(float) for k, v in translator.transformer.weights_by_path().items()
    }
    inspection = Inspection(translator)
    check_positions(inspection, weights, config)
    found = ask(inspection, SOURCES, TARGETS)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.vocabulary.target_model)
    for row, source in enumerate(SOURCES):
        s, t = found["source_lengths"][row], found["target_lengths"][row]
        source_ids, _, source_cut = translator.cut_source_ids(tf.constant([source]))
        source_ids = source_ids.numpy()
        if GIVEN[row]:
            target_ids = tokenizer.tokenize_target(tf.constant(TARGETS[row : row + 1])).numpy()
        else:  # whose tokens are what the search finds, the next test says
            own = read(found["predicted_tokens"][row], t)
            target_ids = np.array([[pieces.piece_to_id(piece) for piece in own]], np.int32)
            assert source or own == ["</s>"]
        is_cut = target_ids.size > translator.max_output_tokens
        target_ids = target_ids[:, : translator.max_output_tokens]
        assert (s, t) == (source_ids.size, target_ids.size)
        read_ids = np.insert(target_ids[:, :-1], 0, tokenizer.start_id, axis=1)
        expected = reference.attention_weights(source_ids, read_ids, weights, config)
        for kind, (rows, columns) in zip(KINDS, ((s, s), (t, t), (t, s)), strict=True):
            each = found[kind][row]
            assert each.dtype == np.float32
            np.testing.assert_allclose(
                each[:, :, :rows, :columns], expected[kind][0], atol=1e-5, err_msg=kind
            )
            np.testing.assert_allclose(each[:, :, :rows].sum(-1), 1, atol=1e-5)
            assert not each[:, :, rows:].any() and not each[:, :, :, columns:].any()
        for tokens, ids, pieces_of in (
            ("source_tokens", source_ids, tokenizer.source_pieces),
            ("target_tokens", read_ids, tokenizer.target_pieces),
            ("predicted_tokens", target_ids, tokenizer.target_pieces),
        ):
            length = ids.size
            assert read(found[tokens][row], length) == read(pieces_of(ids[0]).numpy(), length)
            assert set(found[tokens][row][length:]) <= {b""}
        text = tokenizer.detokenize(target_ids, [t])[0]
        assert found["target_text"][row] == text.numpy()
        cut = Status.SOURCE_CUT * int(source_cut[0]) + Status.TARGET_CUT * is_cut
        assert not GIVEN[row] or found["status"][row] == cut


def check_positions(inspection: Inspection, weights: dict[str, Any], config: ModelConfig) -> None:
    found = inspection.positions(tf.constant(30))
    learned = config.positions == "learned"  # 20 of them
    expected = (
        [weights[f"{side}_positions/embeddings"] for side in ("source", "target")]
        if learned
        else [reference.sinusoidal_positions(30, config.d_model, config.sinusoid_layout)] * 2
    )
    assert bool(found["learned"]) == learned
    np.testing.assert_allclose(found["source"], expected[0], atol=1e-6)
    np.testing.assert_allclose(found["target"], expected[1], atol=1e-6)
