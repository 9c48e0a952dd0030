"""Adam and AdamW against the Keras optimizers, on the same gradients."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.training.update import Update, make_optimizer
from tests.training.tiny_model import relative_difference

D_MODEL = 64
PAPER = TrainingConfig(warmup_steps=10)
ADAMW = dataclasses.replace(PAPER, weight_decay=0.1, schedule="inverse_sqrt", learning_rate=0.01)
SHAPES = {"kernel": (6, 4), "bias": (4,), "gamma": (4,)}


def make_variables():
    rng = np.random.default_rng(1)
    return [
        keras.Variable(rng.normal(1.0, 1.0, shape).astype(np.float32), name=name)
        for name, shape in SHAPES.items()
    ]


def make_gradients(steps):
    """Gradients of all sizes from 1e-12 to 1, and zeros."""
    rng = np.random.default_rng(2)

    def one(shape):
        gradient = rng.normal(size=shape) * 10.0 ** rng.integers(-12, 1, shape)
        return (gradient * (rng.random(shape) > 0.1)).astype(np.float32)

    return [[one(shape) for shape in SHAPES.values()] for _ in range(steps)]


def make_update(config, variables):
    optimizer = make_optimizer(config, D_MODEL)
    optimizer.build(variables)
    weights = {variable.name: variable for variable in variables}
    add_weight = keras.layers.Layer().add_weight
    return Update(
        weights, weights, optimizer, config, add_weight, scales_loss=False, as_one_program=False
    )


def apply(update, gradients):
    tensors = [tf.constant(gradient) for gradient in gradients]
    return update.apply(tensors, update.global_norm(tensors))


def keras_optimizer(config, variables):
    rate = make_optimizer(config, D_MODEL)._learning_rate
    betas = config.beta_1, config.beta_2, config.epsilon
    if not config.weight_decay:
        return keras.optimizers.Adam(rate, *betas)
    optimizer = keras.optimizers.AdamW(rate, config.weight_decay, *betas)
    optimizer.exclude_from_weight_decay(var_list=variables[1:])
    return optimizer


@pytest.mark.parametrize(
    "config",
    [PAPER, dataclasses.replace(PAPER, beta_2=0.9, epsilon=1e-6), ADAMW],
    ids=["paper", "other_betas", "adamw"],
)
def test_updates_are_those_of_keras(config):
    ours, theirs = make_variables(), make_variables()
    update, reference = make_update(config, ours), keras_optimizer(config, theirs)
    start = [variable.numpy() for variable in ours]
    for gradients in make_gradients(20):
        rate = float(reference.learning_rate)
        assert float(apply(update, gradients)["learning_rate"]) == pytest.approx(rate)
        reference.apply([keras.ops.convert_to_tensor(g) for g in gradients], theirs)
        for variable, expected, first in zip(ours, theirs, start, strict=True):
            moved, expected_move = variable.numpy() - first, expected.numpy() - first
            assert relative_difference(variable.numpy(), expected.numpy()) < 1e-6, variable.name
            assert relative_difference(moved, expected_move) < 1e-4, variable.name
    for slot, expected in zip(update._optimizer.variables, reference.variables, strict=True):
        if slot.shape:
            assert relative_difference(slot.numpy(), expected.numpy()) < 1e-6, slot.path


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_gradients_are_clipped_to_the_norm_and_not_below_it(factor):
    [gradients] = make_gradients(1)
    clip_norm = factor * float(tf.linalg.global_norm(gradients))
    moments = []
    for config, scale in ((dataclasses.replace(PAPER, clip_norm=clip_norm), 1), (PAPER, factor)):
        update = make_update(config, make_variables())
        apply(update, [min(scale, 1) * gradient for gradient in gradients])
        moments.append([slot.numpy() for slot in update._optimizer.variables if slot.shape])
    for found, expected in zip(*moments, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_without_finite_gradients_every_bit_stays(number):
    variables = make_variables()
    update = make_update(dataclasses.replace(ADAMW, clip_norm=1.0, ema_decay=0.9), variables)
    first, second = make_gradients(2)
    apply(update, first)
    kept = [*variables, *update.averages.values(), *update._optimizer.variables]
    before = [variable.numpy() for variable in kept]
    second[0][1, 1] = number
    logs = apply(update, second)
    assert int(logs["skipped"]) == int(update.skipped) == 1 and int(update.step) == 2
    for variable, array in zip(kept, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), array, err_msg=variable.path)


def test_the_optimizer_is_the_papers_adam_with_the_same_paths_at_every_call():
    optimizer, again = (make_optimizer(TrainingConfig(), 512) for _ in range(2))
    for made in (optimizer, again):
        made.build(make_variables())
    # Checkpoints identify slots by path.
    assert [v.path for v in optimizer.variables] == [v.path for v in again.variables]
    config = optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.98, 1e-9)
    # 512^-0.5 * 4000^-1.5, the first step of the paper's base
    assert float(optimizer.learning_rate) == pytest.approx(1.7469e-7, rel=1e-4)
