"""Loads TensorFlow for a program: quietly, and without packages that programs do not use."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from keras_transformer.errors import InputError, one_line

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
_CACHE_FLAG = "tf_xla_persistent_cache_directory"
# It depends on the number of cores, and it does not change programs.
_THREADS_FLAG = "xla_gpu_force_compilation_parallelism"
# The programs of a run with 16 batch shapes need a few hundred MB.
_LEAST_FREE_BYTES = 2**30

# Problems with the settings of XLA that `load_tensorflow` found, as sentences. They matter only to
# commands that compile with XLA, which print them as warnings.
xla_problems: list[str] = []


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
    gpus = nvidia_gpus()
    # The libraries create half a million objects that live until the process ends. The garbage
    # collector should not examine them while they load, or later whenever a graph is traced.
    gc.disable()
    try:
        with _hidden(_UNUSED):
            _load_quietly(gpus)
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


def program_cache() -> str:
    """Returns the folder in which XLA keeps its programs, or "" if it does not keep them.

    Example:
    >>> bool(program_cache())  # this process has no GPU
    False
    """
    found = re.search(rf"--{_CACHE_FLAG}=(\S+)", os.environ.get("TF_XLA_FLAGS", ""))
    return found[1] if found else ""


def program_cache_error(message: str) -> InputError | None:
    """Returns an error about the folder of XLA's programs, or None for messages about others.

    Args:
        message: the message of an error that TensorFlow raised while XLA compiled.

    Example:
    >>> print(program_cache_error("a GPU is full"))
    None
    """
    folder, reason = program_cache(), op_error_reason(message)
    # Errors about the content of a file do not name it.
    if not folder or not (folder in reason or re.search("[Ss]erialized|Read less bytes", reason)):
        return None
    if is_disk_full(message):
        return InputError(
            f"The disk of {folder}, in which XLA keeps its programs, is full ({reason}). Delete "
            "the folder, or free some space."
        )
    if folder in reason and f"{folder}/xla_compile_cache" not in reason:
        return InputError(
            f"The folder {folder}, in which XLA keeps its programs, cannot be used ({reason}). "
            f"Set --{_CACHE_FLAG} in TF_XLA_FLAGS to another folder."
        )
    return InputError(
        f"The folder {folder}, in which XLA keeps its programs, is damaged ({reason}). Delete it, "
        "and run the same command again."
    )


def op_error_reason(message: str) -> str:
    r"""Returns the reason in the message of a TensorFlow error, without stack traces and nodes.

    Example:
    >>> op_error_reason(
    ...     "Graph execution error:\n\nDetected at node add:\n  File ...\n\nout of memory\n"
    ... )
    'out of memory'
    """
    skipped = r"\s|Graph execution error|Detected at node|\d+ root error|$"
    for line in message.splitlines():
        several = re.match(r"\s+\(0\) (.*)", line)  # several replicas failed
        if several or not re.match(skipped, line):
            line = several[1] if several else line
            return one_line(re.sub(r"\[Op:.*", "", line)).strip(" .")
    return one_line(message)


def is_disk_full(message: str) -> bool:
    """True if the message of an error says that a disk is full or a quota is used up.

    Example:
    >>> is_disk_full("programs/1.tmp; No space left on device")
    True
    """
    return any(os.strerror(code) in message for code in (errno.ENOSPC, errno.EDQUOT))


def _configure_xla(gpus: str) -> None:
    """On machines with GPUs, makes XLA compile with all cores and keep its programs on disk.

    TensorFlow reads the variables when it looks for devices. Flags of the user stay, and override
    these. Flags that this version of TensorFlow does not know are left out.

    Args:
        gpus: the result of `nvidia_gpus`.

    Raises:
        InputError: if TensorFlow does not accept the flags of the user.
    """
    user = {name: os.environ.get(name, "") for name in _XLA_VARIABLES}
    # An empty folder name checks the flag, but writes no programs.
    flags = [
        ("XLA_FLAGS", "xla_gpu_enable_llvm_module_compilation_parallelism", "true"),
        ("XLA_FLAGS", _THREADS_FLAG, str(len(os.sched_getaffinity(0)))),
        ("TF_XLA_FLAGS", _CACHE_FLAG, ""),
    ]
    flags = [flag for flag in flags if gpus and _can_add(*flag[:2])]
    if (any(user.values()) or flags) and _rejection(user, flags) is not None:
        reason = _rejection(user) if any(user.values()) else None
        if reason is not None:
            given = " and ".join(f"{name}={value}" for name, value in user.items() if value)
            raise InputError(
                f"TensorFlow does not accept {given}{reason}. Correct it, or unset it."
            )
        for flag in list(flags):
            reason = _rejection(user, [flag])
            if reason is not None:
                flags.remove(flag)
                xla_problems.append(
                    f"TensorFlow does not accept --{flag[1]}{reason}, so XLA compiles without it."
                )
    for variable, name, value in flags:
        if name == _CACHE_FLAG:  # the last one, because the other flags are part of its name
            value = _make_program_cache(gpus)
        if value:
            os.environ[variable] = f"--{name}={value} {os.environ.get(variable, '')}".strip()


def _can_add(variable: str, name: str) -> bool:
    given = os.environ.get(variable, "").strip()
    is_file = bool(given) and not given.startswith("-")
    return not is_file and f"--{name}" not in given


def _make_program_cache(gpus: str) -> str:
    """Creates the folder of XLA's programs for these cards; "" if it cannot be used."""
    import hashlib  # late, as above
    import importlib.metadata
    import shutil

    # XLA's own key has neither the card nor the flags.
    flags = [
        flag for flag in os.environ.get("XLA_FLAGS", "").split() if f"--{_THREADS_FLAG}" not in flag
    ]
    key = hashlib.sha256("\n".join([gpus, *flags]).encode()).hexdigest()[:12]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        version = importlib.metadata.version("tensorflow")
        folder = cache / "keras_transformer" / "xla" / f"tensorflow-{version}-{key}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
        free = shutil.disk_usage(folder).free
    except (OSError, RuntimeError, importlib.metadata.PackageNotFoundError) as error:
        problem = f"{one_line(error)}. Set XDG_CACHE_HOME to a folder that can be written"
    else:
        if free < _LEAST_FREE_BYTES:
            problem = f"{folder} has {free / 1e9:.1f} GB of free space. Free at least 1.1 GB"
        elif re.search(r"\s", str(folder)):  # TensorFlow separates flags at spaces
            problem = f"{folder} contains a space. Set XDG_CACHE_HOME to another folder"
        else:
            return str(folder)
    xla_problems.append(f"XLA cannot keep its programs, so the next run compiles again: {problem}.")
    return ""


def _load_quietly(gpus: str = "") -> None:
    """Loads TensorFlow and looks for devices. `gpus` is the result of `nvidia_gpus`."""
    is_first = "tensorflow" not in sys.modules
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow as tf

            if is_first:  # later, a copy of the process would lack TensorFlow's threads
                _configure_xla(gpus)
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


def _rejection(user: Mapping[str, str], flags: Sequence[tuple[str, str, str]] = ()) -> str | None:
    """Returns why TensorFlow would end the process, or None. A copy of the process tries it.

    Args:
        user: the values of `_XLA_VARIABLES`.
        flags: further flags: variable, name and value.
    """
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(log.fileno(), 2)
                os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
                os.environ.update(user)
                for variable, name, value in flags:
                    os.environ[variable] += f" --{name}={value}"
                import tensorflow as tf

                tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1))  # reads both
            finally:
                os._exit(0)  # also after an exception: it has another reason
        if os.waitpid(child, 0)[1] == 0:
            return None
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    found = re.search(r"(Unknown flag in .*|Could not open file [^(]*|Couldn't interpret .*)", text)
    return f" ({found[1].strip(' .')})" if found else ""
