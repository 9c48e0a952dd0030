"""Weights that stay as they are while the others are trained."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from keras_transformer.errors import InputError
from tests.messages import mentions
from tests.training.tiny_model import (
    MODEL,
    TRAINING,
    Arrays,
    batches,
    make_trainer,
    shared_trainer,
    state,
    train,
    weights,
)


def step_of_gradient_descent(tying: str, freeze: str) -> tuple[float, Arrays]:
    """The norm that is logged, and what each weight moved by."""
    model = dataclasses.replace(MODEL, tie_embeddings=tying, output_bias=tying != "all")
    training = dataclasses.replace(TRAINING, freeze=freeze)
    trainer = shared_trainer(model, training, gradient_descent=True)
    before = weights(trainer)
    [logs] = train(trainer, batches(1))
    after = weights(trainer)
    return logs["gradient_norm"], {path: after[path] - before[path] for path in before}


@pytest.mark.parametrize(
    "tying, freeze, frozen",
    [
        ("all", "embedding/*", ["embedding/embeddings"]),
        ("target", "*/layer_0/feed*_bias, output_projection/bias", [
            "encoder/layer_0/feed_forward/inner_bias", "encoder/layer_0/feed_forward/outer_bias",
            "decoder/layer_0/feed_forward/inner_bias", "decoder/layer_0/feed_forward/outer_bias",
            "output_projection/bias",
        ]),
        ("none", "output_projection/kernel", ["output_projection/kernel"]),
    ],
)  # fmt: skip
def test_frozen_weights_stay_and_the_others_move_as_without(
    tying: str, freeze: str, frozen: list[str]
) -> None:
    _, usual = step_of_gradient_descent(tying, "")
    norm, moved = step_of_gradient_descent(tying, freeze)
    assert set(frozen) < moved.keys() == usual.keys()
    for path, move in moved.items():
        assert usual[path].any(), path
        expected = np.zeros_like(move) if path in frozen else usual[path]
        np.testing.assert_allclose(move, expected, rtol=1e-6, atol=0 if path in frozen else 1e-8)
    # Of what is trained; what is frozen must not make clipping stricter.
    assert norm == pytest.approx(np.sqrt(sum((move**2).sum() for move in moved.values())), rel=1e-4)


def test_adam_keeps_no_slots_of_frozen_weights_and_decays_none() -> None:
    training = dataclasses.replace(
        TRAINING, freeze="encoder/*,embedding/*", optimizer="adamw", weight_decay=0.1
    )
    trainer = make_trainer(training=training)
    assert not any("encoder" in path or "embedding" in path for path in state(trainer))
    before = weights(trainer)
    train(trainer, batches(3))
    for path, weight in weights(trainer).items():
        assert (weight == before[path]).all() == path.startswith(("encoder/", "embedding/")), path


@pytest.mark.parametrize(
    "freeze, message",
    [
        ("encoder", mentions("'encoder'", "weight", "embedding/embeddings")),
        ("embedding/*, decoder/layer_7/*", mentions("'decoder/layer_7/*'", "weight")),
        ("*", mentions("'*'", "every weight")),
        ("embedding/*,encoder/*,decoder/*", mentions("every weight")),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(freeze: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make_trainer(training=dataclasses.replace(TRAINING, freeze=freeze))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("freeze", ["", " , "])
def test_no_pattern_freezes_nothing(freeze: str) -> None:
    trainer = make_trainer(training=dataclasses.replace(TRAINING, freeze=freeze))
    slots = [path for path in state(trainer) if path.endswith("_momentum")]
    assert len(slots) == len(weights(trainer))
