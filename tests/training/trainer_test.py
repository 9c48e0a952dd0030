"""The training step against plain autodiff, dropout, clipping, averages, evaluation and state."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import Dropout, dropout_seed
from keras_transformer.training.loss import LossSums
from tests import reference
from tests.builders import eagerly, weekly
from tests.training.tiny_model import (
    MODEL,
    TRAINING,
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
    train,
    weights,
)

SMOOTHING = TRAINING.label_smoothing


def plain_gradients(trainer, batch):
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
    "tie_embeddings, output_bias", [("all", False), ("none", True), weekly("target", True)]
)
def test_a_step_has_the_gradients_of_the_whole_model_with_full_logits(tie_embeddings, output_bias):
    model = MODEL.replace(tie_embeddings=tie_embeddings, output_bias=output_bias)
    trainer = shared_trainer(model, gradient_descent=True)
    expected_loss, expected = plain_gradients(trainer, batches(1)[0])
    logs, found = gradient_step(model)
    assert logs["loss"] == pytest.approx(expected_loss, rel=1e-5)
    assert logs["tokens"] == 18
    norm = np.sqrt(sum((gradient**2).sum() for gradient in expected.values()))
    assert logs["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert found.keys() == expected.keys() and trainer.step == 1
    for path, gradient in expected.items():
        np.testing.assert_allclose(found[path], gradient, atol=1e-6, err_msg=path)


# The learning rate is too small to change weights, so losses differ only by dropout.
STILL = dataclasses.replace(TRAINING, learning_rate=1e-30)
DROPPING = dataclasses.replace(MODEL, residual_dropout=0.3, embedding_dropout=0.3)


def test_dropout_is_a_function_of_the_step():
    batch = batches(1)[0]
    trainer = shared_trainer(DROPPING, STILL)
    first = [logs["loss"] for logs in train(trainer, [batch] * 3)]
    assert len({round(loss, 4) for loss in first}) == 3
    trainer.state_by_path()["trainer/step"].assign(1)
    assert [logs["loss"] for logs in train(trainer, [batch] * 2)] == first[1:]


class SeedRecorder:
    """Replaces the gradients, and records the dropout seed of each replica and microbatch."""

    def __init__(self, trainer):
        self.seeds = []
        self._weights = trainer.transformer.weights_by_path().values()
        trainer.differentiate = self

    def _record(self, seed):
        self.seeds.append(tuple(seed.tolist()))
        return np.float32(np.nan if len(self.seeds) > 6 else 0)  # skipped steps count as well

    def __call__(self, inputs, labels, seed, scale):
        number = tf.ensure_shape(tf.numpy_function(self._record, [seed], tf.float32), [])
        return LossSums(0.0, 0.0, 1.0), [tf.fill(weight.shape, number) for weight in self._weights]


def test_no_two_dropout_masks_have_the_same_seed(two_cpus):
    seeds = []
    for seed in (1, 2):
        training = dataclasses.replace(TRAINING, num_microbatches=3, seed=seed)
        trainer = make_trainer(training=training, devices=two_cpus)
        recorder = SeedRecorder(trainer)
        logs = train(trainer, batches(4))
        assert [step["skipped"] for step in logs] == [0, 1, 2, 3]
        seeds.append(set(recorder.seeds))
        assert len(seeds[-1]) == len(recorder.seeds) == 4 * 2 * 3
        trainer.state_by_path()["trainer/step"].assign(2)
        train(trainer, batches(1))
        assert len(recorder.seeds) == 5 * 2 * 3 and set(recorder.seeds) == seeds[-1]
    assert not seeds[0] & seeds[1]


def test_no_two_layers_have_the_same_dropout_mask():
    config = dataclasses.replace(
        DROPPING, num_encoder_layers=2, num_decoder_layers=2, attention_dropout=0.5,
        activation_dropout=0.5, residual_dropout=0.5, embedding_dropout=0.5,
    )  # fmt: skip
    transformer = make_trainer(config).transformer
    layers = [layer for layer in transformer._flatten_layers() if isinstance(layer, Dropout)]
    # Source and target; attention, feed-forward and residual branches.
    assert len(layers) == 2 + 2 * 4 + 2 * 6
    with dropout_seed(tf.constant([1, 2], tf.int64)):
        masks = [layer(tf.ones([8, 8]), training=True).numpy().tobytes() for layer in layers]
    assert len(set(masks)) == len(layers)


def test_keras_calls_the_private_method_that_the_trainer_replaces():
    assert "_maybe_symbolic_build" in inspect.unwrap(keras.Model.fit).__code__.co_names


def test_a_batch_of_filler_rows_changes_no_weight():
    trainer = shared_trainer()
    before = weights(trainer)
    [logs] = train(trainer, [make_batch([0] * 4, [0] * 4, seed=1)], is_eager=True)
    assert (logs["loss"], logs["tokens"], logs["gradient_norm"]) == (0.0, 0.0, 0.0)
    assert_same_bits(weights(trainer), before)


def test_evaluation_is_the_mean_over_tokens(two_cpus):
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
    # As `fit` calls it with `validation_steps`.
    endless = dataset(data).repeat()
    assert trainer.evaluate(endless, steps=len(data), return_dict=True) == pytest.approx(result)


def test_a_run_resumes_with_only_weights_averages_and_state():
    data = batches(4)
    training = dataclasses.replace(TRAINING, ema_decay=0.9)
    whole = shared_trainer(DROPPING, training, policy="mixed_float16")
    expected = [logs["loss"] for logs in train(whole, data)][2:]
    at_the_end = everything(whole)
    started = shared_trainer(DROPPING, training, policy="mixed_float16")
    train(started, data[:2])
    resumed = make_trainer(DROPPING, training, policy="mixed_float16")
    assign_everything(resumed, everything(started))
    assert resumed.step == 2
    assert [logs["loss"] for logs in train(resumed, data[2:])] == expected
    assert_same_bits(everything(resumed), at_the_end)


# Moving averages of the weights.


DECAY = 0.5


@pytest.fixture
def averaged(two_cpus):
    """Two replicas at step 0, with frozen weights. The learning rate lets averages lag behind."""
    training = dataclasses.replace(
        TRAINING,
        ema_decay=DECAY,
        learning_rate=0.03,
        freeze="encoder/*,embedding/*",
        weight_decay=0.1,
    )
    return shared_trainer(training=training, devices=two_cpus)


class Recorder(keras.callbacks.Callback):
    """Weights and averages after every step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((weights(self.model), averages(self.model)))


