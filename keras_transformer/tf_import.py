"""Loads TensorFlow for a program: quietly, and without packages that programs do not use."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

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
    given = {name: os.environ[name] for name in _XLA_VARIABLES if os.environ.get(name)}
    _set_xla_flags(nvidia_gpus())
    # The libraries create half a million objects that live until the process ends. The garbage
    # collector should not examine them while they load, or later whenever a graph is traced.
    gc.disable()
    try:
        with _hidden(_UNUSED):
            _load_quietly(given)
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


def nvidia_gpus(driver: Path = Path("/proc/driver/nvidia"), devices: str = "/dev") -> str:
    """Returns the models of the NVIDIA cards and the version of their driver; "" without cards.

    TensorFlow reads its environment variables before it can tell.

    Args:
        driver: the folder of the driver.
        devices: the folder of device files. If it has cards that the driver's folder does not
            describe, as in some containers, `nvidia-smi` does.

    Example:
    >>> nvidia_gpus(Path("no_such_folder"), "no_such_folder")
    ''
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    with contextlib.suppress(OSError):
        version = (driver / "version").read_text().splitlines()[:1]
        cards = [path.read_text() for path in sorted(driver.glob("gpus/*/information"))]
        models = set(re.findall(r"^Model:\s*(.+?)\s*$", "\n".join(cards), re.MULTILINE))
        if models:
            return "\n".join([*sorted(models), *version])
    if not any(Path(devices).glob("nvidia[0-9]*")):
        return ""
    import subprocess  # late: the imports of a command come before it handles Ctrl-C

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "\n".join(sorted(set(done.stdout.split("\n")))).strip()


def _set_xla_flags(gpus: str) -> None:
    """On machines with GPUs, makes XLA compile with all cores and keep its programs on disk.

    Flags of the user stay, and override these.

    Args:
        gpus: the result of `nvidia_gpus`.
    """
    if not gpus:
        return
    flags = {
        "xla_gpu_enable_llvm_module_compilation_parallelism": "true",
        "xla_gpu_force_compilation_parallelism": str(len(os.sched_getaffinity(0))),
    }
    _add_flags("XLA_FLAGS", flags)
    folder = _program_cache(gpus)
    if folder is not None:
        _add_flags("TF_XLA_FLAGS", {"tf_xla_persistent_cache_directory": str(folder)})


def _add_flags(variable: str, flags: dict[str, str]) -> None:
    given = os.environ.get(variable, "").strip()
    if given and not given.startswith("-"):
        return  # the name of a file
    new = [f"--{name}={value}" for name, value in flags.items() if f"--{name}" not in given]
    os.environ[variable] = " ".join([*new, given]).strip()


def _program_cache(gpus: str) -> Path | None:
    """Returns the folder of XLA's programs for these cards, or None if it cannot be used."""
    import hashlib  # late, as above
    import importlib.metadata

    try:
        version = importlib.metadata.version("tensorflow")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        # XLA's own key has neither the card nor the flags.
        described = f"{gpus}\n{os.environ.get('XLA_FLAGS', '')}"
        key = hashlib.sha256(described.encode()).hexdigest()[:12]
        folder = cache / "keras_transformer" / "xla" / f"tensorflow-{version}-{key}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, importlib.metadata.PackageNotFoundError):
        return None
    # TensorFlow separates flags at spaces.
    return folder if os.access(folder, os.W_OK) and not re.search(r"\s", str(folder)) else None


def _load_quietly(xla_variables: Mapping[str, str] | None = None) -> None:
    """Loads TensorFlow, and checks `xla_variables`, variables of the user that may be wrong."""
    is_first = "tensorflow" not in sys.modules
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow as tf

            if is_first:  # later, a copy of the process would lack TensorFlow's threads
                _check_xla_flags(xla_variables or {})
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


def _check_xla_flags(given: Mapping[str, str]) -> None:
    """Raises an error for flags that would end the process, after trying them in a copy of it.

    Args:
        given: the variables of the user.
    """
    if not given:
        return
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(log.fileno(), 2)
                os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
                for name in _XLA_VARIABLES:  # without the cache of programs
                    os.environ[name] = given.get(name, "")
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
