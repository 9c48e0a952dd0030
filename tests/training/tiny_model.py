"""A model that trains in milliseconds, and batches for it."""

import dataclasses
import functools
import random
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import ModelConfig, TrainingConfig
from keras_transformer.models.transformer import Transformer
from keras_transformer.training import trainer as trainer_module
from keras_transformer.training.devices import mirrored_strategy
from keras_transformer.training.trainer import Trainer
from tests.builders import eagerly

Batch = tuple[dict[str, np.ndarray], np.ndarray]
Arrays = dict[str, np.ndarray]

MODEL = ModelConfig(
    source_vocab_size=50,
    target_vocab_size=50,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=16,
    d_ff=32,
    num_heads=2,
    embedding_dropout=0.0,
    residual_dropout=0.0,
)
SSRU = dataclasses.replace(MODEL, decoder_self_attention="ssru")
TRAINING = TrainingConfig(schedule="constant", learning_rate=1e-3, warmup_steps=5)


def make_batch(source_lengths, target_lengths, seed):
    """Random sentences of these lengths, including the end id. Length 0 makes a filler row."""
    rng = np.random.default_rng(seed)

    def rows(lengths):
        ids = np.full((len(lengths), max(*lengths, 2)), MODEL.pad_id, np.int32)
        for row, length in zip(ids, lengths, strict=True):
            if length:
                row[: length - 1] = rng.integers(4, 50, length - 1)
                row[length - 1] = MODEL.token_ids.end_id
        return ids

    source, labels = rows(source_lengths), rows(target_lengths)
    target = np.where(labels != MODEL.pad_id, np.roll(labels, 1, axis=1), MODEL.pad_id)
    target[:, 0] = np.where(labels[:, 0] != MODEL.pad_id, MODEL.token_ids.start_id, MODEL.pad_id)
    return {"source_ids": source, "target_ids": target.astype(np.int32)}, labels


def batches(count):
    """Batches of 4 rows in two shapes. The first half of the rows has more tokens."""
    lengths = [([7, 6, 2, 3], [8, 7, 2, 1]), ([5, 5, 4, 2], [5, 6, 3, 0])]
    return [make_batch(*lengths[i % 2], seed=i) for i in range(count)]


def dataset(data):
    ids = tf.TensorSpec([None, None], tf.int32)
    options = tf.data.Options()
    options.autotune.enabled = False  # otherwise releasing an iterator waits for up to a minute
    return tf.data.Dataset.from_generator(
        lambda: iter(data), output_signature=({"source_ids": ids, "target_ids": ids}, ids)
    ).with_options(options)


def distributed(strategy, data):
    """The rows of each replica."""
    count = strategy.num_replicas_in_sync
    parts = [
        tf.nest.map_structure(lambda ids, part=part: np.split(ids, count)[part], batch)
        for batch in data
        for part in range(count)
    ]
    # One pipeline per replica. A single pipeline would use iterators that TensorFlow tunes.
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )
    return strategy.distribute_datasets_from_function(
        lambda context: dataset(parts[context.input_pipeline_id :: count]), options
    )


def make_trainer(
    model=MODEL,
    training=TRAINING,
    *,
    devices=("CPU:0",),
    jit_compile=False,
    policy="float32",
    gradient_descent=False,
    auxiliary_loss=None,
):
    """The same weights at every call.

    With `gradient_descent` a step subtracts the gradient itself, so that it can be
    read off the weights.
    """
    random.seed(3)  # `keras.utils.set_random_seed` makes TensorFlow forget its kernels, too
    optimizer = trainer_module.make_optimizer
    if gradient_descent:  # the update is nearly rate * gradient / (|gradient| + epsilon)
        optimizer = lambda *_: keras.optimizers.Adam(1e7, 0.0, 0.0, 1e7, name="adam")  # noqa: E731
    with (
        mock.patch.object(trainer_module, "make_optimizer", optimizer),
        mirrored_strategy(devices).scope(),
    ):
        return Trainer(Transformer(model, dtype=policy), training, jit_compile, auxiliary_loss)


@functools.cache
def _made_once(*args, **kwargs):
    trainer = make_trainer(*args, **kwargs)
    return trainer, everything(trainer)


def shared_trainer(model=MODEL, training=TRAINING, *, devices=("CPU:0",), **kwargs):
    """Returns a shared trainer at step 0. Tracing takes seconds, so it is traced only once."""
    trainer, start = _made_once(model, training, devices=tuple(devices), **kwargs)
    assign_everything(trainer, start)
    return trainer


class _Logs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append({name: float(value) for name, value in (logs or {}).items()})


def train(trainer, data, *callbacks, distribute=False, is_eager=False):
    """Trains one step a batch, and returns the logs of each.

    With `distribute` each replica is handed its rows, and not all of them the whole batch.
    """
    logs, strategy = _Logs(), trainer.distribute_strategy
    by_replica = distribute or strategy.num_replicas_in_sync == 1
    with eagerly(is_eager):
        trainer.fit(
            distributed(strategy, data) if by_replica else dataset(data),
            steps_per_epoch=len(data), epochs=1, shuffle=False, verbose=0,
            callbacks=[logs, *callbacks],
        )  # fmt: skip
    return logs.steps


def gradient_step(model=MODEL, training=TRAINING, *, loss_scale=None, **kwargs):
    """Subtracts the gradients of the first batch: the logs, and the gradient of each weight."""
    trainer = shared_trainer(model, training, gradient_descent=True, **kwargs)
    if loss_scale is not None:
        trainer.state_by_path()["trainer/loss_scale"].assign(loss_scale)
    before = weights(trainer)
    [logs] = train(trainer, batches(1), is_eager=True)
    after = weights(trainer)
    return logs, {path: before[path] - after[path] for path in before}


def arrays(variables):
    return {
        path: np.array(keras.ops.convert_to_numpy(variable)) for path, variable in variables.items()
    }


def weights(trainer):
    return arrays(trainer.transformer.weights_by_path())


def averages(trainer):
    return arrays(trainer.update.averages)


def state(trainer):
    return arrays(trainer.state_by_path())


def variables_of(trainer):
    """Weights, averages and state in one dictionary."""
    parts = {
        "weights": trainer.transformer.weights_by_path(),
        "averages": trainer.update.averages,
        "state": trainer.state_by_path(),
    }
    return {f"{part}/{path}": v for part, found in parts.items() for path, v in found.items()}


def everything(trainer):
    return arrays(variables_of(trainer))


def assign_everything(trainer, values):
    variables = variables_of(trainer)
    assert variables.keys() == values.keys()
    for path, variable in variables.items():
        variable.assign(values[path])


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for path, array in actual.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def assert_replicas_agree(trainer):
    """Every replica has the same bits in its copies of weights, averages and slots."""
    for path, variable in variables_of(trainer).items():
        first, *others = trainer.distribute_strategy.experimental_local_results(variable.value)
        for other in others:
            np.testing.assert_array_equal(other, first, err_msg=path)


def relative_difference(actual, expected):
    """Norm of the difference over norm, of a whole array."""
    difference = np.linalg.norm(actual - expected.astype(np.float64))
    return float(difference / max(np.linalg.norm(expected), 1e-30))
