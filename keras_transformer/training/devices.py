"""Chooses the fastest precision, XLA mode and devices of a machine."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.framework import config as tf_config  # its `is_op_determinism_enabled`
from tensorflow.python.framework import ops  # and the counter of functions have no public names

from keras_transformer.config import TrainingConfig
from keras_transformer.console import warn
from keras_transformer.errors import InputError, require
from keras_transformer.training.progress import StopRequest


class Platform(NamedTuple):
    """The devices and the mode of training. `reasons` explains them to the user."""

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
    """Splits the CPU into `count` logical devices, as replicas for tests and trials."""
    require(count >= 1, f"The number of logical CPUs is {count}, but it must be at least 1.")
    [cpu] = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, parts)


def uses_gpus(strategy: tf.distribute.Strategy) -> bool:
    """True if the replicas of a strategy are on GPUs."""
    if isinstance(
        strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy
    ):
        return any("GPU" in device for device in strategy.extended.worker_devices)
    return bool(tf.config.list_logical_devices("GPU"))


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

    XLA compiles each of the `num_shapes` batch shapes. One worker has no `strategy` yet.
    """
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(False)
    names, gpus = _devices(device)
    if strategy is None:
        strategy = mirrored_strategy(names)
    else:
        names = list(strategy.extended.worker_devices)  # other workers have other devices
    kind = f"{len(names)} {'GPU' if gpus else 'CPU device'}{'s' if len(names) > 1 else ''}"
    reasons = [f"devices: {kind} (replicas in all workers: {strategy.num_replicas_in_sync})"]

    precision, why = str(config.mixed_precision), "as configured"
    if precision == "auto":
        precision, why = _fastest_precision(gpus)
    reasons.append(f"precision: {precision} ({why})")
    jit_compile, why = config.jit_compile == "true", "as configured"
    if config.jit_compile == "auto":
        jit_compile, why = _xla_pays(gpus, precision, config.max_steps, num_shapes * len(names))
    reasons.append(f"XLA: {'on' if jit_compile else 'off'} ({why})")
    if config.deterministic:
        reasons.append("deterministic: the same bits every time, on the same devices")
    return Platform(strategy, precision, jit_compile, tuple(reasons))


_key_bases = itertools.count(1000, 1000)


def mirrored_strategy(devices: Sequence[str]) -> tf.distribute.MirroredStrategy:
    """Returns a strategy whose sums over replicas have separate keys.

    By default, all strategies of a process share their keys. Then the second model of a process
    fails, because its sums have other shapes.
    """
    kind = tf.distribute.MirroredStrategy  # reads the first key from its class
    kind = type(kind.__name__, (kind,), {"_collective_key_base": next(_key_bases)})
    return kind(devices)


def _devices(kind: str) -> tuple[list[str], bool]:
    """Returns the names of the devices of a kind, and True if they are GPUs."""
    if kind not in ("auto", "cpu", "gpu"):
        raise InputError(f"The device is {kind!r}. Choose auto, cpu or gpu.")
    gpus = [] if kind == "cpu" else tf.config.list_logical_devices("GPU")
    if gpus:
        return [gpu.name for gpu in gpus], True
    has_driver = Path("/proc/driver/nvidia/version").exists()
    if kind == "gpu":
        raise InputError(
            "TensorFlow does not find a GPU. docs/gpu.md lists what to check, beginning with: pip "
            "install 'tensorflow[and-cuda]'. Choose device=cpu to train without a GPU."
        )
    if kind == "auto" and has_driver and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        warn(
            "This machine has an NVIDIA driver, but TensorFlow does not find a GPU, so the CPU "
            "trains. docs/gpu.md lists what to check. Choose device=cpu to hide this."
        )
    return [cpu.name for cpu in tf.config.list_logical_devices("CPU")], False


