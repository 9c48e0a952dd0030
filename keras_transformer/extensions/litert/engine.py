"""Runs a LiteRT model, the file `model.tflite` of keras-transformer export, without TensorFlow.

model = LiteRTModel("model.tflite")
best = model.translate("A small dog runs.")[0].text
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_transformer.console import discard_native_log, without_native_log
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.litert.archive import read_archive
from keras_transformer.inference import Translation, translations_of

with needs_extra("litert", "translating with a LiteRT model"):
    import ai_edge_litert
    from ai_edge_litert import interpreter as litert

if TYPE_CHECKING:
    from ai_edge_litert import compiled_model

MAX_THREADS = 1024
_SIGNATURE = "translate_ids"
_BATCH_SIGNATURE = "translate_batch"  # only files of --format=cpu have it
_WEIGHTS_IN_MEMORY = ":memory"  # XNNPACK's name for a cache of packed weights without a file
# A signature: a function from inputs to outputs, by name.
Runtime = Callable[..., dict[str, np.ndarray]]
# Options of glibc's mallopt, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, with values in bytes. 32 MiB is
# the largest value of the second one.
_MALLOC_OPTIONS = ((-1, 256 << 20), (-3, 32 << 20))


class LiteRTResult(NamedTuple):
    """The search results of a sentence, best first."""

    ids: np.ndarray  # int32 [n_best, length]
    lengths: np.ndarray  # int32 [n_best], including the end token
    scores: np.ndarray  # float32 [n_best]
    # int32 [n_best, length]: the source token that each token translates; None in older files
    alignments: np.ndarray | None
    status: int  # bits of `inference.Status`
    quality: np.ndarray | None = None  # float32 [n_best]; None if the model has none


class LiteRTModel:
    """A translator in one file. Threads may share it, and then use several cores.

    Each sentence is translated on one core, because most operations are too small to be shared.
    Sentences that are translated at the same time need one interpreter each, which is made when it
    is needed for the first time. The file is read once, so it may be replaced at any time.

    A model of the format cpu makes glibc keep up to 256 MiB of memory that this process has freed.

    Args:
        path: `model.tflite`.
        threads: number of sentences that are translated at the same time. Further calls wait.
        low_memory: uses LiteRT's `CompiledModel` instead of its `Interpreter`. An `Interpreter`
            keeps the file's weights, and one copy per thread in the layout of its kernels.
            `CompiledModel` keeps only one copy. Files of 25 MB and more need less memory with it,
            smaller ones the same or more. It holds Python's lock, so it translates one
            sentence at a time. It maps the file, which must not be written to while it is used.

    Attributes:
        metadata: the limits of the model, as `LiteRTMetadata`.
        batch_size: number of sentences in the fastest call of `translate_batch`; 1 if the file can
            only translate one at a time.
        vocabulary: the SentencePiece models of the file.

    Example:
    >>> model = LiteRTModel("build/litert/1/model.tflite")
    >>> best, *others = model.translate("a dog")
    >>> best.score < 0
    True
    """

    def __init__(self, path: str | Path, threads: int = 2, *, low_memory: bool = False):
        if not 1 <= threads <= MAX_THREADS:
            raise InputError(f"threads is {threads!r}, but must be from 1 to {MAX_THREADS:,}.")
        self.path, self.threads = Path(path), threads
        self._max_runtimes = 1 if low_memory else threads
        try:
            self._content = None if low_memory else self.path.read_bytes()
            file = self.path.open("rb") if self._content is None else io.BytesIO(self._content)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        with file:
            self.metadata, self.vocabulary = read_archive(self.path, file)
        self._free = threading.Semaphore(self._max_runtimes)
        self.batch_size = self.metadata.batch_size
        if low_memory and self.batch_size > 1:
            raise InputError(
                f"{path} is for servers (format cpu), and CompiledModel cannot run it. Leave "
                "low_memory out, or export with the format litert."
            )
        self._idle = [self._new_runtime()]  # the last one was used last; its memory is warm
        if self.batch_size > 1:
            self.keep_freed_memory()

    @staticmethod
    def keep_freed_memory() -> None:
        """Makes the C library keep freed memory for this process, instead of the kernel.

        LiteRT frees the memory of decode steps after each loop, and allocates it again for the
        next. Without pages that the kernel must clear again, an int8 search of `small` takes 13 %
        less time. Variables of the environment have an effect only when a process starts.
        """
        with contextlib.suppress(AttributeError, OSError, TypeError):  # the C library is not glibc
            for option, size in _MALLOC_OPTIONS:
                ctypes.CDLL(None).mallopt(option, size)

    def _new_runtime(self) -> Runtime:
        """Returns a new runtime with one thread, which one thread at a time may use."""
        try:
            if self._content is None:
                return _compiled(self.path)
            # LiteRT keeps a pointer to the content.
            interpreter = litert.Interpreter(model_content=self._content, num_threads=1)
            name = _BATCH_SIGNATURE if self.batch_size > 1 else _SIGNATURE
            return interpreter.get_signature_runner(name)
        except (RuntimeError, TypeError, ValueError) as error:  # TypeError: an invalid path
            raise _runtime_error(self.path, error) from error

    @contextlib.contextmanager
    def _idle_runtime(self) -> Iterator[Runtime]:
        """Yields a runtime that no other thread uses."""
        with self._free:
            try:
                runtime = self._idle.pop()
            except IndexError:  # all are in use, but more are allowed
                runtime = self._new_runtime()
            try:
                yield runtime
            finally:
                self._idle.append(runtime)

    def release_memory(self) -> None:
        """Drops idle interpreters but one. Calls at the same time make them again."""
        del self._idle[:-1]

    def warm_up(self) -> None:
        """Makes all interpreters, and translates with each of them, which copies the weights."""
        inputs = self._inputs([[]], [0], [math.nan])
        with contextlib.ExitStack() as stack:
            for _ in range(self._max_runtimes):
                stack.enter_context(self._idle_runtime())(**inputs)

    def translate(
        self, text: str, max_length: int = 0, length_penalty: float = math.nan
    ) -> list[Translation]:
        """Translates one sentence, truncated if necessary. The translations are sorted, best first.

        Args:
            max_length: the longest translation, including the end token. 0 means the limit of the
                export. It cannot exceed the limit for the length of the sentence.
            length_penalty: α, clamped to the range from 0 to 10. NaN means the α of the export.
        """
        result = self.translate_ids(self.source_ids(text), max_length, length_penalty)
        return translations_of(self.texts(result), result.scores)

    def translate_ids(
        self, ids: Sequence[int], max_length: int = 0, length_penalty: float = math.nan
    ) -> LiteRTResult:
        """Translates the ids of one sentence."""
        return self.translate_batch([ids], [max_length], [length_penalty])[0]

    def translate_batch(
        self,
        sources: Sequence[Sequence[int]],
        max_lengths: Sequence[int] | None = None,
        length_penalties: Sequence[float] | None = None,
    ) -> list[LiteRTResult]:
        """Translates the ids of several sentences on one core.

        A file of `keras-transformer export --format=cpu` reads its weights once for all of them.
        Sentences of similar lengths, `batch_size` in a call, are fastest.

        Args:
            sources: for each sentence the ids from `source_ids`.
            max_lengths: for each sentence, as in `translate`; by default as exported.
            length_penalties: for each sentence, as in `translate`; by default as exported.
        """
        limits = [0] * len(sources) if max_lengths is None else max_lengths
        alphas = [math.nan] * len(sources) if length_penalties is None else length_penalties
        inputs = self._inputs(sources, limits, alphas)
        results = []
        with self._idle_runtime() as runtime:  # it releases Python's lock while it runs
            step = 1 if self.batch_size == 1 else max(1, len(sources))
            for i in range(0, len(sources), step):
                outputs = runtime(**{name: rows[i : i + step] for name, rows in inputs.items()})
                results += [_result(outputs, row) for row in range(step)]
        return results

    def _inputs(
        self, sources: Sequence[Sequence[int]], limits: Sequence[int], alphas: Sequence[float]
    ) -> dict[str, np.ndarray]:
        """Returns the inputs of the signature: padded ids and the other rows."""
        width = self.metadata.max_source_tokens
        lengths = [min(len(ids), width) for ids in sources]
        if self.batch_size > 1:
            width = max([1, *lengths])
        padded = np.zeros((len(sources), width), np.int32)
        try:
            rows = zip(padded, sources, lengths, limits, alphas, strict=True)
            for row, ids, length, _, _ in rows:
                row[:length] = list(map(operator.index, ids[:length]))
            return {
                "ids": padded,
                "lengths": np.array(lengths, np.int32),
                "max_length": np.array(list(map(operator.index, limits)), np.int32),
                "length_penalty": np.array(list(map(float, alphas)), np.float32),
            }
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError(
                "ids, max_length and length_penalty must be int32 or float32 numbers for each of "
                f"{len(sources)} sentences, but are {str([sources, limits, alphas])[:300]} "
                f"({error})."
            ) from None

    def source_ids(self, text: str) -> list[int]:
        """Returns the ids of a sentence, with the end token, for `translate_ids`."""
        return self.vocabulary.encode_source([self.truncate(text)])[0]

    def texts(self, result: LiteRTResult) -> list[str]:
        """Returns the text of each hypothesis."""
        pairs = zip(result.ids, result.lengths, strict=True)
        return [self.vocabulary.target_text(ids[:length].tolist()) for ids, length in pairs]

    def lengths(self, text: str) -> tuple[int, int, int]:
        """Counts all, used (after truncation) and unknown tokens, with the end token."""
        whole, used = self.vocabulary.encode_source([_bytes(text), self.truncate(text)])
        unknown = list(whole).count(self.vocabulary.unknown_id)
        return len(whole), min(len(used), self.metadata.max_source_tokens), unknown

    def truncate(self, text: str) -> bytes:
        """Returns a text as UTF-8, truncated between characters to `metadata.max_source_bytes`."""
        data, limit = _bytes(text), self.metadata.max_source_bytes
        if len(data) <= limit:
            return data
        # Cuts before the last byte that begins a character.
        begins = (i for i in range(limit, max(limit - 4, -1), -1) if data[i] & 0xC0 != 0x80)
        return data[: next(begins, limit)]


def _compiled(path: Path) -> Runtime:
    """Returns the signature `translate_ids` in LiteRT's `CompiledModel`, with constant buffers."""
    from ai_edge_litert import compiled_model  # imported here: it takes as long as loading a model

    # Its library also logs when it is unloaded, after Python has ended.
    atexit.register(discard_native_log)
    cpu = compiled_model.CpuOptions(num_threads=1, xnnpack_weight_cache_path=_WEIGHTS_IN_MEMORY)
    with without_native_log():
        model = compiled_model.CompiledModel.from_file(
            str(path), options=compiled_model.Options(cpu_options=cpu)
        )
        details = model.get_input_tensor_details(_SIGNATURE)
        outputs = model.get_output_tensor_details(_SIGNATURE)
        input_buffers = {
            name: model.create_input_buffer_by_name(_SIGNATURE, name) for name in details
        }
        output_buffers = {
            name: model.create_output_buffer_by_name(_SIGNATURE, name) for name in outputs
        }
        for name, tensor in details.items():  # the first write also logs
            input_buffers[name].write(np.zeros(tensor["shape"], tensor["dtype"]))

    def run(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        for name, array in inputs.items():
            input_buffers[name].write(array)
        model.run_by_name(_SIGNATURE, input_buffers, output_buffers)
        return {
            name: output_buffers[name]
            .read(math.prod(tensor["shape"]), np.dtype(tensor["dtype"]))
            .reshape(tensor["shape"])
            for name, tensor in outputs.items()
        }

    weakref.finalize(run, _close, model, [*input_buffers.values(), *output_buffers.values()])
    return run


def _close(
    model: compiled_model.CompiledModel, buffers: Sequence[compiled_model.TensorBuffer]
) -> None:
    """Closes a model, which writes to its log, when it is no longer used or the process ends."""
    with without_native_log():
        for buffer in buffers:
            buffer.destroy()
        model.close()
        model.environment.close()


def _result(outputs: dict[str, np.ndarray], row: int) -> LiteRTResult:
    """Returns a row of the outputs of a signature."""
    ids, lengths, scores = (outputs[name][row] for name in ("ids", "lengths", "scores"))
    alignments, quality = (
        outputs[name][row] if name in outputs else None for name in ("alignments", "quality")
    )
    return LiteRTResult(ids, lengths, scores, alignments, int(outputs["status"][row]), quality)


def _bytes(text: str) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"The text is {text!r}, not a str.")
    # Surrogates stand for invalid bytes, which become U+FFFD as in a SavedModel.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _runtime_error(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:300]
    advice = "Use a file of keras-transformer export --format=litert."
    if "Didn't find op" in reason:
        advice = "Install a newer ai-edge-litert."
    version = ai_edge_litert.__version__
    return InputError(f"ai-edge-litert {version} cannot run {path} ({reason}). {advice}")
