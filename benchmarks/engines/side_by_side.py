"""One model in two Keras libraries: `compile`, `fit`, and a search, with the same weights.

Both libraries use this module, so that they get the same batches, optimizer, loss and timers.
"""

from __future__ import annotations

import abc
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from protocol import Answer, Started
from resources import CoreUse

from engines import tasks
from keras_transformer.models.losses import LabelSmoothedCrossEntropy

Weights = Mapping[str, npt.NDArray[Any]]  # by the paths of `Transformer.weights_by_path`
Search = Callable[[tf.Tensor], tf.Tensor]


class SideBySide(abc.ABC):
    """A library's model and search. A subclass implements both.

    Args:
        settings: `batches`, the file that `kerashub.py` writes; `compile`, whether XLA compiles;
            `learning_rate`, `label_smoothing`, `pad_id`, `seed`.

    Attributes:
        settings: the settings.
        model: the model, whose inputs are `source_ids` and `target_ids`.
    """

    def __init__(self, settings: Mapping[str, Any]):
        self.settings = settings
        self.model: Any = None
        self._weights: Weights | None = None
        self._searches: dict[int, Search] = {}
        with np.load(settings["batches"]) as file:
            self._arrays = {name: file[name] for name in ("source_ids", "target_ids", "labels")}

    @abc.abstractmethod
    def new_model(self, weights: Weights | None) -> keras.Model:
        """Returns a new model with the given weights, or with random weights."""

    @abc.abstractmethod
    def weights(self) -> Weights:
        """Returns the weights of `model`."""

    @abc.abstractmethod
    def new_search(self, beam_size: int) -> Search:
        """Returns a graph function of ids int32 `[rows, length]`, for the present `model`.

        It returns the best outputs, int32 `[rows, steps]`.
        """

    def started(self) -> Started:
        """Makes a model, and returns the facts and the commands of the process."""
        self._make()
        facts = {"parameters": self.model.count_params()}
        commands = (self.save, self.load, self.logits, self.first_fit, self.fit, self.decode)
        return facts, {command.__name__: command for command in commands}

    def _make(self) -> None:
        self.model = None
        self._searches.clear()
        keras.backend.clear_session()
        gc.collect()
        keras.utils.set_random_seed(self.settings["seed"])
        self.model = self.new_model(self._weights)
        self.model.compile(
            keras.optimizers.Adam(self.settings["learning_rate"], 0.9, 0.98, epsilon=1e-9),
            loss=LabelSmoothedCrossEntropy(
                self.settings["label_smoothing"], self.settings["pad_id"]
            ),
            jit_compile=self.settings["compile"],
        )

    def save(self, path: str) -> Answer:
        """Writes the weights to a file."""
        np.savez(path, **self.weights())  # type: ignore[arg-type]
        return {}

    def load(self, path: str) -> Answer:
        """Makes a new model with the weights of a file."""
        with np.load(path) as file:
            self._weights = dict(file)
        self._make()
        return {}

    def logits(self, path: str) -> Answer:
        """Writes the logits of the first batch to a file, without dropout."""
        inputs = {name: self._arrays[name][0] for name in ("source_ids", "target_ids")}
        np.save(path, self.model(inputs, training=False))
        return {}

    def first_fit(self) -> Answer:
        """Times the first `fit` of a new model: tracing, compiling, and one step."""
        self._make()
        turn = self.fit(first=0, steps=1)
        return {**turn, "per_second": 1.0 / turn["seconds"]}

    def fit(self, first: int, steps: int) -> Answer:
        """Times `fit` on some of the batches, in real target tokens per second."""
        chosen = np.arange(first, first + steps) % len(self._arrays["labels"])
        source, target, labels = (array[chosen] for array in self._arrays.values())
        dataset = tf.data.Dataset.from_tensor_slices(
            ({"source_ids": source, "target_ids": target}, labels)
        )
        # The end of `fit` waits for the thread that tunes the dataset, which sleeps for up to 20 s.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = dataset.with_options(options)
        core_use, started = CoreUse(), time.perf_counter()
        history = self.model.fit(dataset, verbose=0)
        tokens = int((labels != self.settings["pad_id"]).sum())
        turn = tasks.turn(started, core_use, tokens)
        return {**turn, "loss": history.history["loss"][-1]}

    def decode(self, beam_size: int, rows: int, first: int, count: int) -> Answer:
        """Times the search for some of the sources, in sentences per second.

        Args:
            beam_size: 1 for greedy search.
            rows: sentences of a batch.
            first: number of the first batch.
            count: number of batches.
        """
        if beam_size not in self._searches:
            self._searches[beam_size] = self.new_search(beam_size)
        source = self._arrays["source_ids"].reshape(-1, self._arrays["source_ids"].shape[-1])
        chosen = np.arange(first * rows, (first + count) * rows) % len(source)
        batches = [tf.constant(ids) for ids in np.split(source[chosen], count)]
        core_use, started = CoreUse(), time.perf_counter()
        outputs = [self._searches[beam_size](ids).numpy() for ids in batches]
        turn = tasks.turn(started, core_use, rows * count)
        return {**turn, "outputs": np.concatenate(outputs).tolist()}
