"""Stock `model.fit` of Keras under a strategy: the same update as on one device."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.training.devices import choose_platform
from tests.training.tiny_model import MODEL, TRAINING, batches, dataset

ROWS = batches(2)


@pytest.fixture
def two_replicas(two_cpus: list[str]) -> tf.distribute.Strategy:
    """A strategy with separate keys for its sums: those of two stock strategies mix them up."""
    strategy = choose_platform(TRAINING, 1, "cpu").strategy
    assert strategy.num_replicas_in_sync == 2
    return strategy


def fitted(strategy: Any, *callbacks: Any) -> tuple[Any, dict[str, list[float]]]:
    """The model and its logs after two epochs."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = kt.Transformer(MODEL)
        model.compile(
            keras.optimizers.SGD(0.1),
            kt.losses.LabelSmoothedCrossEntropy(),
            metrics=[kt.metrics.TokenAccuracy(), kt.metrics.Perplexity()],
            jit_compile=False,
            run_eagerly=strategy.num_replicas_in_sync == 1,  # faster than tracing a graph
        )
    data = {"x": dataset(ROWS), "validation_data": dataset(ROWS)}
    return model, model.fit(**data, epochs=2, callbacks=callbacks, verbose=0).history


def test_two_replicas_give_the_update_of_one_and_callbacks_work(
    two_replicas: tf.distribute.Strategy, tmp_path: Path
) -> None:
    # The first half of the rows of a batch has more tokens than the second.
    one, history = fitted(
        tf.distribute.get_strategy(),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras"),
        keras.callbacks.ReduceLROnPlateau("val_loss", min_delta=1e9, patience=1, factor=0.5),
    )
    two, distributed = fitted(two_replicas)
    stored = keras.saving.load_model(tmp_path / "best.keras")
    for variables in zip(one.weights, two.weights, stored.weights, strict=True):
        expected, found, same = map(keras.ops.convert_to_numpy, variables)
        np.testing.assert_allclose(found, expected, atol=2e-6)
        np.testing.assert_array_equal(same, expected)
    for name, values in distributed.items():
        np.testing.assert_allclose(values, history[name], rtol=2e-5, err_msg=name)
    assert history["learning_rate"] == pytest.approx([0.1, 0.1])
    assert float(one.optimizer.learning_rate) == pytest.approx(0.05)


def test_replicas_have_different_dropout(two_replicas: tf.distribute.Strategy) -> None:
    with two_replicas.scope():
        layer = kt.layers.Dropout(0.5)
        layer.build((64,))
    runs = [two_replicas.run(lambda: layer(tf.ones(64), training=True)) for _ in range(2)]
    masks = [mask for run in runs for mask in two_replicas.experimental_local_results(run)]
    assert len({mask.numpy().tobytes() for mask in masks}) == 4


def test_xla_is_left_out_for_several_replicas(two_replicas: tf.distribute.Strategy) -> None:
    with two_replicas.scope():
        model = kt.Transformer(MODEL)
        model.compile("sgd", kt.losses.LabelSmoothedCrossEntropy())
    assert not model.jit_compile
