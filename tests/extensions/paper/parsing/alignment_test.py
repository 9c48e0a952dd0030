"""Guided alignment, against loops in Python and plain autodiff."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.alignment import ParserAlignment
from tests.builders import refuses
from tests.messages import mentions
from tests.training.tiny_model import (
    MODEL,
    TRAINING,
    Arrays,
    Batch,
    make_trainer,
    shared_trainer,
    train,
    weights,
)
from tests.training.trainer_test import plain_gradients

BEGINS = [token % 3 == 0 or token == MODEL.token_ids.end_id for token in range(50)]
STANDS = [token % 2 == 0 and token > 3 for token in range(50)]
FIRST = [token for token in range(4, 50) if BEGINS[token]]
INNER = [token for token in range(4, 50) if not BEGINS[token]]
TAGS = [token for token in range(4, 50) if STANDS[token]]
BRACKETS = [token for token in range(4, 50) if not STANDS[token]]
ALIGNMENT = ParserAlignment(BEGINS, STANDS, MODEL.pad_id)
GUIDED = dataclasses.replace(TRAINING, auxiliary_loss_weight=0.7)
DEEP = dataclasses.replace(MODEL, num_decoder_layers=3)


def belonging(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The definition for one sentence: bool `[T, S]`."""
    words: list[list[int]] = []
    for position, token in enumerate(source):
        if token != MODEL.pad_id:
            if BEGINS[token]:
                words.append([])
            if words:
                words[-1].append(position)
    found = np.zeros((len(target), len(source)), bool)
    if len(words) - 1 != sum(STANDS[token] for token in target):
        return found
    said = 0
    for position, token in enumerate(target):
        said += STANDS[token]
        if said < len(words):
            found[position, words[said]] = True
    return found


def aligned_batch(seed: int, words: Sequence[int], others: Sequence[int] = (0,)) -> Batch:
    """Random sentences with the given numbers of words. The number of targets that stand for a
    word can differ."""
    random = np.random.default_rng(seed)

    def tokens(count: int, first: list[int], rest: list[int]) -> list[int]:
        found = []
        for _ in range(count):
            found += [random.choice(first), *random.choice(rest, random.integers(3))]
        return found

    def padded(rows: list[list[int]]) -> np.ndarray:
        width = max(map(len, rows))
        return np.array([row + [MODEL.pad_id] * (width - len(row)) for row in rows], np.int32)

    said = [n + more for n, more in zip(words, np.resize(others, len(words)), strict=True)]
    source = padded([[*tokens(n, FIRST, INNER), MODEL.token_ids.end_id] for n in words])
    labels = padded(
        [[BRACKETS[0], *tokens(n, TAGS, BRACKETS), MODEL.token_ids.end_id] for n in said]
    )
    target = np.where(labels != MODEL.pad_id, np.roll(labels, 1, axis=1), MODEL.pad_id)
    target[:, 0] = MODEL.token_ids.start_id
    return {"source_ids": source, "target_ids": target}, labels


BATCH = aligned_batch(1, [3, 1, 4, 2])


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**31),
    words=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    others=st.lists(st.integers(0, 1), min_size=1, max_size=4),
)
def test_target_tokens_belong_to_words(seed: int, words: list[int], others: list[int]) -> None:
    inputs, _ = aligned_batch(seed, words, others)
    found = ALIGNMENT.links(tf.nest.map_structure(tf.constant, inputs)).numpy()
    for row, (source, target) in enumerate(zip(*inputs.values(), strict=True)):
        np.testing.assert_array_equal(found[row], belonging(source, target))
        assert found[row].any() == (others[row % len(others)] == 0)


