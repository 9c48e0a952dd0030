"""Loads TensorFlow quietly, whatever the user has set for other programs that use Keras."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import zlib
from pathlib import Path

from keras_transformer.console import without_native_log
from keras_transformer.runs.machine import available_cores

_DRIVER = Path("/proc/driver/nvidia")


def set_variables() -> None:
    """Selects TensorFlow and the defaults of Keras. Call it before either of them is imported."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["KERAS_HOME"] = os.devnull  # keras.json may set another precision and layout
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    set_limits()


def set_limits() -> None:
    """Sets the log level and the limits of this machine, except those that the user has set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    cores = available_cores()
    if cores < len(os.sched_getaffinity(0)):  # TensorFlow does not know the quotas of containers
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores))
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, cores)))
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # a read-only container; TensorFlow's imports need a folder
        tempfile.tempdir = "/tmp"


def first_import() -> contextlib.AbstractContextManager[None]:
    """Returns a block in which the first import of TensorFlow is quiet and knows the limits."""
    if "tensorflow" in sys.modules:
        return contextlib.nullcontext()
    set_limits()
    # TensorFlow ends the process, with a message, if it does not know a flag.
    return contextlib.nullcontext() if "TF_XLA_FLAGS" in os.environ else without_native_log()


def load_tensorflow() -> None:
    """Loads TensorFlow and Keras, and looks for devices, without native log messages.

    TensorFlow reports several times that there is no GPU, before a log level has an effect. It also
    creates half a million objects that live until the process ends. Without them in its lists, the
    garbage collector saves 2 seconds, most of them at the end.
    """
    set_variables()
    gc.disable()
    try:
        with first_import():
            import tensorflow

            if "TF_XLA_FLAGS" not in os.environ:
                _keep_programs_of_xla(tensorflow.__version__)
            tensorflow.config.list_physical_devices()
    finally:
        gc.enable()
    gc.freeze()


def describe_cards() -> list[str]:
    """Returns the kinds of NVIDIA GPUs and the driver of this machine; [] without GPUs."""
    files = [*_DRIVER.glob("gpus/*/information"), *_DRIVER.glob("version")]
    lines = {line for file in files for line in file.read_text().splitlines()}
    return sorted(line for line in lines if line.startswith(("Model:", "NVRM")))


def _keep_programs_of_xla(version: str) -> None:
    """On machines with NVIDIA GPUs, lets XLA keep its programs on disk, because they take minutes.

    XLA identifies a program without the card and the driver, so these are part of the folder.
    """
    cards = describe_cards()
    if not cards or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = f"{version}-{zlib.crc32(repr(cards).encode()):08x}"
    folder = cache / "keras_transformer" / "xla" / key
    with contextlib.suppress(OSError):  # without the folder, each process compiles
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={folder}"
