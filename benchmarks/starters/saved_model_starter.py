"""This package's SavedModel, as any program with TensorFlow and tensorflow-text loads it."""

from __future__ import annotations

import time

from starters import protocol


def load(settings: protocol.Settings) -> protocol.Translate:
    """Returns `serving_default`, text in and text out."""
    import tensorflow as tf

    model = tf.saved_model.load(settings["path"])

    def translate(sentence: str) -> str:
        outputs = model.signatures["serving_default"](text=tf.constant([sentence]))
        text: str = outputs["translations"][0, 0].numpy().decode()
        return text

    return translate


def load_again(settings: protocol.Settings) -> dict[str, float]:
    """Returns what a load without the values of the variables takes: the graph alone."""
    import tensorflow as tf

    begun = time.monotonic()
    options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
    tf.saved_model.load(settings["path"], options=options)
    return {"graph_load_seconds": time.monotonic() - begun}


if __name__ == "__main__":
    protocol.start(["tensorflow", "tensorflow_text"], load, load_again)
