"""The training step against plain autodiff, over replicas, with XLA and without."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import trainer as trainer_module
from tests import reference
from tests.training.tiny_model import (
    MODEL,
    TRAINING,
    Batch,
    batches,
    dataset,
    make_batch,
    make_trainer,
    state,
    train,
    weights,
)

SMOOTHING = TRAINING.label_smoothing


@pytest.fixture
def gradient_descent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Steps that subtract the gradient itself, so that it can be read off the weights."""
    monkeypatch.setattr(
        trainer_module, "make_optimizer", lambda *_: keras.optimizers.SGD(1.0), raising=True
    )
    yield


def plain_gradients(
    trainer: trainer_module.Trainer, batch: Batch
) -> tuple[float, dict[str, np.ndarray]]:
    """The paper's loss over full logits, and its gradients through the whole model."""
    inputs, labels = batch
    variables = trainer.transformer.weights_by_path()
    with tf.GradientTape() as tape:
        logits = trainer.transformer(inputs, training=True)
        expected = (1 - SMOOTHING) * tf.one_hot(labels, 50) + SMOOTHING / 50
        losses = -tf.reduce_sum(expected * tf.nn.log_softmax(logits), axis=-1)
        loss = tf.reduce_mean(tf.boolean_mask(losses, labels != MODEL.pad_id))
    found = tape.gradient(loss, [variable.value for variable in variables.values()])
    gradients = [np.asarray(tf.convert_to_tensor(gradient)) for gradient in found]
    return float(loss), dict(zip(variables, gradients, strict=True))


