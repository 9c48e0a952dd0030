"""Graph functions of token ids, and their profiles, for the engines that use TensorFlow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sentence_batches
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def of_ids(search: Callable[[tf.Tensor], Any], compiled: bool) -> Callable[..., Any]:
    """Returns a graph function of ids int32 `[rows, length]`, compiled for each shape if asked."""
    any_shape = [tf.TensorSpec([None, None], tf.int32)]
    signature = None if compiled else any_shape
    return tf.function(search, input_signature=signature, autograph=False, jit_compile=compiled)


def input_of(
    compiled: bool, pad_id: int
) -> tuple[Callable[[sentence_batches.Ids], tf.Tensor], Callable[[tf.Tensor], Any] | None]:
    """Returns the functions `prepare` and `shape_of` of `tasks.decode_ids`."""

    def prepare(ids: sentence_batches.Ids) -> tf.Tensor:
        return tf.constant(sentence_batches.widen(ids, pad_id) if compiled else ids)

    return prepare, (lambda source_ids: tuple(source_ids.shape)) if compiled else None


def profiled_operations(run: Callable[[], Any]) -> Iterator[tuple[str, str, float]]:
    """Yields name, kind and milliseconds of each operation that the graph executor runs."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        [file] = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                full_name = plane.event_metadata[event.metadata_id].name
                name, _, kind = full_name.rpartition(":")
                # Other events are those of the executor, and the ends of XLA's kernels ("end: x").
                others = ("EagerLocalExecute", "end: ")
                if name and "::" not in full_name and not full_name.startswith(others):
                    yield name, kind, event.duration_ps / 1e9
