"""Half precision, and gradients that are not finite on some replica in any precision."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import loss_scale
from keras_transformer.training.trainer import Trainer
from tests.training.tiny_model import (
    MODEL,
    TRAINING,
    Arrays,
    assert_replicas_agree,
    assert_same_bits,
    assign_everything,
    batches,
    dataset,
    everything,
    make_batch,
    make_trainer,
    relative_difference,
    shared_trainer,
    state,
    train,
    weights,
)

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]
LOW = POLICIES[1:]


class Spoiler:
    """Adds a number to one element of one replica's gradients."""

    def __init__(self, trainer: Trainer):
        self._differentiate = trainer.training_step._differentiate
        with trainer.distribute_strategy.scope():
            self._replica, self._number = tf.Variable(0), tf.Variable(0.0)
        trainer.training_step._differentiate = self

    def add(self, number: float, replica: int = 0) -> None:
        self._number.assign(number)
        self._replica.assign(replica)

    def __call__(self, *args: Any) -> Any:
        sums, (first, *others) = self._differentiate(*args)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = tf.where(tf.equal(replica, self._replica), self._number, 0.0)
        return sums, [tf.tensor_scatter_nd_add(first, [[1] * first.shape.rank], [number]), *others]


@functools.cache
def _spoiled_trainer(policy: str) -> tuple[Trainer, Spoiler, Arrays]:
    training = dataclasses.replace(TRAINING, clip_norm=1.0, ema_decay=0.9)
    trainer = make_trainer(training=training, policy=policy, devices=("CPU:0", "CPU:1"))
    return trainer, Spoiler(trainer), everything(trainer)


def spoiled_trainer(policy: str) -> tuple[Trainer, Spoiler]:
    """Two replicas at step 0, with nothing spoiled yet."""
    trainer, spoiler, start = _spoiled_trainer(policy)
    assign_everything(trainer, start)
    spoiler.add(0.0)
    return trainer, spoiler


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gradient_that_is_not_finite_on_one_replica_skips_the_step_everywhere(
    policy: str, two_cpus: list[str]
) -> None:
    usual, other = batches(2)
    trainer, spoiler = spoiled_trainer(policy)
    [logs] = train(trainer, [usual])
    assert logs["skipped"] == 0 and ("loss_scale" in logs) == (policy == "mixed_float16")
    scale, expected = logs.get("loss_scale"), everything(trainer)
    spoiled = [(0, math.nan), (1, math.nan), (0, math.inf), (1, -math.inf)]
    for skipped, (replica, number) in enumerate(spoiled, start=1):
        spoiler.add(number, replica)
        [logs] = train(trainer, [other])
        assert logs["skipped"] == skipped and not math.isfinite(logs["gradient_norm"])
        assert math.isfinite(logs["loss"]) and math.isfinite(logs["log_perplexity"])
        expected |= {"state/trainer/step": 1 + skipped, "state/trainer/skipped": skipped}
        if scale is not None:
            assert logs["loss_scale"] == scale / 2 ** (skipped - 1)
            halved = scale / 2**skipped
            expected |= {"state/trainer/loss_scale": halved, "state/trainer/finite_steps": 0}
        assert_same_bits(everything(trainer), expected)
        assert_replicas_agree(trainer)

    spoiler.add(0.0)
    [logs] = train(trainer, [other])
    assert logs["skipped"] == 0 and trainer.step == 6
    after = everything(trainer)
    assert after["state/adam/iteration"] == 2 and after["state/trainer/skipped"] == 0
    for path, array in after.items():
        if path.startswith(("weights/", "averages/")):
            assert (array != expected[path]).any(), path
    assert_replicas_agree(trainer)


def test_an_overflow_on_one_replica_halves_the_scale_and_many_good_steps_double_it(
    two_cpus: list[str],
) -> None:
    trainer, _ = spoiled_trainer("mixed_float16")
    usual = batches(1)[0]
    # The first replica has no token, so only the second overflows.
    lopsided = make_batch([0, 0, 5, 4], [0, 0, 6, 5], seed=2)
    trainer.state_by_path()["trainer/loss_scale"].assign(2.0**40)
    before = everything(trainer)
    [logs] = train(trainer, [lopsided])
    assert not math.isfinite(logs["gradient_norm"]) and logs["loss_scale"] == 2.0**40
    changed = {"step": 1, "skipped": 1, "loss_scale": 2.0**39}
    expected = before | {f"state/trainer/{name}": value for name, value in changed.items()}
    assert_same_bits(everything(trainer), expected)

    trainer.state_by_path()["trainer/loss_scale"].assign(8.0)
    trainer.state_by_path()["trainer/finite_steps"].assign(loss_scale.STEPS_TO_DOUBLE - 1)
    train(trainer, [usual])
    grown = everything(trainer)
    assert grown["state/trainer/loss_scale"] == 16.0 and grown["state/trainer/finite_steps"] == 0
    assert any((array != before[path]).any() for path, array in grown.items() if "weights/" in path)


