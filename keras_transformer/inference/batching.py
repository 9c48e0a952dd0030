"""Lines in batches: grouped by length, and computed on all cores at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from keras_transformer.console import progress_bar
from keras_transformer.runs.machine import available_cores

# The memory of the search's cache grows with both limits.
MAX_BATCH_LINES = 64
_MAX_BATCH_BYTES = 16_384  # after padding to the longest line

_Result = TypeVar("_Result")


def use_cores_for_batches(lines: int) -> None:
    """Configures TensorFlow to compute one batch per CPU core.

    Most operations of a search are too small to be shared between cores. With fewer `lines`
    than cores, the remaining cores share operations.

    Call this before TensorFlow starts. Later calls, or those with a GPU, change nothing.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    with contextlib.suppress(RuntimeError):  # TensorFlow has started with its threads
        at_once = max(1, min(lines, available_cores()))
        tf.config.threading.set_intra_op_parallelism_threads(available_cores() // at_once)
        tf.config.threading.set_inter_op_parallelism_threads(at_once)


def concurrent_batches() -> int:
    """Returns how many batches `map_batches` computes at once (see `use_cores_for_batches`)."""
    cores_per_batch = tf.config.threading.get_intra_op_parallelism_threads()
    return max(1, available_cores() // cores_per_batch) if cores_per_batch else 1


def batches(lines: Sequence[str], max_lines: int = MAX_BATCH_LINES) -> list[list[int]]:
    """Groups lines of similar lengths into batches of their indices, the longest lines first.

    Example:
    >>> batches(["a", "three words here", "b"], max_lines=2)
    [[1, 0], [2]]
    """
    sizes = [len(line.encode()) for line in lines]
    result: list[list[int]] = []
    for index in sorted(range(len(lines)), key=lambda i: -sizes[i]):
        batch = result[-1] if result else []
        full = len(batch) == max_lines
        if not batch or full or (len(batch) + 1) * sizes[batch[0]] > _MAX_BATCH_BYTES:
            result.append([index])
        else:
            batch.append(index)
    return result


def map_batches(
    function: Callable[[list[int]], _Result],
    lines: Sequence[str],
    *,
    max_lines: int = MAX_BATCH_LINES,
    unit: str = "lines",
) -> Iterator[tuple[list[int], _Result]]:
    """Calls a function for each batch of lines, in threads, and shows the progress.

    Args:
        function: takes the indices of the lines of a batch.
        lines: texts that determine the batches, by their lengths.
        max_lines: of a batch.
        unit: what a line is called in the progress bar, in the plural.

    Yields:
        For each batch: the indices of its lines, and the result.
    """
    at_once = concurrent_batches()
    # At least one batch for each thread.
    todo = batches(lines, min(max_lines, max(1, len(lines) // at_once)))
    pool = concurrent.futures.ThreadPoolExecutor(at_once)
    try:
        with progress_bar(len(lines), unit) as bar:
            for batch, result in zip(todo, pool.map(function, todo), strict=True):
                yield batch, result
                bar.update(len(batch))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, waits only for the running batches


def in_batches(
    translate: Callable[..., dict[str, tf.Tensor]], lines: Sequence[str], **others: Sequence[str]
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yields, for each batch, the indices of its lines and the outputs of `translate`.

    Args:
        translate: takes `text`, string `[B]`, and the `others` in the same way.
        lines: texts.
        others: further texts for each line.
    """
    columns = {"text": lines, **others}

    def outputs(batch: list[int]) -> dict[str, np.ndarray]:
        texts = {name: tf.constant([column[i] for i in batch]) for name, column in columns.items()}
        return {name: field.numpy() for name, field in translate(**texts).items()}

    return map_batches(outputs, lines)


def token_counts(
    lengths: Callable[..., dict[str, tf.Tensor]], lines: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Yields for each line its number of tokens, including the end token, and how many are used.

    Args:
        lengths: `LoadedModel.lengths` or `Translator.lengths`.
        lines: texts.
    """
    for start in range(0, len(lines), 1024):
        counts = lengths(text=tf.constant(lines[start : start + 1024]))
        pairs = zip(counts["tokens"].numpy(), counts["used"].numpy(), strict=True)
        yield from ((int(tokens), int(used)) for tokens, used in pairs)
