"""The training step: any number of replicas and microbatches, freezing, half precision."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.models.losses import LabelSmoothedCrossEntropy
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.training import trainer as trainer_module
from keras_transformer.training.update import MAX_SCALE, STEPS_TO_DOUBLE
from tests.builders import eagerly, refuses, weekly
from tests.layers.layer_check import assert_same
from tests.training.tiny_model import (
    MODEL,
    SSRU,
    TRAINING,
    Arrays,
    assert_replicas_agree,
    assert_same_bits,
    assign_everything,
    averages,
    batches,
    dataset,
    everything,
    gradient_step,
    make_batch,
    make_trainer,
    relative_difference,
    shared_trainer,
    state,
    train,
    weights,
)

STEPS = 50
CLIP_NORM = 0.5
# Adam with everything that an update can have, with a short warm-up, so that 50 steps change the
# weights.
TRAINED = TrainingConfig(warmup_steps=400, clip_norm=CLIP_NORM, weight_decay=0.1, ema_decay=0.9)
# Lengths of source and target. There is one shape, because XLA compiles each shape for seconds. Its
# 8 rows are not divisible by 3, nor are the 4 of a replica. All parts have different numbers of
# tokens.
_EVEN = [7, 7, 6, 5, 5, 3, 2, 2], [8, 8, 7, 7, 3, 2, 1, 1]
_ODD = [2, 1, 7, 4, 7, 3, 2, 0], [1, 1, 8, 2, 3, 8, 4, 0]
DATA = [make_batch(*(_ODD if i % 2 else _EVEN), seed=i) for i in range(STEPS)]


class Result(NamedTuple):
    logs: list[dict[str, float]]
    weights: Arrays
    averages: Arrays
    slots: Arrays  # Adam's first and second moments


def trained(devices, parts=1, **options):
    """Takes 50 steps. With microbatches, the dataset gives each replica its rows."""
    training = dataclasses.replace(TRAINED, num_microbatches=parts)
    trainer = make_trainer(training=training, devices=devices, **options)
    logs = train(trainer, DATA, distribute=parts > 1)
    assert trainer.step == STEPS == len(logs)
    assert_replicas_agree(trainer)
    slots = {path: array for path, array in state(trainer).items() if array.ndim}
    return Result(logs, weights(trainer), averages(trainer), slots)


@pytest.fixture(scope="module")
def of_one_replica(two_cpus):
    return trained(two_cpus[:1])


def assert_same_up_to(tolerance, actual, expected):
    for kind in ("weights", "averages", "slots"):
        # A moment is a sum of gradients that cancel, so it loses more digits.
        bound = 5 * tolerance if kind == "slots" else tolerance
        arrays, expected_arrays = getattr(actual, kind), getattr(expected, kind)
        assert arrays.keys() == expected_arrays.keys()
        for path, array in arrays.items():
            assert relative_difference(array, expected_arrays[path]) <= bound, path
    # A constant factor of the gradients changes `gradient_norm`, but not the weights of Adam.
    assert actual.logs[0].keys() == expected.logs[0].keys()
    for name in actual.logs[0]:
        found = [[step[name] for step in result.logs] for result in (actual, expected)]
        np.testing.assert_allclose(*found, rtol=5 * tolerance, err_msg=name)


def test_the_parts_differ_and_the_weights_move(of_one_replica):
    """Checks that the tests below can fail."""
    for _, labels in DATA:
        halves = [int((half != 0).sum()) for half in np.split(labels, 2)]
        assert halves[0] != halves[1]
    start = weights(make_trainer())
    for path, weight in of_one_replica.weights.items():
        assert np.linalg.norm(weight - start[path]) > 1e-2 * np.linalg.norm(weight), path
    losses = [step["loss"] for step in of_one_replica.logs]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.2
    assert all(step["gradient_norm"] > CLIP_NORM for step in of_one_replica.logs)
    assert of_one_replica.averages.keys() == of_one_replica.weights.keys()


@pytest.mark.parametrize("replicas, parts", [weekly(2, 1), (2, 3)])
def test_replicas_and_parts_change_no_weight(of_one_replica, two_cpus, replicas, parts):
    assert_same_up_to(1e-6, trained(two_cpus[:replicas], parts), of_one_replica)


def test_two_replicas_sum_the_gradients_of_recurrent_units(two_cpus):
    (_, expected), (_, found) = (gradient_step(SSRU, devices=two_cpus[:n]) for n in (1, 2))
    assert any("ssru" in path for path in found)
    for path, gradient in found.items():
        assert np.linalg.norm(gradient) > 0, path
        assert relative_difference(gradient, expected[path]) <= 1e-5, path


@pytest.mark.parametrize("replicas", [1, weekly(2)])
def test_xla_in_parts_changes_no_weight(of_one_replica, two_cpus, replicas):
    found = trained(two_cpus[:replicas], parts=2, jit_compile=True)
    assert_same_up_to(1e-5, found, of_one_replica)


@pytest.mark.long
def test_one_program_updates_the_weights_of_each_gpu_as_single_operations_do(
    of_one_replica, monkeypatch, two_cpus
):
    monkeypatch.setattr(trainer_module, "uses_gpus", lambda _: True)
    for count in (1, 2):
        found = trained(two_cpus[:count], parts=3 - count, jit_compile=True)
        assert_same_up_to(1e-5, found, of_one_replica)


def test_labels_that_are_never_predicted_count_as_padding():
    """In training, in validation, and in the loss for `compile`."""
    model = MODEL.replace(output_bias=True)
    inputs, labels = batches(1)[0]
    never = labels[0, 0]
    padded = np.where(labels == never, MODEL.pad_id, labels)
    assert 0 < (padded != MODEL.pad_id).sum() < (labels != MODEL.pad_id).sum()
    found = []
    for given in (labels, padded):
        trainer = shared_trainer(model)
        _, bias = trainer.transformer.output_weights()
        bias.assign(np.where(np.arange(50) == never, EXCLUDED_TOKEN_BIAS, 0.0))
        logits = trainer.transformer(inputs)
        of_logits = LabelSmoothedCrossEntropy(pad_id=MODEL.pad_id)(given, logits)
        with eagerly():
            validated = trainer.evaluate(dataset([(inputs, given)]))
        [logs] = train(trainer, [(inputs, given)], is_eager=True)
        found.append([float(of_logits), validated["loss"], logs["loss"], weights(trainer)])
    assert_same(found[0], found[1])
    assert found[0][1:3] == pytest.approx([found[0][0]] * 2, rel=1e-5)


# Frozen weights.


@pytest.mark.parametrize(
    "tying, freeze, frozen",
    [
        weekly("all", "embedding/*", ["embedding/embeddings"]),
        ("target", "*/layer_0/feed*_bias, output_projection/bias", [
            "encoder/layer_0/feed_forward/inner_bias", "encoder/layer_0/feed_forward/outer_bias",
            "decoder/layer_0/feed_forward/inner_bias", "decoder/layer_0/feed_forward/outer_bias",
            "output_projection/bias",
        ]),
    ],
)  # fmt: skip
def test_frozen_weights_stay_and_the_others_move_as_without(tying, freeze, frozen):
    model = MODEL.replace(tie_embeddings=tying, output_bias=tying != "all")
    _, usual = gradient_step(model)
    logs, moved = gradient_step(model, dataclasses.replace(TRAINING, freeze=freeze))
    assert set(frozen) < moved.keys() == usual.keys()
    for path, move in moved.items():
        assert usual[path].any(), path
        expected = np.zeros_like(move) if path in frozen else usual[path]
        np.testing.assert_allclose(move, expected, rtol=1e-6, atol=0 if path in frozen else 1e-8)
    # Only trained weights count: frozen ones must not make clipping stricter.
    norm = np.sqrt(sum((move**2).sum() for move in moved.values()))
    assert logs["gradient_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize(
    "freeze, facts",
    [
        ("encoder", ("'encoder'", "weight", "embedding/embeddings")),
        ("embedding/*, decoder/layer_7/*", ("'decoder/layer_7/*'", "weight")),
    ],
)
def test_patterns_that_match_no_weight_are_errors(freeze, facts):
    refuses(make_trainer, {"training": dataclasses.replace(TRAINING, freeze=freeze)}, *facts)


# Half precision, and gradients that are not finite.


class NonFiniteGradients:
    """Adds a number to one gradient element of one replica."""

    def __init__(self, trainer):
        self._differentiate = trainer.differentiate
        with trainer.distribute_strategy.scope():
            self._replica, self._number = tf.Variable(0), tf.Variable(0.0)
        trainer.differentiate = self

    def add(self, number, replica=0):
        self._number.assign(number)
        self._replica.assign(replica)

    def __call__(self, *args):
        sums, (first, *others) = self._differentiate(*args)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = tf.where(tf.equal(replica, self._replica), self._number, 0.0)
        return sums, [tf.tensor_scatter_nd_add(first, [[1] * first.shape.rank], [number]), *others]


@functools.cache
def _failing_trainer(policy, jit_compile):
    training = dataclasses.replace(TRAINING, clip_norm=1.0, ema_decay=0.9)
    with mock.patch.object(trainer_module, "uses_gpus", lambda _: jit_compile):
        trainer = make_trainer(
            training=training, policy=policy, devices=("CPU:0", "CPU:1"), jit_compile=jit_compile
        )
    return trainer, NonFiniteGradients(trainer), everything(trainer)


def failing_trainer(policy, jit_compile=False):
    """Two replicas at step 0, with correct gradients. With XLA, they update weights as on GPUs."""
    trainer, gradients, start = _failing_trainer(policy, jit_compile)
    assign_everything(trainer, start)
    gradients.add(0.0)
    return trainer, gradients


@pytest.mark.parametrize(
    "policy, jit_compile",
    [weekly("float32", False), ("mixed_float16", False), weekly("mixed_float16", True)],
)
def test_a_gradient_that_is_not_finite_on_one_replica_skips_the_step_everywhere(
    policy, jit_compile, two_cpus
):
    # One shape, because XLA compiles each.
    usual, other = (make_batch([7, 6, 2, 3], [8, 7, 2, 1], seed) for seed in range(2))
    trainer, gradients = failing_trainer(policy, jit_compile)
    [logs] = train(trainer, [usual])
    assert logs["skipped"] == 0 and ("loss_scale" in logs) == (policy == "mixed_float16")
    scale, expected = logs.get("loss_scale"), everything(trainer)
    failures = [(0, math.nan), (1, math.nan), (0, math.inf), (1, -math.inf)]
    for skipped, (replica, number) in enumerate(failures, start=1):
        gradients.add(number, replica)
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

    gradients.add(0.0)
    [logs] = train(trainer, [other])
    assert logs["skipped"] == 0 and trainer.step == 6
    after = everything(trainer)
    assert after["state/adam/iteration"] == 2 and after["state/trainer/skipped"] == 0
    for path, array in after.items():
        if path.startswith(("weights/", "averages/")):
            assert (array != expected[path]).any(), path
    assert_replicas_agree(trainer)


@pytest.mark.parametrize("jit_compile", [False, weekly(True)])
def test_an_overflow_on_one_replica_halves_the_scale_and_many_good_steps_double_it(
    jit_compile, two_cpus
):
    trainer, _ = failing_trainer("mixed_float16", jit_compile)
    usual = batches(1)[0]
    # The first replica only has padding, so only the second overflows.
    lopsided = make_batch([0, 0, 5, 7], [0, 0, 6, 8], seed=2)
    trainer.state_by_path()["trainer/loss_scale"].assign(2.0**40)
    before = everything(trainer)
    [logs] = train(trainer, [lopsided])
    assert not math.isfinite(logs["gradient_norm"]) and logs["loss_scale"] == 2.0**40
    changed = {"step": 1, "skipped": 1, "loss_scale": 2.0**39}
    expected = before | {f"state/trainer/{name}": value for name, value in changed.items()}
    assert_same_bits(everything(trainer), expected)

    trainer.state_by_path()["trainer/loss_scale"].assign(8.0)
    trainer.state_by_path()["trainer/finite_steps"].assign(STEPS_TO_DOUBLE - 1)
    train(trainer, [usual])
    grown = everything(trainer)
    assert grown["state/trainer/loss_scale"] == 16.0 and grown["state/trainer/finite_steps"] == 0
    assert any((array != before[path]).any() for path, array in grown.items() if "weights/" in path)


def test_the_scale_stays_between_1_and_its_maximum(two_cpus):
    trainer, gradients = failing_trainer("mixed_float16")
    nothing = make_batch([0] * 4, [0] * 4, seed=1)  # does not overflow at any scale
    trainer.state_by_path()["trainer/loss_scale"].assign(MAX_SCALE)
    trainer.state_by_path()["trainer/finite_steps"].assign(STEPS_TO_DOUBLE - 1)
    [logs] = train(trainer, [nothing])
    assert logs["skipped"] == 0 and state(trainer)["trainer/finite_steps"] == 0
    assert state(trainer)["trainer/loss_scale"] == MAX_SCALE
    trainer.state_by_path()["trainer/loss_scale"].assign(1.0)
    gradients.add(math.inf)
    train(trainer, [nothing])
    assert state(trainer)["trainer/loss_scale"] == 1.0


def test_the_loss_scale_is_taken_out_again():
    _, expected = gradient_step()
    _, gradients = gradient_step(policy="mixed_float16", loss_scale=64.0)
    for path, gradient in gradients.items():
        assert relative_difference(gradient, expected[path]) < 0.02, path


@pytest.mark.parametrize("policy", ["mixed_bfloat16", weekly("mixed_float16")])
def test_low_precision_trains_about_as_float32_does(of_one_replica, two_cpus, policy):
    logs = trained(two_cpus[:1], policy=policy).logs
    losses, exact = ([step["loss"] for step in found] for found in (logs, of_one_replica.logs))
    assert losses == pytest.approx(exact, rel=0.02) and losses != exact
    assert losses[-1] < losses[0] - 0.05 and not any(step["skipped"] for step in logs)


# Values that lose precision or overflow in half precision.
_DELICATE = {
    "Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits", "ArgMax", "Exp", "Log",
    "Mean", "Square", "SquaredDifference", "Sqrt", "Rsqrt", "Sin", "Cos",
}  # fmt: skip


def operations(function, *signature):
    """Type and dtype of every operation of a traced function, loops and calls included."""
    traced = tf.function(function, autograph=False)
    graph = traced.get_concrete_function(*signature).graph.as_graph_def()
    bodies = [graph.node, *(inner.node_def for inner in graph.library.function)]
    return {
        (node.op, tf.as_dtype(node.attr["T"].type).name)
        for body in bodies
        for node in body
        if node.attr["T"].type
    }


def test_softmax_norms_and_loss_are_computed_in_float32():
    trainer = shared_trainer(policy="mixed_float16")
    ids = tf.TensorSpec([None, None], tf.int32)
    data = ({"source_ids": ids, "target_ids": ids}, ids)
    seed, scale = tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.float32)
    training = operations(trainer._forward_and_backward, *data, seed, scale)
    evaluation = operations(trainer.test_step, data)
    assert ("Softmax", "float32") in training & evaluation
    assert ("ArgMax", "float32") in evaluation
    for found in (training, evaluation):
        assert {dtype for op, dtype in found if op in _DELICATE} == {"float32"}
        assert ("MatMul", trainer.transformer.compute_dtype) in found