def guided_gradients(trainer, batch: Batch, layer: int) -> tuple[float, Arrays]:
    """The loss of the alignment, and the gradients of tokens and alignment together."""
    inputs, labels = batch
    model, variables = trainer.transformer, trainer.transformer.weights_by_path()
    rows = zip(inputs["source_ids"], inputs["target_ids"], strict=True)
    mask = tf.constant(np.stack([belonging(*row) for row in rows]))
    with tf.GradientTape() as tape:
        memory = model.encode(inputs["source_ids"], training=True)
        _, attention = model.decode(
            inputs["target_ids"], memory, return_attention_scores=True, training=True
        )
        head = attention[layer]["cross"][:, 0]
        probability = tf.reduce_sum(tf.where(mask, head, 0), -1)[labels != MODEL.pad_id]
        loss = -tf.reduce_sum(tf.math.log(tf.boolean_mask(probability, probability > 0)))
        loss /= float(np.sum(labels != MODEL.pad_id))
        weighted = loss * GUIDED.auxiliary_loss_weight
    found = tape.gradient(
        weighted, [v.value for v in variables.values()], unconnected_gradients="zero"
    )
    _, plain = plain_gradients(trainer, BATCH)
    arrays = [np.asarray(tf.convert_to_tensor(gradient)) for gradient in found]
    both = {path: plain[path] + array for path, array in zip(plain, arrays, strict=True)}
    return float(loss), both


def moved(trainer, batch: Batch) -> Arrays:
    """The gradients that a step of gradient descent has applied."""
    before = weights(trainer)
    train(trainer, [batch])
    return {path: before[path] - after for path, after in weights(trainer).items()}


def assert_close(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for path, gradient in expected.items():
        np.testing.assert_allclose(found[path], gradient, atol=2e-6, err_msg=path)


def test_a_step_has_the_gradients_of_tokens_and_alignment() -> None:
    trainer = shared_trainer(DEEP, GUIDED, gradient_descent=True, auxiliary_loss=ALIGNMENT)
    _, expected = guided_gradients(trainer, BATCH, layer=1)
    plain = plain_gradients(trainer, BATCH)[1]
    assert max(np.abs(expected[path] - plain[path]).max() for path in plain) > 1e-3
    assert_close(moved(trainer, BATCH), expected)


@pytest.mark.long
def test_replicas_microbatches_and_xla_take_the_same_steps(two_cpus: list[str]) -> None:
    parts = dataclasses.replace(GUIDED, num_microbatches=2)
    one, *others = (
        make_trainer(gradient_descent=True, auxiliary_loss=ALIGNMENT, training=training, **options)
        for training, options in (
            (GUIDED, {}),
            (parts, {}),
            (GUIDED, {"devices": two_cpus}),
            (GUIDED, {"jit_compile": True}),
        )
    )
    expected = moved(one, BATCH)
    for trainer in others:
        assert_close(moved(trainer, BATCH), expected)


@pytest.mark.long
def test_float16_also_scales_the_auxiliary_loss() -> None:
    norms = []
    for policy in ("float32", "mixed_float16"):
        trainer = make_trainer(training=GUIDED, policy=policy, auxiliary_loss=ALIGNMENT)
        [logs] = train(trainer, [BATCH])
        assert not logs["skipped"]
        norms.append(logs["gradient_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def test_the_auxiliary_loss_is_logged_separately() -> None:
    guided = shared_trainer(DEEP, GUIDED, gradient_descent=True, auxiliary_loss=ALIGNMENT)
    loss, _ = plain_gradients(guided, BATCH)
    auxiliary_loss, _ = guided_gradients(guided, BATCH, layer=1)
    [logs] = train(guided, [BATCH])
    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    assert logs["auxiliary_loss"] == pytest.approx(auxiliary_loss, rel=1e-5)


def test_vocabularies_without_word_boundaries_are_refused() -> None:
    for begins, stands in (([True] + [False] * 9, [True] * 9), ([True] * 9, [False] * 9)):
        refuses(ParserAlignment, (begins, stands, 0), "words", "begin")


def test_models_that_cannot_be_guided_are_refused() -> None:
    refuses(make_trainer, {"training": GUIDED}, "0.7", "vocabulary")
    windowed = dataclasses.replace(MODEL, attention_window=4)
    with pytest.raises(InputError, match=mentions("0.7", "model.attention_window")):
        make_trainer(windowed, GUIDED, auxiliary_loss=ALIGNMENT)
    make_trainer(windowed, TRAINING, auxiliary_loss=ALIGNMENT)
