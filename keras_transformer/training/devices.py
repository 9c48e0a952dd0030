"""Chooses the fastest precision, XLA mode and devices of a machine."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.framework import config as tf_config  # its `is_op_determinism_enabled`
from tensorflow.python.framework import ops  # and the counter of functions have no public names

from keras_transformer.config import TrainingConfig
from keras_transformer.console import warn
from keras_transformer.errors import InputError
from keras_transformer.tf_import import (
    nvidia_gpus,
    op_error_reason,
    program_cache_error,
    xla_problems,
)

log = logging.getLogger(__name__)


class Platform(NamedTuple):
    """The devices and the mode of training. `reasons` explains them to the user.

    Example:
    >>> platform = Platform(tf.distribute.get_strategy(), "bfloat16", False, ())
    >>> platform.policy().name
    'mixed_bfloat16'
    """

    strategy: tf.distribute.Strategy
    precision: str  # float32, bfloat16 or float16
    jit_compile: bool
    reasons: tuple[str, ...]

    def policy(self) -> keras.DTypePolicy:
        """The Keras dtype policy of the precision."""
        return keras.DTypePolicy(
            "float32" if self.precision == "float32" else f"mixed_{self.precision}"
        )


def use_logical_cpus(count: int) -> None:
    """Splits the CPU into `count` logical devices, as replicas for tests and trials.

    Raises:
        InputError: if TensorFlow has already started, or if `count` is below 1.

    Example:
    >>> use_logical_cpus(0)
    Traceback (most recent call last):
    keras_transformer.errors.InputError: The number of logical CPUs is 0, ...
    """
    if count < 1:
        raise InputError(f"The number of logical CPUs is {count}, but it must be at least 1.")
    [cpu] = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise InputError(
            f"The CPU cannot be split into {count} devices any more: {error}"
        ) from None


def uses_gpus(strategy: tf.distribute.Strategy) -> bool:
    """True if the replicas of a strategy are on GPUs.

    Example:
    >>> uses_gpus(tf.distribute.MirroredStrategy(["CPU:0"]))
    False
    """
    if isinstance(
        strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy
    ):
        return any("GPU" in device for device in strategy.extended.worker_devices)
    return bool(tf.config.list_logical_devices("GPU"))


_NUMBERS = 1_000_000


def renumber_functions() -> None:
    """Makes the names of functions that are traced next independent of those traced before.

    XLA finds a program in its cache on disk by the name of its function. The name ends with a
    number that counts all functions of the process, also those that restore a checkpoint. After
    this call, the numbers continue at the next million. In deterministic mode they continue half a
    million later, so that these runs do not load programs that were autotuned for other runs.

    Example:
    >>> renumber_functions()
    >>> first = ops.uid()
    >>> renumber_functions()
    >>> ops.uid() - first
    1000000
    """
    next_number = _NUMBERS // 2 if tf_config.is_op_determinism_enabled() else 0
    last = ops.uid()
    for _ in range((next_number - last) % _NUMBERS):
        ops.uid()


# More threads would delay the first program, because each compilation already uses several cores.
_MOST_THREADS = 4


def compilation_threads(num_replicas: int) -> int:
    """Returns how many batch shapes can be compiled at a time, while steps are taken.

    A compilation occupies one of TensorFlow's inter-op threads per replica. One thread is left for
    the steps.

    Args:
        num_replicas: number of replicas that compile each shape.

    Example:
    >>> compilation_threads(num_replicas=1_000_000)
    0
    """
    inter_op_threads = (
        tf.config.threading.get_inter_op_parallelism_threads()
        or int(os.environ.get("TF_NUM_INTEROP_THREADS") or 0)
        or len(os.sched_getaffinity(0))
    )
    return max(min(_MOST_THREADS, (inter_op_threads - 1) // num_replicas), 0)


# Steps per batch shape from which compilation pays off. On a CPU with 2 cores, XLA takes about 10 s
# for a `tiny` model. It saves about 0.2 s per step.
_STEPS_TO_PAY_FOR_XLA = 64


def choose_platform(
    config: TrainingConfig,
    num_shapes: int,
    device: str = "auto",
    strategy: tf.distribute.Strategy | None = None,
) -> Platform:
    """Chooses devices, precision and XLA for settings that are `auto`.

    In deterministic mode, it also makes TensorFlow use deterministic operations and full float32
    products in the whole process.

    Args:
        config: configuration of the training.
        num_shapes: number of batch shapes. XLA compiles each one.
        device: "cpu", "gpu", or "auto" for GPUs if there are any.
        strategy: strategy of several workers, or None for one worker.

    Raises:
        InputError: if the machine lacks a device of this kind, or if `config.jit_compile` is
            "true", but XLA does not work.

    Example:
    >>> config = TrainingConfig(mixed_precision="float32", jit_compile="false")
    >>> choose_platform(config, num_shapes=1, device="cpu").policy().name
    'float32'
    """
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(False)
    devices, gpus = _devices(device)
    if strategy is not None:  # TensorFlow lists the devices of all workers
        devices = list(strategy.extended.worker_devices)
    kind = f"{len(devices)} {'GPU' if gpus else 'CPU device'}{'s' if len(devices) > 1 else ''}"
    if strategy is None:
        strategy = _MirroredStrategy([each.name for each in devices])
        reasons = [f"devices: {kind}, one replica each, under MirroredStrategy"]
    else:
        replicas = strategy.num_replicas_in_sync
        reasons = [f"devices: {replicas} replicas, one a device of each worker; here {kind}"]

    precision, why = str(config.mixed_precision), "as configured"
    if precision == "auto":
        precision, why = _fastest_gpu_precision() if gpus else _fastest_cpu_precision()
    reasons.append(f"precision: {precision} ({why})")
    jit_compile, why = config.jit_compile == "true", "as configured"
    if config.jit_compile == "auto":
        jit_compile, why = _xla_pays(gpus, precision, config.max_steps, num_shapes * len(devices))
    problem = _xla_problem(getattr(devices[0], "name", devices[0])) if jit_compile else ""
    if problem:
        sentence = f"XLA does not work on this machine ({problem})."
        if config.jit_compile == "true":
            raise InputError(
                f"{sentence} docs/gpu.md lists what to check. Or train with --jit_compile=false."
            )
        warn(
            f"{sentence} Training goes on without it, which is slower. docs/gpu.md lists what to "
            "check. --jit_compile=false hides this warning."
        )
        jit_compile, why = False, "it does not work on this machine"
    reasons.append(f"XLA: {'on' if jit_compile else 'off'} ({why})")
    if jit_compile and gpus:
        in_background = compilation_threads(strategy.num_replicas_in_sync) > 0
        how = "in the background" if in_background else "each at its first step"
        reasons.append(f"{num_shapes} batch shapes are compiled {how}")
        for text in xla_problems:
            warn(text)
    if config.deterministic:
        reasons.append("deterministic: the same bits every time, on the same devices")
    return Platform(strategy, precision, jit_compile, tuple(reasons))


_keys = itertools.count(1000, 1000)


class _MirroredStrategy(tf.distribute.MirroredStrategy):
    """A strategy whose sums over replicas have separate keys.

    By default, all strategies of a process share their keys. Then the second model of a process
    fails, because its sums have other shapes.
    """

    def __init__(self, devices: Sequence[str]):
        self._collective_key_base = next(_keys)
        super().__init__(devices)


def _devices(kind: str) -> tuple[list[tf.config.LogicalDevice], bool]:
    """Returns the devices of a kind, and True if they are GPUs."""
    if kind not in ("auto", "cpu", "gpu"):
        raise InputError(f"The device is {kind!r}. Choose auto, cpu or gpu.")
    gpus = [] if kind == "cpu" else tf.config.list_logical_devices("GPU")
    if kind == "cpu" or gpus:
        return gpus or tf.config.list_logical_devices("CPU"), bool(gpus)
    card = (nvidia_gpus().splitlines() or [""])[0]
    found = (
        f"This machine has {card}, but TensorFlow does not find it"
        if card
        else "Neither TensorFlow nor the NVIDIA driver finds a GPU on this machine"
    )
    check = (
        "docs/gpu.md lists what to check, beginning with: pip install 'tensorflow[and-cuda]'."
        if card
        else "docs/gpu.md lists what to check."
    )
    if kind == "gpu":
        raise InputError(f"{found}. {check} --device=cpu trains without a GPU.")
    if card:
        warn(f"{found}, so the CPU trains. {check} --device=cpu hides this warning.")
    return tf.config.list_logical_devices("CPU"), False


def _xla_problem(device: str) -> str:
    """Returns why XLA cannot compile for a device, or "" if it can.

    Raises:
        InputError: if the folder of XLA's programs cannot be used.
    """

    def sum_of_powers(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.exp(x))  # on a GPU, this needs libdevice

    try:
        with tf.device(device):
            tf.function(sum_of_powers, jit_compile=True, autograph=False)(tf.ones([8])).numpy()
    except tf.errors.OpError as error:
        if (cache_error := program_cache_error(error.message)) is not None:
            raise cache_error from error
        return op_error_reason(error.message)
    return ""


def _xla_pays(gpu: bool, precision: str, max_steps: int, num_programs: int) -> tuple[bool, str]:
    if gpu:
        return True, "it fuses the small operations, which a GPU waits for"
    if precision != "float32":
        return False, "low-precision matrix products are slow on CPUs"
    if max_steps < _STEPS_TO_PAY_FOR_XLA * num_programs:
        return False, f"{max_steps} steps do not pay for compiling {num_programs} programs"
    return True, f"it fuses the small operations; compiling {num_programs} programs takes minutes"


def _fastest_gpu_precision() -> tuple[str, str]:
    capabilities = [
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    if min(capabilities) >= (8, 0):
        return "bfloat16", "the GPUs multiply bfloat16 in their tensor cores"
    return "float32", "a GPU here is older than compute capability 8.0, without bfloat16"


def _fastest_cpu_precision() -> tuple[str, str]:
    try:
        cpu_flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        cpu_flags = []
    if "avx512_bf16" in cpu_flags or "amx_bf16" in cpu_flags:
        return "bfloat16", "the CPU multiplies bfloat16 natively"
    return "float32", "the CPU does not support bfloat16 products"