def test_the_scale_stays_between_1_and_its_maximum(two_cpus: list[str]) -> None:
    trainer, spoiler = spoiled_trainer("mixed_float16")
    nothing = make_batch([0] * 4, [0] * 4, seed=1)  # overflows at no scale
    trainer.state_by_path()["trainer/loss_scale"].assign(loss_scale.MAX_SCALE)
    trainer.state_by_path()["trainer/finite_steps"].assign(loss_scale.STEPS_TO_DOUBLE - 1)
    [logs] = train(trainer, [nothing])
    assert logs["skipped"] == 0 and state(trainer)["trainer/finite_steps"] == 0
    assert state(trainer)["trainer/loss_scale"] == loss_scale.MAX_SCALE
    trainer.state_by_path()["trainer/loss_scale"].assign(1.0)
    spoiler.add(math.inf)
    train(trainer, [nothing])
    assert state(trainer)["trainer/loss_scale"] == 1.0


def test_the_loss_scale_is_taken_out_again() -> None:
    batch = batches(1)[0]

    def gradients(policy: str) -> Arrays:
        trainer = shared_trainer(policy=policy, gradient_descent=True)
        if policy == "mixed_float16":
            trainer.state_by_path()["trainer/loss_scale"].assign(64.0)
        before = weights(trainer)
        train(trainer, [batch])
        after = weights(trainer)
        return {path: before[path] - after[path] for path in before}

    expected = gradients("float32")
    for path, gradient in gradients("mixed_float16").items():
        assert relative_difference(gradient, expected[path]) < 0.02, path


@pytest.mark.parametrize("policy", LOW)
def test_low_precision_trains_about_as_float32_does(policy: str, two_cpus: list[str]) -> None:
    data = [batches(1)[0]] * 12
    exact = train(spoiled_trainer("float32")[0], data)
    logs = train(spoiled_trainer(policy)[0], data)
    losses = [step["loss"] for step in logs]
    assert losses == pytest.approx([step["loss"] for step in exact], rel=0.02)
    assert losses != [step["loss"] for step in exact]
    assert losses[-1] < losses[0] - 0.05 and not any(step["skipped"] for step in logs)


@pytest.mark.parametrize("policy", LOW)
def test_filler_rows_and_padding_leave_evaluation_finite(policy: str) -> None:
    data = [make_batch([7, 1, 0, 0], [8, 1, 0, 0], seed=1), make_batch([0] * 4, [0] * 4, seed=2)]
    exact = shared_trainer().evaluate(dataset(data))
    assert shared_trainer(policy=policy).evaluate(dataset(data)) == pytest.approx(exact, rel=0.02)


# What loses too much in half precision, or overflows.
_DELICATE = {
    "Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits", "ArgMax", "Exp", "Log",
    "Mean", "Square", "SquaredDifference", "Sqrt", "Rsqrt", "Sin", "Cos",
}  # fmt: skip


def operations(function: Any, *signature: Any) -> set[tuple[str, str]]:
    """Type and dtype of every operation of a traced function, loops and calls included."""
    graph = tf.function(function).get_concrete_function(*signature).graph.as_graph_def()
    bodies = [graph.node, *(inner.node_def for inner in graph.library.function)]
    return {
        (node.op, tf.as_dtype(node.attr["T"].type).name)
        for body in bodies
        for node in body
        if node.attr["T"].type
    }


@pytest.mark.parametrize("policy", LOW)
def test_softmax_norms_and_loss_are_computed_in_float32(policy: str) -> None:
    trainer = shared_trainer(policy=policy)
    ids = tf.TensorSpec([None, None], tf.int32)
    data = ({"source_ids": ids, "target_ids": ids}, ids)
    seed, scale = tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.float32)
    training = operations(trainer.training_step._loss_and_gradients, *data, seed, scale)
    evaluation = operations(trainer._replica_evaluation, data)
    assert ("Softmax", "float32") in training & evaluation
    assert ("ArgMax", "float32") in evaluation
    for found in (training, evaluation):
        assert {dtype for op, dtype in found if op in _DELICATE} == {"float32"}
        assert ("MatMul", trainer.transformer.compute_dtype) in found


@pytest.mark.parametrize("policy", LOW)
def test_layer_norms_take_what_cannot_be_squared_in_float16(policy: str) -> None:
    transformer = shared_trainer(policy=policy).transformer
    inputs = np.random.default_rng(1).normal(1000.0, 3000.0, (5, MODEL.d_model)).astype(np.float16)
    centred = inputs - inputs.astype(np.float64).mean(axis=1, keepdims=True)
    expected = centred / centred.std(axis=1, keepdims=True)
    for layer in (*transformer.encoder.layers, *transformer.decoder.layers):
        for norm in (layer.self_attention_norm, layer.feed_forward_norm):
            outputs = norm(tf.cast(inputs, transformer.compute_dtype))
            np.testing.assert_allclose(tf.cast(outputs, tf.float32), expected, atol=0.03)