@pytest.mark.parametrize(
    "tie_embeddings, output_bias", [("all", False), ("target", True), ("none", True)]
)
def test_a_step_has_the_gradients_of_the_whole_model_with_full_logits(
    tie_embeddings: str, output_bias: bool, gradient_descent: None
) -> None:
    model = dataclasses.replace(MODEL, tie_embeddings=tie_embeddings, output_bias=output_bias)
    trainer = make_trainer(model)
    batch = batches(1)[0]
    expected_loss, expected = plain_gradients(trainer, batch)
    before = weights(trainer)
    [logs] = train(trainer, [batch])
    after = weights(trainer)
    assert logs["loss"] == pytest.approx(expected_loss, rel=1e-5)
    assert logs["tokens"] == 18
    norm = np.sqrt(sum((gradient**2).sum() for gradient in expected.values()))
    assert logs["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert before.keys() == expected.keys() and trainer.step == 1
    for path, gradient in expected.items():
        np.testing.assert_allclose(before[path] - after[path], gradient, atol=1e-6, err_msg=path)


def test_replicas_and_xla_change_neither_losses_nor_weights(two_cpus: list[str]) -> None:
    results = {}
    # One shape, because XLA compiles each for seconds. The replicas' halves differ in tokens.
    data = [make_batch([5, 4, 3, 2], [6, 5, 1, 0 if i % 2 else 2], seed=i) for i in range(20)]
    for devices in (two_cpus[:1], two_cpus):
        for jit_compile in (False, True):
            trainer = make_trainer(devices=devices, jit_compile=jit_compile)
            logs = train(trainer, data)
            results[len(devices), jit_compile] = logs, weights(trainer)
    first_logs, first_weights = results[1, False]
    assert len(first_logs) == 20 and first_logs[-1]["loss"] < first_logs[0]["loss"]
    for case, (logs, final) in results.items():
        for name in ("loss", "log_perplexity", "tokens", "gradient_norm", "learning_rate"):
            np.testing.assert_allclose(
                [step[name] for step in logs],
                [step[name] for step in first_logs],
                rtol=1e-5, err_msg=f"{case} {name}",
            )  # fmt: skip
        for path, weight in final.items():
            difference = np.linalg.norm(weight - first_weights[path])
            # The bound is on the whole array: Adam divides by the square root of near-zero
            # second moments, which makes single elements as noisy as float32 is.
            assert difference <= 1e-5 * np.linalg.norm(first_weights[path]), (case, path)


# So small a learning rate leaves every weight as it is: losses differ by dropout alone.
STILL = dataclasses.replace(TRAINING, learning_rate=1e-30)
DROPPING = dataclasses.replace(MODEL, residual_dropout=0.3, embedding_dropout=0.3)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    batch = batches(1)[0]
    trainer = make_trainer(DROPPING, STILL)
    first = [logs["loss"] for logs in train(trainer, [batch] * 3)]
    assert len({round(loss, 4) for loss in first}) == 3
    trainer.optimizer.iterations.assign(1)
    assert [logs["loss"] for logs in train(trainer, [batch] * 2)] == first[1:]
    other = make_trainer(DROPPING, dataclasses.replace(STILL, seed=2))
    assert abs(train(other, [batch])[0]["loss"] - first[0]) > 1e-4


def test_replicas_have_different_dropout_masks(two_cpus: list[str]) -> None:
    half = batches(1)[0]
    twice = tf.nest.map_structure(lambda array: np.concatenate([array, array]), half)
    one = train(make_trainer(DROPPING, STILL), [half])[0]["loss"]
    both = train(make_trainer(DROPPING, STILL, devices=two_cpus), [twice])[0]["loss"]
    # The first replica has the same rows, weights, seed and step; were the second's mask the
    # same, so would be the mean.
    assert abs(both - one) > 1e-4


def test_gradients_are_clipped_to_the_norm_and_not_below_it(gradient_descent: None) -> None:
    batch = batches(1)[0]

    def moved(clip_norm: float) -> tuple[float, float]:
        trainer = make_trainer(training=dataclasses.replace(TRAINING, clip_norm=clip_norm))
        before = weights(trainer)
        [logs] = train(trainer, [batch])
        after = weights(trainer)
        distance = np.sqrt(sum(((before[path] - after[path]) ** 2).sum() for path in before))
        return logs["gradient_norm"], distance

    norm, _ = moved(0.0)
    assert moved(norm / 4) == pytest.approx((norm, norm / 4), rel=1e-4)
    assert moved(norm * 4) == pytest.approx((norm, norm), rel=1e-4)


def test_a_batch_of_nothing_but_filler_changes_no_weight() -> None:
    trainer = make_trainer()
    before = weights(trainer)
    [logs] = train(trainer, [make_batch([0] * 4, [0] * 4, seed=1)])
    assert (logs["loss"], logs["tokens"], logs["gradient_norm"]) == (0.0, 0.0, 0.0)
    for path, weight in weights(trainer).items():
        np.testing.assert_array_equal(weight, before[path])


def test_evaluation_is_the_mean_over_tokens(two_cpus: list[str]) -> None:
    trainer = make_trainer(DROPPING, devices=two_cpus)
    data = [*batches(2), make_batch([2, 0, 0, 0], [1, 0, 0, 0], seed=9)]
    arrays = {path: weight.astype(np.float64) for path, weight in weights(trainer).items()}
    loss = likelihood = tokens = correct = 0.0
    for inputs, labels in data:
        logits = reference.transformer(inputs["source_ids"], inputs["target_ids"], arrays, MODEL)
        real = labels != MODEL.pad_id
        count = real.sum()
        tokens += count
        loss += count * reference.label_smoothed_loss(logits, labels, MODEL.pad_id, SMOOTHING)
        likelihood -= count * reference.label_smoothed_loss(logits, labels, MODEL.pad_id, 0.0)
        correct += ((logits.argmax(axis=-1) == labels) & real).sum()
    result = trainer.evaluate(dataset(data))
    assert result["loss"] == pytest.approx(loss / tokens, rel=1e-5)
    assert result["perplexity"] == pytest.approx(np.exp(-likelihood / tokens), rel=1e-4)
    assert result["accuracy"] == pytest.approx(correct / tokens, rel=1e-6)


def test_an_overflow_on_one_replica_skips_the_step_and_halves_the_scale(
    two_cpus: list[str],
) -> None:
    trainer = make_trainer(policy="mixed_float16", devices=two_cpus)
    usual = batches(1)[0]
    # The first replica has no token, so only the second overflows.
    lopsided = make_batch([0, 0, 5, 4], [0, 0, 6, 5], seed=2)
    train(trainer, [usual])
    before, state_before = weights(trainer), state(trainer)
    trainer.loss_scale.assign(2.0**40)
    [logs] = train(trainer, [lopsided])
    assert not np.isfinite(logs["gradient_norm"]) and logs["loss_scale"] == 2.0**40
    assert trainer.step == 1
    for path, weight in weights(trainer).items():
        np.testing.assert_array_equal(weight, before[path], err_msg=path)
    scale = {"trainer/loss_scale": 2.0**39, "trainer/finite_steps": 0}
    for path, value in state(trainer).items():
        np.testing.assert_array_equal(value, (state_before | scale)[path], err_msg=path)

    trainer.loss_scale.assign(8.0)
    trainer.finite_steps.assign(trainer_module._STEPS_TO_DOUBLE_SCALE - 1)
    train(trainer, [usual])
    grown = state(trainer)
    assert (grown["trainer/loss_scale"], grown["trainer/finite_steps"]) == (16.0, 0)
    assert trainer.step == 2
    assert any((weights(trainer)[path] != before[path]).any() for path in before)


def test_the_loss_scale_is_taken_out_again(gradient_descent: None) -> None:
    batch = batches(1)[0]
    exact = make_trainer()
    _, expected = plain_gradients(exact, batch)
    trainer = make_trainer(policy="mixed_float16")
    trainer.loss_scale.assign(64.0)
    before = weights(trainer)
    train(trainer, [batch])
    after = weights(trainer)
    for path, gradient in expected.items():
        error = np.linalg.norm(before[path] - after[path] - gradient)
        assert error < 0.02 * np.linalg.norm(gradient), path


def test_bfloat16_trains() -> None:
    batch = batches(1)[0]
    losses = [logs["loss"] for logs in train(make_trainer(policy="mixed_bfloat16"), [batch] * 12)]
    exact = train(make_trainer(), [batch])[0]["loss"]
    assert losses[0] == pytest.approx(exact, rel=0.02) and losses[-1] < losses[0] - 0.05


def test_state_holds_all_that_the_next_step_depends_on() -> None:
    data = batches(4)
    whole = make_trainer(DROPPING)
    expected = [logs["loss"] for logs in train(whole, data)][2:]
    begun = make_trainer(DROPPING)
    train(begun, data[:2])
    resumed = make_trainer(DROPPING)
    resumed.transformer.assign_weights(weights(begun))
    for path, variable in resumed.state_by_path().items():
        variable.assign(state(begun)[path])
    assert resumed.step == 2
    assert [logs["loss"] for logs in train(resumed, data[2:])] == expected
    final = weights(resumed)
    for path, weight in weights(whole).items():
        np.testing.assert_array_equal(final[path], weight, err_msg=path)
