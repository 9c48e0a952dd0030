"""The update of 50 steps is a function of the global batches, however they are computed."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from keras_transformer.config import TrainingConfig
from tests.training.tiny_model import (
    Arrays,
    assert_replicas_agree,
    averages,
    make_batch,
    make_trainer,
    relative_difference,
    state,
    train,
    weights,
)

STEPS = 50
# The paper's Adam and schedule, with a warm-up short enough to get somewhere in 50 steps.
PAPER = TrainingConfig(warmup_steps=400)
CLIP_NORM = 0.5
CLIPPED = TrainingConfig(
    warmup_steps=400, clip_norm=CLIP_NORM, optimizer="adamw", weight_decay=0.1, ema_decay=0.9
)
# Lengths of source and target. One shape, because XLA compiles each for seconds; its 8 rows
# cannot be divided by 3, nor can a replica's 4. No two parts have as many tokens.
_EVEN = [7, 7, 6, 5, 5, 3, 2, 2], [8, 8, 7, 7, 3, 2, 1, 1]
_ODD = [2, 1, 7, 4, 7, 3, 2, 0], [1, 1, 8, 2, 3, 8, 4, 0]
DATA = [make_batch(*(_ODD if i % 2 else _EVEN), seed=i) for i in range(STEPS)]


class Result(NamedTuple):
    logs: list[dict[str, float]]
    weights: Arrays
    averages: Arrays
    slots: Arrays  # Adam's first and second moments


def trained(
    training: TrainingConfig, devices: list[str], parts: int = 1, jit_compile: bool = False
) -> Result:
    """50 steps; in parts from a dataset that hands each replica its rows."""
    training = dataclasses.replace(training, accumulate_steps=parts)
    trainer = make_trainer(training=training, devices=devices, jit_compile=jit_compile)
    logs = train(trainer, DATA, distribute=parts > 1)
    assert trainer.step == STEPS == len(logs)
    assert_replicas_agree(trainer)
    slots = {path: array for path, array in state(trainer).items() if array.ndim}
    return Result(logs, weights(trainer), averages(trainer), slots)


@pytest.fixture(scope="module")
def of_one_replica(two_cpus: list[str]) -> Result:
    return trained(PAPER, two_cpus[:1])


def assert_same_up_to(tolerance: float, actual: Result, expected: Result) -> None:
    for kind in ("weights", "averages", "slots"):
        # A moment is a sum of gradients that cancel, of which more digits go.
        bound = 5 * tolerance if kind == "slots" else tolerance
        arrays, expected_arrays = getattr(actual, kind), getattr(expected, kind)
        assert arrays.keys() == expected_arrays.keys()
        for path, array in arrays.items():
            assert relative_difference(array, expected_arrays[path]) <= bound, path
    # Adam's weights do not tell gradients from a multiple of them, but `gradient_norm` does.
    assert actual.logs[0].keys() == expected.logs[0].keys()
    for name in actual.logs[0]:
        found = [[step[name] for step in result.logs] for result in (actual, expected)]
        np.testing.assert_allclose(*found, rtol=5 * tolerance, err_msg=name)


def test_the_parts_differ_and_the_weights_move(of_one_replica: Result) -> None:
    """Or the tests below would prove nothing."""
    for _, labels in DATA:
        halves = [int((half != 0).sum()) for half in np.split(labels, 2)]
        assert halves[0] != halves[1]
    start = weights(make_trainer())
    for path, weight in of_one_replica.weights.items():
        assert np.linalg.norm(weight - start[path]) > 1e-2 * np.linalg.norm(weight), path
    losses = [step["loss"] for step in of_one_replica.logs]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.2


@pytest.mark.parametrize("replicas, parts", [(2, 1), (1, 2), (1, 3), (2, 3)])
def test_replicas_and_parts_change_no_weight(
    of_one_replica: Result, two_cpus: list[str], replicas: int, parts: int
) -> None:
    assert_same_up_to(1e-6, trained(PAPER, two_cpus[:replicas], parts), of_one_replica)


def test_xla_on_two_replicas_in_parts_changes_no_weight(
    of_one_replica: Result, two_cpus: list[str]
) -> None:
    compiled = trained(PAPER, two_cpus, parts=2, jit_compile=True)
    assert_same_up_to(1e-5, compiled, of_one_replica)


def test_clipping_decay_and_averages_are_of_the_global_batch(two_cpus: list[str]) -> None:
    one, two = trained(CLIPPED, two_cpus[:1]), trained(CLIPPED, two_cpus)
    assert_same_up_to(1e-6, two, one)
    assert all(step["gradient_norm"] > CLIP_NORM for step in one.logs)
    assert one.averages.keys() == one.weights.keys()
