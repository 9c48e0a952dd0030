"""Adam and AdamW against the Keras optimizers, on the same gradients."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

from keras_transformer.config import TrainingConfig
from keras_transformer.training.optimizer import FusedAdam, make_optimizer
from tests.training.tiny_model import relative_difference

D_MODEL = 64
PAPER = TrainingConfig(warmup_steps=10)
ADAMW = dataclasses.replace(
    PAPER, optimizer="adamw", weight_decay=0.1, schedule="inverse_sqrt", learning_rate=0.01
)
SHAPES = {"kernel": (6, 4), "bias": (4,), "gamma": (4,)}


def make_variables() -> list[keras.Variable]:
    rng = np.random.default_rng(1)
    return [
        keras.Variable(rng.normal(1.0, 1.0, shape).astype(np.float32), name=name)
        for name, shape in SHAPES.items()
    ]


def make_gradients(steps: int) -> list[list[np.ndarray]]:
    """Gradients of all sizes from 1e-12 to 1, and zeros."""
    rng = np.random.default_rng(2)

    def one(shape: tuple[int, ...]) -> np.ndarray:
        gradient = rng.normal(size=shape) * 10.0 ** rng.integers(-12, 1, shape)
        return (gradient * (rng.random(shape) > 0.1)).astype(np.float32)

    return [[one(shape) for shape in SHAPES.values()] for _ in range(steps)]


def keras_optimizer(config: TrainingConfig, variables: list[keras.Variable]) -> keras.Optimizer:
    rate = make_optimizer(config, D_MODEL)._learning_rate
    betas = config.beta_1, config.beta_2, config.epsilon
    if config.optimizer == "adam":
        return keras.optimizers.Adam(rate, *betas)
    optimizer = keras.optimizers.AdamW(rate, config.weight_decay, *betas)
    optimizer.exclude_from_weight_decay(var_list=variables[1:])
    return optimizer


@pytest.mark.parametrize(
    "config",
    [PAPER, dataclasses.replace(PAPER, beta_2=0.9, epsilon=1e-6), ADAMW],
    ids=["paper", "other_betas", "adamw"],
)
def test_updates_are_those_of_keras(config: TrainingConfig) -> None:
    ours, theirs = make_variables(), make_variables()
    optimizer, reference = make_optimizer(config, D_MODEL), keras_optimizer(config, theirs)
    optimizer.build(ours)
    start = [variable.numpy() for variable in ours]
    for gradients in make_gradients(20):
        rate = optimizer.learning_rate
        for gradient, variable in zip(gradients, ours, strict=True):
            optimizer.update_step(gradient, variable, rate)
        optimizer.iterations.assign_add(1)
        reference.apply([keras.ops.convert_to_tensor(g) for g in gradients], theirs)
        for variable, expected, first in zip(ours, theirs, start, strict=True):
            moved, expected_move = variable.numpy() - first, expected.numpy() - first
            assert relative_difference(variable.numpy(), expected.numpy()) < 1e-6, variable.name
            assert relative_difference(moved, expected_move) < 1e-4, variable.name
    slots = [*optimizer._momentums, *optimizer._velocities]
    expected_slots = [*reference._momentums, *reference._velocities]
    for slot, expected in zip(slots, expected_slots, strict=True):
        assert relative_difference(slot.numpy(), expected.numpy()) < 1e-6, slot.path


def test_it_is_a_keras_optimizer() -> None:
    """`apply` equals single updates, and the configuration can be restored."""
    [gradients] = make_gradients(1)
    ours, theirs = make_variables(), make_variables()
    optimizer = make_optimizer(ADAMW, D_MODEL)
    optimizer.build(ours)
    for gradient, variable in zip(gradients, ours, strict=True):
        optimizer.update_step(gradient, variable, optimizer.learning_rate)
    restored = FusedAdam.from_config(optimizer.get_config())
    restored.apply([keras.ops.convert_to_tensor(g) for g in gradients], theirs)
    for variable, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected.numpy())


def test_decay_applies_to_kernels_but_not_to_biases_and_layer_norms() -> None:
    variables = make_variables()
    start = [variable.numpy() for variable in variables]
    optimizer = make_optimizer(ADAMW, D_MODEL)
    optimizer.build(variables)
    factor = 1.0
    for _ in range(15):
        rate = optimizer.learning_rate
        factor *= 1 - float(rate) * ADAMW.weight_decay
        for variable in variables:
            optimizer.update_step(keras.ops.zeros(variable.shape), variable, rate)
        optimizer.iterations.assign_add(1)
    assert factor < 0.995
    kernel, *others = variables
    np.testing.assert_allclose(kernel.numpy(), start[0] * factor, rtol=1e-5)
    for variable, first in zip(others, start[1:], strict=True):
        np.testing.assert_array_equal(variable.numpy(), first, err_msg=variable.name)


def test_the_optimizer_is_the_papers_adam() -> None:
    optimizer = make_optimizer(TrainingConfig(), 512)
    config = optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.98, 1e-9)
    # 512^-0.5 * 4000^-1.5, the first step of the paper's base
    assert float(optimizer.learning_rate) == pytest.approx(1.7469e-7, rel=1e-4)
    # The step clips after summing over replicas; the optimizer would clip before.
    config = make_optimizer(dataclasses.replace(PAPER, clip_norm=1.0), 512).get_config()
    assert config["global_clipnorm"] is None and config["clipnorm"] is None


def test_variables_have_the_same_paths_in_every_optimizer_of_a_process() -> None:
    """Checkpoints identify slots by path."""
    paths = []
    for _ in range(2):
        optimizer = make_optimizer(PAPER, D_MODEL)
        optimizer.build(make_variables())
        paths.append([variable.path for variable in optimizer.variables])
    assert paths[0] == paths[1] and len(set(paths[0])) == len(paths[0])
