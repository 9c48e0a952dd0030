"""Loads TensorFlow for a program: quietly, and without packages that programs do not use."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator

# TensorFlow and Keras import these if they are installed: to convert from JAX, to plot, and to
# train on data frames. That would be a third of the loading time.
_UNUSED = ("jax", "matplotlib", "pandas")


def load_tensorflow() -> None:
    """Loads TensorFlow and Keras, and looks for devices, without native log messages.

    Without a GPU TensorFlow reports three times that there is none, before a log level has an
    effect. If loading fails, all messages are shown. Keras uses TensorFlow, regardless of the
    backend that the user's environment selects.
    """
    if "tensorflow" in sys.modules:
        _load_quietly()
        return
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # The libraries create half a million objects that live until the process ends. The garbage
    # collector should not examine them while they load, or later whenever a graph is traced.
    gc.disable()
    try:
        with _hidden(_UNUSED):
            _load_quietly()
    finally:
        gc.enable()
    gc.freeze()


@contextlib.contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Makes imports of these packages fail inside the block, unless they are already loaded."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # how Python marks absence
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def _load_quietly() -> None:
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
