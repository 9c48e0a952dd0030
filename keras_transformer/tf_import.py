"""TensorFlow loaded for a program: without noise, what no program uses, and looking for garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator

# What TensorFlow and Keras import where it is installed, for what no program does: converting from
# JAX, drawing with Keras, training on data frames. A third of the time that loading takes.
_UNUSED = ("jax", "matplotlib", "pandas")


def load_tensorflow() -> None:
    """Loads TensorFlow and looks for devices, with the native log of both kept off the screen.

    On a machine without a GPU it says three times that there is none, before
    any log level counts. What it said is shown where loading fails. Keras is loaded
    with it, on TensorFlow, whatever backend a user's environment names.
    """
    if "tensorflow" in sys.modules:
        _load_quietly()
    else:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        with _no_garbage(), _hidden(_UNUSED):
            _load_quietly()


@contextlib.contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Has the block's imports find no such packages, except for what is loaded already."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # as Python itself marks absence
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Spares the collector what the block makes: libraries, which stay to the process's end.

    Else it looks through their half a million objects again and again, as they are made and
    whenever a graph is traced.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()


def _load_quietly() -> None:
    with tempfile.TemporaryFile() as said:
        screen = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            said.seek(0)
            os.write(screen, said.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)
