"""This package: training steps, and its search on ids or on text."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import sentence_batches
import tensorflow as tf
from cost import Sizes
from models import sizes_of
from protocol import Answer, Started

from engines import device_time, tasks
from keras_transformer.data.batches import Batches
from keras_transformer.data.token_store import TokenStore
from keras_transformer.decoding import SearchInputs, SearchResult
from keras_transformer.extensions.shortlist.learning import learn_shortlist
from keras_transformer.inference import loading
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.int8 import use_int8_products
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import preset
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.devices import choose_platform, use_logical_cpus
from keras_transformer.training.trainer import Trainer

_VERSIONS = {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}


def train(settings: dict[str, Any]) -> Started:
    """Makes a model and warms it up on the batches of a training run.

    Args:
        settings: `preset` and the `configuration` that differs from it, `data_dir`, `device`,
            `replicas`, `num_steps`, the steps that will be requested, and `only_steps`, the steps
            whose batches are used again and again, or None for all.
    """
    if settings["replicas"] > 1:
        use_logical_cpus(settings["replicas"])
    config = preset(settings["preset"]).updated(settings["configuration"])
    training, model = config.training, config.model
    tokenizer = Tokenizer.load(settings["data_dir"])
    batches = Batches(
        [TokenStore(Path(settings["data_dir"]) / "train")], training.batch_tokens, training.seed,
        tokenizer.vocabulary,
    )  # fmt: skip
    on_gpu, only_steps = settings["device"] == "gpu", settings["only_steps"]
    platform = choose_platform(training, len(batches.shapes), settings["device"])

    def batch_of(step: int) -> Any:
        return next(iter(batches.distributed(platform.strategy, step, 1)))

    iterator = iter(batches.distributed(platform.strategy))
    keras.utils.set_random_seed(training.seed)
    with platform.strategy.scope():
        transformer = Transformer(model, dtype=platform.policy())
        trainer = Trainer(transformer, training, platform.jit_compile)

    @tf.function(input_signature=[iterator.element_spec], autograph=False)
    def train_step(batch: Any) -> dict[str, tf.Tensor]:
        logs: dict[str, tf.Tensor] = platform.strategy.run(trainer.train_step, args=(batch,))
        return logs

    if only_steps:  # their batches stay on the device
        iterator = itertools.cycle([batch_of(step) for step in only_steps])

    def take_step(batch: Any) -> tf.Tensor:
        return platform.strategy.experimental_local_results(train_step(batch))[0]["loss"]

    def one_of_each_shape() -> Iterator[Any]:
        steps = only_steps or range(settings["num_steps"])
        yield from map(batch_of, _first_step_of_each_shape(batches, steps))

    def next_batch(step: int) -> tuple[Any, Callable[[], tasks.Arrays]]:
        def arrays() -> tasks.Arrays:
            number = only_steps[step % len(only_steps)] if only_steps else step
            inputs, labels = batches.batch(number)
            return inputs["source_ids"], labels

        return next(iterator), arrays

    def ceilings() -> Answer:
        return product_ceilings(sizes_of(model), training.batch_tokens, on_gpu)

    def profile(steps: int) -> Answer:
        return device_time.tensorflow_profile(lambda: float(take_step(next(iterator))), steps)

    def device_mb() -> float:
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20

    facts, commands = tasks.train(
        sizes_of(model), model.pad_id, one_of_each_shape(), next_batch, take_step,
        device_mb if on_gpu else None,
    )  # fmt: skip
    commands = {**commands, "ceilings": ceilings, "profile": profile}
    return {**facts, "versions": _VERSIONS}, commands


def _first_step_of_each_shape(batches: Batches, steps: Iterable[int]) -> list[int]:
    first: dict[tuple[int, ...], int] = {}
    for step in steps:
        inputs, labels = batches.batch(step)
        first.setdefault((*inputs["source_ids"].shape, labels.shape[1]), step)
    return list(first.values())


def product_ceilings(sizes: Sizes, tokens: int, on_gpu: bool = False) -> dict[str, float]:
    """Returns the FLOP per second of the fastest matrix product, by precision.

    The products are a large cube and the products of the model.

    Args:
        sizes: sizes of the model.
        tokens: rows of the products of the model.
        on_gpu: measure many products at once, because the host does not wait for a GPU.
    """
    side, repeats = (8192, 10) if on_gpu else (2048, 1)
    d, ff, vocabulary = sizes.d_model, sizes.d_ff, sizes.target_vocab_size
    shapes = [(side, side, side), (tokens, d, ff), (tokens, ff, d), (tokens, d, vocabulary)]
    # A CPU has no fast products of float16.
    best = dict.fromkeys(("float32", "bfloat16", *(["float16"] if on_gpu else [])), 0.0)
    for dtype in best:
        product = tf.function(tf.matmul)
        for m, k, n in shapes:
            a, b = (tf.cast(tf.random.normal(shape), dtype) for shape in ((m, k), (k, n)))
            product(a, b)[0, 0].numpy()
            for _ in range(5):
                started = time.perf_counter()
                for _ in range(repeats):
                    result = product(a, b)
                if on_gpu:
                    result[0, 0].numpy()
                seconds = (time.perf_counter() - started) / repeats
                best[dtype] = max(best[dtype], 2.0 * m * k * n / seconds)
    return best


def decode_ids(settings: dict[str, Any]) -> Started:
    """Makes a random model that decodes ids.

    Args:
        settings: `precision`, `compile`, `preset`, the `configuration` that differs from it,
            `vocabulary`, `seed`, the number of `steps`, whether the search `keeps_symbols`, and the
            settings of `tasks.decode_ids`.
    """
    config = preset(settings["preset"]).updated(settings["configuration"])
    keras.utils.set_random_seed(settings["seed"])
    in_int8 = settings["precision"] == "int8"
    transformer = Transformer(config.model, dtype="float32" if in_int8 else settings["precision"])
    transformer.build()
    if in_int8:
        use_int8_products(transformer)
    tokenizer = Tokenizer.load(settings["vocabulary"])
    tokenizer.symbol_ids = tokenizer.symbol_ids if settings["keeps_symbols"] else None
    translator = TranslationModule(transformer, tokenizer, config.decoding)
    compiled = settings["compile"]
    function = search_function(translator, settings["steps"], compiled)

    def decode(source_ids: tf.Tensor) -> Sequence[int]:
        result = function(source_ids)
        result.ids.numpy()
        lengths: list[int] = result.lengths[:, 0].numpy().tolist()
        return lengths

    def prepare(ids: sentence_batches.Ids) -> tf.Tensor:
        pad_id = config.model.pad_id
        return tf.constant(sentence_batches.widen(ids, pad_id) if compiled else ids)

    shape_of = (lambda source_ids: tuple(source_ids.shape)) if compiled else None
    facts, commands = tasks.decode_ids(
        settings, prepare, decode, shape_of, device_time.tensorflow_profile
    )
    return {**facts, "versions": _VERSIONS}, commands


def search_function(
    translator: TranslationModule, steps: int, compiled: bool
) -> Callable[[tf.Tensor], SearchResult]:
    """Returns a graph function of ids int32 `[rows, length]`, for outputs of at most `steps`."""

    def search(source_ids: tf.Tensor) -> SearchResult:
        max_lengths = tf.fill([tf.shape(source_ids)[0]], steps)
        inputs = SearchInputs(max_lengths, length_limit=steps if compiled else None)
        return translator.translate_ids(source_ids, inputs)

    signature = None if compiled else [tf.TensorSpec([None, None], tf.int32)]
    return tf.function(search, input_signature=signature, autograph=False, jit_compile=compiled)


def decode_text(settings: dict[str, Any]) -> Started:
    """Loads a trained model that decodes text.

    Args:
        settings: `precision`, `compile`, `run`, its `decoding` settings, and the settings of
            `tasks.decode_text`. With `use_shortlist`, `data_dir` and the size `shortlist`.
    """
    compiled, run = settings["compile"], settings["run"]
    module = loading.load_translator(run, settings["decoding"], precision=settings["precision"])
    if settings["use_shortlist"]:
        shortlist = learn_shortlist(run, settings["data_dir"], settings["shortlist"])
        module = module.with_options(shortlist=shortlist)
    translate = tasks.first_translations(KerasEngine(module, run, jit_compile=compiled))
    facts, commands = tasks.decode_text(settings, translate, compiled)
    return {**facts, "versions": _VERSIONS}, commands
