"""TensorFlow loaded for a program: without its noise, and without looking for garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator


def load_tensorflow() -> None:
    """Loads TensorFlow and looks for devices, with the native log of both kept off the screen.

    On a machine without a GPU it says three times that there is none, before
    any log level counts. What it said is shown where loading fails.
    """
    if "tensorflow" in sys.modules:
        _load_quietly()
    else:
        with _no_garbage():
            _load_quietly()


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
