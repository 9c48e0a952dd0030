"""A SavedModel, as any program with TensorFlow and tensorflow-text loads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  its operations
from protocol import Answer, Started

from engines import tasks


def start_up(settings: dict[str, Any]) -> Started:
    """Loads the model at `path`; the command `load_graph` loads it without its weights."""

    def load() -> Callable[[str], str]:
        model = tf.saved_model.load(settings["path"])

        def translate(sentence: str) -> str:
            outputs = model.signatures["serving_default"](text=tf.constant([sentence]))
            text: str = outputs["translations"][0, 0].numpy().decode()
            return text

        return translate

    def load_graph() -> Answer:
        started = time.monotonic()
        options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
        tf.saved_model.load(settings["path"], options=options)
        return {"graph_load_seconds": time.monotonic() - started}

    facts, _ = tasks.start_up(settings, load)
    return facts, {"load_graph": load_graph}
