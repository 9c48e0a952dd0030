"""A model that trains in milliseconds, and batches for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import ModelConfig, TrainingConfig
from keras_transformer.model import Transformer
from keras_transformer.training.trainer import Trainer

Batch = tuple[dict[str, np.ndarray], np.ndarray]

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
TRAINING = TrainingConfig(schedule="constant", learning_rate=1e-3, warmup_steps=5)


def make_batch(source_lengths: Sequence[int], target_lengths: Sequence[int], seed: int) -> Batch:
    """Random sentences of these lengths, end id included; length 0 makes a filler row."""
    rng = np.random.default_rng(seed)

    def rows(lengths: Sequence[int]) -> np.ndarray:
        ids = np.full((len(lengths), max(*lengths, 2)), MODEL.pad_id, np.int32)
        for row, length in zip(ids, lengths, strict=True):
            if length:
                row[: length - 1] = rng.integers(4, 50, length - 1)
                row[length - 1] = MODEL.end_id
        return ids

    source, labels = rows(source_lengths), rows(target_lengths)
    target = np.where(labels != MODEL.pad_id, np.roll(labels, 1, axis=1), MODEL.pad_id)
    target[:, 0] = np.where(labels[:, 0] != MODEL.pad_id, MODEL.start_id, MODEL.pad_id)
    return {"source_ids": source, "target_ids": target.astype(np.int32)}, labels


def batches(count: int) -> list[Batch]:
    """Batches of 4 rows in two shapes; the first half of the rows has more tokens."""
    lengths = [([7, 6, 2, 3], [8, 7, 2, 1]), ([5, 5, 4, 2], [5, 6, 3, 0])]
    return [make_batch(*lengths[i % 2], seed=i) for i in range(count)]


def dataset(data: Sequence[Batch]) -> tf.data.Dataset:
    ids = tf.TensorSpec([None, None], tf.int32)
    return tf.data.Dataset.from_generator(
        lambda: iter(data), output_signature=({"source_ids": ids, "target_ids": ids}, ids)
    )


def make_trainer(
    model: ModelConfig = MODEL,
    training: TrainingConfig = TRAINING,
    *,
    devices: Sequence[str] = ("CPU:0",),
    jit_compile: bool = False,
    policy: str = "float32",
) -> Trainer:
    """The same weights at every call."""
    keras.utils.set_random_seed(3)
    with tf.distribute.MirroredStrategy(list(devices)).scope():
        return Trainer(Transformer(model, dtype=policy), training, jit_compile)


class _Logs(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.steps.append({name: float(value) for name, value in (logs or {}).items()})


def train(trainer: Trainer, data: Sequence[Batch]) -> list[dict[str, float]]:
    """Trains one step a batch, and returns the logs of each."""
    logs = _Logs()
    trainer.fit(
        dataset(data), steps_per_epoch=len(data), epochs=1, shuffle=False, verbose=0,
        callbacks=[logs],
    )  # fmt: skip
    return logs.steps


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    return {
        path: np.array(keras.ops.convert_to_numpy(variable))
        for path, variable in trainer.transformer.weights_by_path().items()
    }


def state(trainer: Trainer) -> dict[str, np.ndarray]:
    return {
        path: np.array(keras.ops.convert_to_numpy(variable))
        for path, variable in trainer.state_by_path().items()
    }
