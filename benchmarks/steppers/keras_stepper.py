"""Steps of this package's `Trainer`, on batches that come as they do in training.

Also measures what the machine's matrix products reach at best, through the same library.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import Config, ModelConfig
from keras_transformer.data.batching.batches import Batches, CorpusBatches
from keras_transformer.data.token_store import TokenStore
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import preset
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.devices import Platform, choose_platform, use_logical_cpus
from keras_transformer.training.trainer import Trainer
from steppers import protocol
from steppers.cost import Sizes


def sizes_of(model: ModelConfig) -> Sizes:
    """Returns what a step's cost depends on."""
    fields = [field.name for field in dataclasses.fields(Sizes)]
    return Sizes(**{name: getattr(model, name) for name in fields})


def make_step(
    config: Config, platform: Platform, element_spec: Any
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns a function that trains a new model on one global batch, and returns its logs.

    Args:
        config: model and training.
        platform: devices and precision.
        element_spec: of the batches; unknown lengths in it spare a trace for each.
    """
    keras.utils.set_random_seed(config.training.seed)
    with platform.strategy.scope():
        transformer = Transformer(config.model, dtype=platform.policy())
        trainer = Trainer(transformer, config.training, platform.jit_compile)
    return tf.function(trainer._global_step, input_signature=[element_spec])


def product_ceilings(sizes: Sizes, tokens: int) -> dict[str, float]:
    """Returns the best product's FLOP per second, of a large cube and the model's own shapes."""
    d, ff, vocabulary = sizes.d_model, sizes.d_ff, sizes.target_vocab_size
    shapes = [(2048, 2048, 2048), (tokens, d, ff), (tokens, ff, d), (tokens, d, vocabulary)]
    best = dict.fromkeys(("float32", "bfloat16"), 0.0)
    for dtype in best:
        product = tf.function(tf.matmul)
        for m, k, n in shapes:
            a, b = (tf.cast(tf.random.normal(shape), dtype) for shape in ((m, k), (k, n)))
            product(a, b)
            for _ in range(5):
                start = time.perf_counter()
                product(a, b)
                best[dtype] = max(best[dtype], 2.0 * m * k * n / (time.perf_counter() - start))
    return best


def _first_step_of_each_shape(batches: Batches, num_steps: int) -> list[int]:
    """The first step on each shape of batch that `num_steps` steps meet."""
    first: dict[tuple[int, ...], int] = {}
    for step in range(num_steps):
        inputs, labels = batches.batch(step)
        first.setdefault((*inputs["source_ids"].shape, labels.shape[1]), step)
    return list(first.values())


def start(
    settings: dict[str, Any],
) -> tuple[protocol.Answer, Mapping[str, Callable[[str], protocol.Answer]]]:
    """Makes the model and warms it up.

    Args:
        settings: `preset` and the `configuration` that differs from it, `data_dir`,
            `replicas`, `threads`, and `num_steps` that will be asked for.
    """
    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["threads"])
    if settings["replicas"] > 1:
        use_logical_cpus(settings["replicas"])
    config = preset(settings["preset"]).updated(settings["configuration"])
    training, model = config.training, config.model
    batches = _open_batches(settings["data_dir"], config)
    platform = choose_platform(training, len(batches.shapes), "cpu")
    strategy = platform.strategy
    batch_iterator = iter(batches.distributed(strategy))
    step_function = make_step(config, platform, batch_iterator.element_spec)

    def take_step(data: Any) -> tf.Tensor:
        return step_function(data)["loss"]

    def one_of_each_shape() -> Iterator[Any]:
        for step in _first_step_of_each_shape(batches, settings["num_steps"]):
            yield next(iter(batches.distributed(strategy, step, 1)))

    facts = protocol.warm_up(one_of_each_shape(), take_step)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}
    steps_taken = 0

    def go(count: str) -> protocol.Answer:
        nonlocal steps_taken
        first, steps_taken = steps_taken, steps_taken + int(count)

        def arrays(place: int) -> Any:
            inputs, labels = batches.batch(first + place)
            return inputs["source_ids"], labels

        return protocol.measure(
            int(count), sizes_of(model), lambda: next(batch_iterator), take_step, arrays,
            model.pad_id,
        )  # fmt: skip

    def ceilings(_: str) -> protocol.Answer:
        return product_ceilings(sizes_of(model), training.batch_tokens)

    return {**facts, "versions": versions}, {"go": go, "ceilings": ceilings}


def _open_batches(data_dir: str, config: Config) -> Batches:
    tokenizer = Tokenizer.load(data_dir)
    return CorpusBatches(
        TokenStore(Path(data_dir) / "train"), config.training.batch_tokens, config.training.seed,
        tokenizer.pad_id, tokenizer.start_id,
    )  # fmt: skip


if __name__ == "__main__":
    protocol.serve(start)