def test_averages_follow_the_recursion(averaged):
    assert_same_bits(averages(averaged), weights(averaged))
    assert shared_trainer().update.averages == {}  # without a decay
    expected = {path: array.astype(np.float64) for path, array in weights(averaged).items()}
    start, recorder = weights(averaged), Recorder()
    train(averaged, batches(12), recorder)
    # Frozen weights have no slots and no decay.
    frozen = ("encoder/", "embedding/")
    assert not any(name in path for path in averaged.state_by_path() for name in frozen)
    for path, weight in weights(averaged).items():
        assert (weight == start[path]).all() == path.startswith(frozen), path
    assert_replicas_agree(averaged)
    for step, (after, found) in enumerate(recorder.steps, start=1):
        # Short memory at first, in order to forget the random start.
        decay = min(DECAY, (1 + step) / (10 + step))
        for path, average in found.items():
            expected[path] = decay * expected[path] + (1 - decay) * after[path]
            assert relative_difference(average, expected[path]) < 1e-6, (step, path)
            lag = relative_difference(average, after[path])
            assert lag == 0 if path.startswith(frozen) else lag > 1e-4, (step, path)


def broken_batches():
    yield batches(1)[0]
    raise OSError("the disk is gone")


def test_the_average_is_evaluated_and_weights_are_unchanged(averaged):
    data = batches(3)
    train(averaged, data)
    before = everything(averaged)
    signature = dataset([]).element_spec
    failing = tf.data.Dataset.from_generator(broken_batches, output_signature=signature)
    with eagerly():
        result = averaged.evaluate(dataset(data))
        with pytest.raises(tf.errors.OpError, match="the disk is gone"):
            averaged.evaluate(failing)
    assert_same_bits(everything(averaged), before)
    assert_replicas_agree(averaged)

    def evaluated(arrays):
        plain = shared_trainer()
        plain.transformer.assign_weights(arrays)
        with eagerly():
            return plain.evaluate(dataset(data))

    assert result == pytest.approx(evaluated(averages(averaged)), rel=1e-6)
    assert abs(result["loss"] - evaluated(weights(averaged))["loss"]) > 1e-3


def test_callbacks_predict_with_the_transformer():
    trainer = shared_trainer()
    inputs, _ = batches(1)[0]
    predicted = trainer.predict_on_batch(inputs)
    np.testing.assert_array_equal(predicted, trainer.transformer.predict_on_batch(inputs))
