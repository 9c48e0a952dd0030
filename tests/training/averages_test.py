"""The exponential moving average of the weights."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.tiny_model import (
    TRAINING,
    assert_replicas_agree,
    assert_same_bits,
    averages,
    batches,
    dataset,
    everything,
    relative_difference,
    shared_trainer,
    train,
    weights,
)

DECAY = 0.5
FROZEN = "encoder/*"


@pytest.fixture
def trainer(two_cpus):
    """Two replicas at step 0, with frozen weights. The learning rate lets averages lag behind."""
    training = dataclasses.replace(TRAINING, ema_decay=DECAY, learning_rate=0.03, freeze=FROZEN)
    return shared_trainer(training=training, devices=two_cpus)


class Recorder(keras.callbacks.Callback):
    """Weights and averages after every step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((weights(self.model), averages(self.model)))


def test_averages_follow_the_recursion(trainer):
    assert_same_bits(averages(trainer), weights(trainer))
    expected = {path: array.astype(np.float64) for path, array in weights(trainer).items()}
    recorder = Recorder()
    train(trainer, batches(12), recorder)
    assert_replicas_agree(trainer)
    for step, (after, found) in enumerate(recorder.steps, start=1):
        # Short memory at first, in order to forget the random start.
        decay = min(DECAY, (1 + step) / (10 + step))
        for path, average in found.items():
            expected[path] = decay * expected[path] + (1 - decay) * after[path]
            assert relative_difference(average, expected[path]) < 1e-6, (step, path)
            lag = relative_difference(average, after[path])
            assert lag == 0 if path.startswith("encoder/") else lag > 1e-4, (step, path)


def test_the_average_is_evaluated_and_weights_are_unchanged(trainer):
    data = batches(3)
    train(trainer, data)
    before = everything(trainer)
    result = trainer.evaluate(dataset(data))
    assert_same_bits(everything(trainer), before)
    assert_replicas_agree(trainer)

    def evaluated(arrays):
        plain = shared_trainer()
        plain.transformer.assign_weights(arrays)
        return plain.evaluate(dataset(data))

    assert result == pytest.approx(evaluated(averages(trainer)), rel=1e-6)
    assert abs(result["loss"] - evaluated(weights(trainer))["loss"]) > 1e-3


def test_weights_are_restored_after_a_failed_evaluation(trainer):
    train(trainer, batches(3))
    before = everything(trainer)

    def broken():
        yield batches(1)[0]
        raise OSError("the disk is gone")

    data = tf.data.Dataset.from_generator(broken, output_signature=dataset([]).element_spec)
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        trainer.evaluate(data)
    assert_same_bits(everything(trainer), before)


def test_averages_are_empty_if_the_decay_is_zero():
    assert shared_trainer().ema_by_path() == {}
    assert not any("average" in path for path in shared_trainer().state_by_path())
