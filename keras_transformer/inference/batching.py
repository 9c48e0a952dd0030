"""Batches of lines with similar lengths, which are computed on all cores at the same time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from keras_transformer.console import progress_bar
from keras_transformer.runs.machine import available_cores
from keras_transformer.text.vocabulary import MAX_UNKNOWN_RATE

# The memory of the search's cache grows with both limits.
_MAX_BATCH_LINES = 64
_MAX_BATCH_BYTES = 16_384  # counts the padding to the longest line
# A batch of `base` takes as long with 32 lines as with 128 on a GPU, which waits for operations
# (512 lines have not been measured). A batch that does not fit into its memory is translated in
# parts.
_GPU_FACTOR = 8
_COUNTED_LINES = 1024  # lines whose tokens are counted in one call

_FROM_1 = range(1, sys.maxsize)
_Result = TypeVar("_Result")
# Takes and returns arrays or tensors by name, all with the batch as their first dimension. Strings
# are bytes in arrays of objects, which TensorFlow accepts too.
BatchFunction = Callable[..., Mapping[str, Any]]
# Integers for each line: its source `tokens` with the end token, how many of them are `used` (fewer
# if the line is truncated), and how many are `unknown`, because they are not in the vocabulary.
TokenCounts: TypeAlias = dict[str, np.ndarray]


def use_cores_for_batches(lines: int) -> None:
    """Configures TensorFlow to compute one batch per CPU core, before TensorFlow starts.

    Most operations of a search are too small to be shared between cores. With fewer `lines` than
    cores, the remaining cores share operations. Later calls, calls with a GPU, and calls in a
    process without TensorFlow change nothing: models that do not need it have their own threads.
    """
    if "tensorflow" not in sys.modules or _uses_gpu():
        return
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow has already started
        concurrency = max(1, min(lines, available_cores()))
        tf.config.threading.set_intra_op_parallelism_threads(available_cores() // concurrency)
        tf.config.threading.set_inter_op_parallelism_threads(concurrency)


def _uses_gpu() -> bool:
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def concurrent_batches() -> int:
    """Returns the number of batches that TensorFlow computes at the same time; 1 on a GPU."""
    import tensorflow as tf  # imported here, because not all models need it

    cores_per_batch = tf.config.threading.get_intra_op_parallelism_threads()
    return max(1, available_cores() // cores_per_batch) if cores_per_batch else 1


def batches(lines: Sequence[str], max_lines: int | None = None) -> list[list[int]]:
    """Groups lines of similar lengths into batches of their indices, the longest lines first.

    By default, a batch has at most 64 lines, or 512 on a GPU.
    """
    factor = _GPU_FACTOR if _uses_gpu() else 1
    max_lines, max_bytes = max_lines or factor * _MAX_BATCH_LINES, factor * _MAX_BATCH_BYTES
    sizes = [len(line.encode()) for line in lines]
    result: list[list[int]] = []
    for index in sorted(range(len(lines)), key=lambda i: -sizes[i]):
        batch = result[-1] if result else []
        full = len(batch) == max_lines
        if not batch or full or (len(batch) + 1) * sizes[batch[0]] > max_bytes:
            result.append([index])
        else:
            batch.append(index)
    return result


def map_batches(
    function: Callable[[list[int]], _Result],
    lines: Sequence[str],
    *,
    max_lines: int | None = None,
    threads: int | None = None,
    unit: str = "lines",
) -> Iterator[tuple[list[int], _Result]]:
    """Calls a function with the indices of each batch of lines, in threads, and yields both.

    `unit` is the plural of a line's name in the progress bar. A batch that does not fit into the
    memory of the device is computed again after the others, without another batch at the same time,
    and in halves if necessary.
    """
    concurrency = concurrent_batches() if threads is None else threads
    if threads is not None or not _uses_gpu():  # a GPU takes as long for a small batch
        # At least one batch for each thread.
        max_lines = min(max_lines or _MAX_BATCH_LINES, max(1, len(lines) // concurrency))
    todo = batches(lines, max_lines)

    def result_of(batch: list[int]) -> _Result | None:
        """Returns None if the batch does not fit into memory."""
        try:
            return function(batch)
        except Exception as error:
            # TensorFlow's class would load TensorFlow, which not all models need.
            if type(error).__name__ != "ResourceExhaustedError":
                raise
            return None

    pool = concurrent.futures.ThreadPoolExecutor(concurrency)
    try:
        with progress_bar(len(lines), unit, is_shown=len(todo) > 1) as bar:
            rest = []
            results = pool.map if len(todo) > 1 else map  # a thread costs as much as a short line
            for batch, found in zip(todo, results(result_of, todo), strict=True):
                if found is None:
                    rest.append(batch)
                    continue
                yield batch, found
                bar.update(len(batch))
            while rest:  # now no other batch is running
                batch = rest.pop()
                found = function(batch) if len(batch) == 1 else result_of(batch)
                if found is None:
                    middle = len(batch) // 2
                    rest += [batch[:middle], batch[middle:]]
                    continue
                yield batch, found
                bar.update(len(batch))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits only for running batches


def string_array(lines: Sequence[str]) -> np.ndarray:
    """Returns texts as bytes in an array of objects, which functions of models accept."""
    return np.array([line.encode() for line in lines], object)


def outputs_by_line(
    function: BatchFunction,
    lines: Sequence[str],
    *,
    max_lines: int | None = None,
    threads: int | None = None,
    **others: Sequence[str],
) -> list[dict[str, Any]]:
    """Calls a function of a model for all lines, in batches. Returns the outputs of each line.

    The function has the argument `text`, string `[batch]`, and `others`: further texts for each
    line. `threads` calls run at the same time, by default `concurrent_batches`.
    """
    columns = {"text": lines, **others}

    def outputs(batch: list[int]) -> dict[str, np.ndarray]:
        texts = {name: string_array([column[i] for i in batch]) for name, column in columns.items()}
        return {name: np.asarray(field) for name, field in function(**texts).items()}

    results: list[dict[str, Any]] = [{} for _ in lines]
    for batch, fields in map_batches(outputs, lines, max_lines=max_lines, threads=threads):
        for row, index in enumerate(batch):
            results[index] = {name: field[row] for name, field in fields.items()}
    return results


def token_counts(lengths: BatchFunction, lines: Sequence[str]) -> TokenCounts:
    """Returns the token counts of each line, from `Engine.lengths`."""
    names = ("tokens", "used", "unknown")
    counts = {name: np.zeros(len(lines), np.int64) for name in names}
    for start in range(0, len(lines), _COUNTED_LINES):
        part = slice(start, start + _COUNTED_LINES)
        outputs = lengths(text=string_array(lines[part]))
        for name, column in counts.items():
            column[part] = outputs[name]
    return counts


def unknown_token_remark(counts: TokenCounts, lines: Sequence[int] = _FROM_1) -> str | None:
    """Returns a remark if more than 1 % of the source tokens are unknown, otherwise None.

    `lines` are the numbers of the lines.
    """
    tokens, unknown = counts["tokens"].sum(), counts["unknown"].sum()
    if unknown <= MAX_UNKNOWN_RATE * tokens:
        return None
    return (
        f"{unknown / tokens:.1%} of the source tokens are not in the vocabulary, first in line "
        f"{lines[int(np.argmax(counts['unknown'] > 0))]:,}. Their meaning is lost. Runs and "
        "SavedModels can copy them (decoding.unknown=replace)."
    )


def source_warnings(
    counts: TokenCounts, max_train_source_length: int | None = None, first_line: int = 1
) -> list[str]:
    """Returns warnings about sources that are empty, truncated, or longer than any in training."""
    warnings = []
    for number, (tokens, used) in enumerate(
        zip(counts["tokens"], counts["used"], strict=True), first_line
    ):
        if tokens == 1:  # there is only the end token
            warnings.append(f"Line {number}: the source is empty.")
        elif used < tokens:
            warnings.append(
                f"Line {number}: the source has {tokens:,} tokens. Only the first {used:,} are "
                "used (decoding.max_source_tokens)."
            )
        elif max_train_source_length is not None and tokens > max_train_source_length:
            warnings.append(
                f"Line {number}: the source has {tokens:,} tokens, but the longest source in "
                f"training has {max_train_source_length:,}. The quality may be lower."
            )
    return warnings
