"""Guided alignment, against loops in Python and plain autodiff."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.training.alignment import GuidedAlignment
from tests.training.tiny_model import (
    MODEL,
    TRAINING,
    Arrays,
    Batch,
    batches,
    make_trainer,
    shared_trainer,
    train,
    weights,
)
from tests.training.trainer_test import plain_gradients

BEGINS = [token % 3 == 0 or token == MODEL.end_id for token in range(50)]
STANDS = [token % 2 == 0 and token > 3 for token in range(50)]
ALIGNMENT = GuidedAlignment(BEGINS, STANDS, MODEL.pad_id)
GUIDED = dataclasses.replace(TRAINING, guided_alignment=0.7)
DEEP = dataclasses.replace(MODEL, num_decoder_layers=3)


def at_hand(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The definition, of one sentence: bool `[T, S]`."""
    words: list[list[int]] = []
    for place, token in enumerate(source):
        if token != MODEL.pad_id:
            if BEGINS[token]:
                words.append([])
            if words:
                words[-1].append(place)
    found = np.zeros((len(target), len(source)), bool)
    said = 0
    for place, token in enumerate(target):
        said += STANDS[token]
        if said < len(words):
            found[place, words[said]] = True
    return found


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_the_word_at_hand(seed: int, lengths: list[int]) -> None:
    random = np.random.default_rng(seed)
    source, target = (random.integers(1, 50, (2, width)).astype(np.int32) for width in (9, 12))
    source[0, lengths[0] :] = source[1, lengths[1] :] = MODEL.pad_id
    target[0, lengths[2] :] = target[1, lengths[3] :] = MODEL.pad_id
    found = ALIGNMENT.at_hand({"source_ids": tf.constant(source), "target_ids": target}).numpy()
    for row in range(2):
        expected = at_hand(source[row], target[row])
        # Pieces before the first word, as no tokenizer makes them, belong to none.
        np.testing.assert_array_equal(found[row], expected)


def guided_gradients(trainer, batch: Batch, layer: int) -> dict[str, np.ndarray]:
    """The gradients of tokens and alignment together, through the whole model."""
    inputs, labels = batch
    model, variables = trainer.transformer, trainer.transformer.weights_by_path()
    rows = zip(inputs["source_ids"], inputs["target_ids"], strict=True)
    mask = tf.constant(np.stack([at_hand(*row) for row in rows]))
    with tf.GradientTape() as tape:
        memory = model.encode(inputs["source_ids"], training=True)
        _, attention = model.target_features(
            inputs["target_ids"], memory, training=True, return_attention_scores=True
        )
        head = attention[layer]["cross"][:, 0]
        probability = tf.reduce_sum(tf.where(mask, head, 0), -1)[labels != MODEL.pad_id]
        loss = -tf.reduce_sum(tf.math.log(tf.boolean_mask(probability, probability > 0)))
        loss *= GUIDED.guided_alignment / np.sum(labels != MODEL.pad_id)
    found = tape.gradient(loss, [v.value for v in variables.values()], unconnected_gradients="zero")
    _, plain = plain_gradients(trainer, batch)
    arrays = [np.asarray(tf.convert_to_tensor(gradient)) for gradient in found]
    return {path: plain[path] + array for path, array in zip(plain, arrays, strict=True)}


def moved(trainer, batch: Batch) -> Arrays:
    """The gradients that a step of gradient descent has taken."""
    before = weights(trainer)
    train(trainer, [batch])
    return {path: before[path] - after for path, after in weights(trainer).items()}


def assert_close(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for path, gradient in expected.items():
        np.testing.assert_allclose(found[path], gradient, atol=2e-6, err_msg=path)


@pytest.mark.parametrize("model, layer", [(MODEL, 0), (DEEP, 1)])
def test_a_step_has_the_gradients_of_tokens_and_alignment(model, layer: int) -> None:
    batch = batches(1)[0]
    trainer = shared_trainer(model, GUIDED, gradient_descent=True, alignment=ALIGNMENT)
    expected = guided_gradients(trainer, batch, layer)
    plain = plain_gradients(trainer, batch)[1]
    assert max(np.abs(expected[path] - plain[path]).max() for path in plain) > 1e-3
    assert_close(moved(trainer, batch), expected)


@pytest.mark.parametrize("changes", [{"accumulate_steps": 2}, {"r_drop": 3.0}])
def test_in_parts_and_in_two_passes_it_is_the_same(changes: dict[str, float]) -> None:
    batch = batches(1)[0]
    found = [
        moved(shared_trainer(training=t, gradient_descent=True, alignment=ALIGNMENT), batch)
        for t in (GUIDED, dataclasses.replace(GUIDED, **changes))
    ]
    assert_close(found[1], found[0])


def test_replicas_and_xla_take_the_same_steps(two_cpus: list[str]) -> None:
    batch = batches(1)[0]
    one, both, compiled = (
        make_trainer(training=GUIDED, gradient_descent=True, alignment=ALIGNMENT, **options)
        for options in ({}, {"devices": two_cpus}, {"jit_compile": True})
    )
    expected = moved(one, batch)
    assert_close(moved(both, batch), expected)
    assert_close(moved(compiled, batch), expected)


def test_what_cannot_be_guided_is_refused() -> None:
    with pytest.raises(InputError, match=r"guided_alignment is 0.7, but nothing tells which words"):
        make_trainer(training=GUIDED)
    windowed = dataclasses.replace(MODEL, attention_window=4)
    with pytest.raises(InputError, match="but the model does not tell its attention"):
        make_trainer(windowed, GUIDED, alignment=ALIGNMENT)
    make_trainer(windowed, TRAINING, alignment=ALIGNMENT)
