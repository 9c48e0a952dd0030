"""The memory of a layer's passes, each layer in a process of its own.

TensorFlow's allocator on a CPU does not count tensors below 256 KB, of which a recurrent layer
keeps thousands; the resident memory of a process counts everything.
"""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from complexity import measuring
from complexity.layers import MAKERS, Sizes

_MMAP_THRESHOLD = -3  # mallopt's name of it


def peaks_mb(name: str, sizes: Sizes, batch: int, threads: int) -> dict[str, float]:
    """Returns the most resident memory that each pass takes beyond what was there before.

    What was there are TensorFlow, the layer and its inputs; and a pass at a few positions has
    started threads and loaded kernels. Results count. Linux only.

    Args:
        name: of the kind of layer.
        sizes: its sizes.
        batch: number of sequences.
        threads: that an operation may use.

    Raises:
        RuntimeError: if the process ended without an answer, as for want of memory.
    """
    # Each is forked from one that has imported TensorFlow, and not used it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["keras_transformer.layers", "tensorflow"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, name, sizes, batch, threads))
    process.start()
    sender.close()
    try:
        peaks: dict[str, float] = receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measured {name} at {sizes} has ended") from None
    finally:
        process.join()
    return peaks


def _measure(sender: Any, name: str, sizes: Sizes, batch: int, threads: int) -> None:
    """Sends what `peaks_mb` returns."""
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"  # its own keeps what it once had
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # What several operations take at once would depend on chance.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    shape = (batch, sizes.n, sizes.d)
    passes = measuring.trace(MAKERS[name](sizes), shape, any_length=True)
    # Of more than one block, where it is restricted.
    few = measuring.random_tensor((batch, 32 + 2 * sizes.window, sizes.d))
    for call in dataclasses.replace(passes, inputs=few, gradient=few).calls().values():
        call()
    c_library = ctypes.CDLL(None)
    c_library.mallopt(_MMAP_THRESHOLD, 2**16)  # what is freed is given back at once
    peaks = {}
    for pass_, call in passes.calls().items():
        c_library.malloc_trim(0)  # or what is free would be used without being counted
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
        before = _resident_mb("VmRSS")
        call()
        peaks[pass_] = round(_resident_mb("VmHWM") - before, 2)
    sender.send(peaks)


def _resident_mb(field: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in status if line.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024