def _xla_pays(gpu: bool, precision: str, max_steps: int, num_programs: int) -> tuple[bool, str]:
    if not gpu and precision != "float32":
        return False, "low-precision matrix products are slow on CPUs"
    if not gpu and max_steps < _STEPS_TO_PAY_FOR_XLA * num_programs:
        return False, f"{max_steps} steps do not pay for compiling {num_programs} programs"
    return True, f"it fuses the small operations; compiling {num_programs} programs takes minutes"


def _fastest_precision(gpu: bool) -> tuple[str, str]:
    if gpu:
        capabilities = [
            tf.config.experimental.get_device_details(device).get("compute_capability", (0, 0))
            for device in tf.config.list_physical_devices("GPU")
        ]
        if min(capabilities) >= (8, 0):
            return "bfloat16", "the GPUs multiply bfloat16 in their tensor cores"
        return "float32", "a GPU here is older than compute capability 8.0, without bfloat16"
    file = Path("/proc/cpuinfo")
    cpu_flags = file.read_text().split() if file.exists() else []
    if "avx512_bf16" in cpu_flags or "amx_bf16" in cpu_flags:
        return "bfloat16", "the CPU multiplies bfloat16 natively"
    return "float32", "the CPU does not support bfloat16 products"


# Programs of XLA.


def make_xla_cache_names_reproducible() -> None:
    """Makes the names of functions that are traced next independent of those traced before.

    XLA finds a program on disk by the name of its function, which ends with a number that counts
    all functions of the process. After this call, the numbers continue at the next million, or half
    a million later in deterministic mode, whose programs are not autotuned like those of others.
    """
    million = 1_000_000
    first = million // 2 if tf_config.is_op_determinism_enabled() else 0
    for _ in range((first - ops.uid()) % million):
        ops.uid()


def replica_function(
    function: Callable[..., Any],
    variables: Callable[[], Iterable[keras.Variable]],
    jit_compile: bool | None = None,
) -> Callable[..., Any]:
    """Returns a `tf.function` that is traced in the first replica, and runs in all of them.

    `tf.function` would trace it again for each replica, and XLA would compile a program for each.
    The function takes nested tensors. It must not depend on the replica, except by its arguments
    and by the values of variables.
    """
    traced = tf.function(function, jit_compile=jit_compile, autograph=False)
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return traced
    traces: dict[tuple[tf.TensorSpec, ...], Any] = {}

    def handle(variable: keras.Variable) -> tf.Tensor:
        return variable.value.handle  # a replica gets the handle of its copy

    def call(*arguments: Any) -> Any:
        tensors = map(tf.convert_to_tensor, tf.nest.flatten(arguments))
        key = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in traces:
            traces[key] = traced.get_concrete_function(*arguments)
            captures = traces[key].captured_inputs
            own = {id(handle(variable)): variable for variable in variables()}
            if all(id(tensor) in own or _is_constant(tensor) for tensor in captures):
                traces[key].set_external_captures([
                    functools.partial(handle, own[id(tensor)]) if id(tensor) in own else tensor
                    for tensor in captures
                ])  # fmt: skip
            else:  # a variable that only one replica has, or a tensor of the calling graph
                traces[key] = traced
        return traces[key](*arguments)

    return call


def _is_constant(tensor: tf.Tensor) -> bool:
    return tensor.dtype != tf.resource and not tf.is_symbolic_tensor(tensor)


# Errors of TensorFlow.


@contextlib.contextmanager
def explained_errors(config: TrainingConfig, stop: StopRequest) -> Iterator[None]:
    """Tells the user what to do about errors of TensorFlow in training."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        if stop.interrupted:  # another worker stopped before this one
            raise KeyboardInterrupt from None
        raise
    except tf.errors.OpError as error:
        if any(os.strerror(code) in error.message for code in (errno.ENOSPC, errno.EDQUOT)):
            raise InputError(
                "The disk is full. Free some space, and run the same command again."
            ) from error
        if isinstance(error, tf.errors.ResourceExhaustedError):
            raise InputError(
                f"A batch of {config.batch_tokens:,} tokens in {config.num_microbatches} "
                "microbatches does not fit into memory. Raise training.num_microbatches, or lower "
                "training.batch_tokens."
            ) from error
        raise
