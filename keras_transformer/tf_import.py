"""Loads TensorFlow for a program: quietly, and without packages that programs do not use."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from keras_transformer.errors import InputError

# TensorFlow and Keras import these if they are installed: to convert from JAX, to plot, and to
# train on data frames. That would be a third of the loading time.
_UNUSED = ("jax", "matplotlib", "pandas")

# Settings for a user's other programs. They select another Keras, limit its training, turn off
# eager execution, or name a variant of protobuf that is not installed.
_FOREIGN_VARIABLES = (
    "KERAS_MAX_EPOCHS",
    "KERAS_MAX_STEPS_PER_EPOCH",
    "KERAS_NNX_ENABLED",
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
    "TF2_BEHAVIOR",
    "TF_USE_LEGACY_KERAS",
)
# TensorFlow ends the process if one of these has an unknown flag.
_XLA_VARIABLES = ("TF_XLA_FLAGS", "XLA_FLAGS")


def set_variables() -> None:
    """Sets environment variables so that Keras and TensorFlow ignore the user's other settings.

    The user's `keras.json` is ignored, too. Call it before they are imported.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["KERAS_HOME"] = os.devnull  # keras.json may set another precision and layout
    for name in _FOREIGN_VARIABLES:
        os.environ.pop(name, None)


def load_tensorflow() -> None:
    """Loads TensorFlow and Keras, and looks for devices, without native log messages.

    Without a GPU TensorFlow reports three times that there is none, before a log level has an
    effect. If loading fails, all messages are shown. Keras uses TensorFlow and its own defaults,
    regardless of what the user's environment selects.

    Raises:
        InputError: if TensorFlow does not accept `XLA_FLAGS` or `TF_XLA_FLAGS`.
    """
    if "tensorflow" in sys.modules:
        _load_quietly()
        return
    set_variables()
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
    is_first = "tensorflow" not in sys.modules
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow as tf

            if is_first:  # later, a copy of the process would lack TensorFlow's threads
                _check_xla_flags()
            tf.config.list_physical_devices()
        except InputError:
            raise
        except BaseException:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _check_xla_flags() -> None:
    """Raises an error for flags that would end the process, after trying them in a copy of it."""
    given = {name: os.environ[name] for name in _XLA_VARIABLES if os.environ.get(name)}
    if not given:
        return
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(log.fileno(), 2)
                os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
                import tensorflow as tf

                tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1))  # reads both
            finally:
                os._exit(0)  # also after an exception: it has another reason
        if os.waitpid(child, 0)[1] == 0:
            return
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    found = re.search(r"(Unknown flag in .*|Could not open file [^(]*|Couldn't interpret .*)", text)
    reason = f" ({found[1].strip(' .')})" if found else ""
    names = " and ".join(f"{name}={value}" for name, value in given.items())
    raise InputError(f"TensorFlow does not accept {names}{reason}. Correct it, or unset it.")
