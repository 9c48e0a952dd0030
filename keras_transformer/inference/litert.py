"""Runs a LiteRT model, the file `model.tflite` of bin/export.py, without TensorFlow.

    model = LiteRTModel("model.tflite")
    best = model.translate("A small dog runs.")[0].text

A ZIP archive follows the model in the same file. LiteRT ignores it. It contains the SentencePiece
models and metadata, so that one file is enough.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import typing
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.inference import Translation, manifest, translations_of
from keras_transformer.schema import Bounds, check_scalar
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("litert", "translating with a LiteRT model"):
    import ai_edge_litert
    from ai_edge_litert import compiled_model
    from ai_edge_litert import interpreter as litert

FORMAT_VERSION = 2  # 1 had ids of any length, and no input `lengths`
MAX_THREADS = 1024
_SIGNATURE = "translate_ids"
_BATCH_SIGNATURE = "translate_batch"  # only of --format=cpu
_WEIGHTS_IN_MEMORY = ":memory"  # XNNPACK's name for a cache of packed weights without a file
_STDERR_LOCK = threading.RLock()  # garbage collection may close a model inside `_without_log`
_METADATA = "model.json"
_CHECKSUM = "model_crc32"  # in the metadata: of the bytes before the archive
_BATCH_SIZE = 8  # sentences per call for which `translate_batch` is fastest
_Count = Annotated[int, Bounds(least=1)]


class LiteRTMetadata(NamedTuple):
    """The metadata of a LiteRT model.

    Attributes:
        n_best: translations of a sentence, K.
        max_source_tokens: longest source, including the end token; longer ones are truncated.
        max_source_bytes: longest source text in bytes; longer ones are truncated.
        max_output_tokens: longest translation, including the end token.
        max_train_source_length: longest source in training, or None if it is unknown.
        has_text: whether the model has the signature `translate`.

    Example:
    >>> LiteRTMetadata(1, 1024, 16384, 1074, None, has_text=True).n_best
    1
    """

    n_best: _Count
    max_source_tokens: _Count
    max_source_bytes: _Count
    max_output_tokens: _Count
    max_train_source_length: _Count | None
    has_text: bool


class LiteRTResult(NamedTuple):
    """The search results of a sentence, best first.

    Attributes:
        ids: int32 `(n_best, length)`.
        lengths: int32 `(n_best,)`, including the end token.
        scores: float32 `(n_best,)`.
        status: bits of `export.request_params.Status`.

    Example:
    >>> LiteRTResult(np.array([[7, 3]]), np.array([2]), np.array([-0.5]), status=0).ids.shape
    (1, 2)
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    status: int


class LiteRTModel:
    """A translator in one file. Threads may share it, and then use several cores.

    Each sentence is translated on one core, because most operations are too small to be shared.
    Sentences that are translated at the same time need one interpreter each. Interpreters share
    the mapped file, but XNNPACK copies the weights into each of them. An interpreter is made when
    it is needed for the first time.

    Args:
        path: `model.tflite`.
        threads: number of sentences that are translated at the same time. Further calls wait.
        low_memory: uses LiteRT's `CompiledModel` instead of its `Interpreter`. An `Interpreter`
            keeps the file's weights, and one copy per thread in the layout of its kernels.
            `CompiledModel` keeps only one copy. Files of 25 MB and more need less memory with it,
            smaller ones about as much or more. It holds Python's lock, so it translates one
            sentence at a time.
        verify: compares the file with its checksum, and with `manifest.json` in its directory, if
            there is one. This takes less than a second per GB.

    Attributes:
        metadata: the metadata of the file.
        threads: see the argument.
        batch_size: number of sentences for which a call of `translate_batch` is fastest; 1 if the
            file can only translate one at a time.
        vocabulary: the SentencePiece models of the file.

    Raises:
        InputError: if the file is damaged or was not written by bin/export.py, or if this runtime
            cannot run it.

    Example:
    >>> model = LiteRTModel("build/litert/1/model.tflite")
    >>> [translation] = model.translate("a dog")
    >>> translation.score < 0
    True
    """

    def __init__(
        self,
        path: str | Path,
        threads: int = 2,
        *,
        low_memory: bool = False,
        verify: bool = True,
    ):
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:  # True is not a number
            raise InputError(f"threads is {threads!r}, but must be from 1 to {MAX_THREADS:,}.")
        self.path, self.threads = Path(path), threads
        if self.path.is_dir():
            raise InputError(f"{path} is a directory. Use the file model.tflite in it.")
        if verify:
            manifest.check_file(self.path)
        self.metadata, self.vocabulary = _read_archive(self.path, verify)
        self._runtime = _Compiled if low_memory else _Interpreted
        self._free = threading.Semaphore(1 if low_memory else threads)
        self._idle = [self._new_runtime()]  # the last one was used last; its memory is warm
        self.batch_size = _BATCH_SIZE if self._idle[0].takes_batches else 1

    def _new_runtime(self) -> _Interpreted | _Compiled:
        """Returns a new runtime with one thread, which one thread at a time may use."""
        try:
            return self._runtime(self.path)
        except (RuntimeError, TypeError, ValueError) as error:  # TypeError: an invalid path
            raise _runtime_error(self.path, error) from error

    @contextlib.contextmanager
    def _idle_runtime(self) -> Iterator[_Interpreted | _Compiled]:
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

    def translate(
        self, text: str, max_length: int = 0, length_penalty: float = math.nan
    ) -> list[Translation]:
        """Translates one sentence.

        Args:
            text: the sentence, truncated if it is longer than the model accepts.
            max_length: the longest translation, including the end token. 0 means the limit of the
                export. It cannot exceed the limit for the length of the sentence.
            length_penalty: α, clamped to the range from 0 to 10. NaN means the α of the export.

        Returns:
            The translations, best first; empty if there are none.

        Raises:
            InputError: if an argument has the wrong type.
        """
        result = self.translate_ids(self.source_ids(text), max_length, length_penalty)
        return translations_of(self.texts(result), result.scores)

    def translate_ids(
        self, ids: Sequence[int], max_length: int = 0, length_penalty: float = math.nan
    ) -> LiteRTResult:
        """Translates the ids of one sentence.

        Args:
            ids: ids from `source_ids`. An end token is added if it is missing.
            max_length: see `translate`.
            length_penalty: see `translate`.
        """
        [result] = self.translate_batch([ids], [max_length], [length_penalty])
        return result

    def translate_batch(
        self,
        sources: Sequence[Sequence[int]],
        max_lengths: Sequence[int] | None = None,
        length_penalties: Sequence[float] | None = None,
    ) -> list[LiteRTResult]:
        """Translates the ids of several sentences on one core.

        A file of `bin/export.py --format=cpu` reads its weights once for all of them. Sentences of
        similar lengths, `batch_size` in a call, are fastest.

        Args:
            sources: for each sentence the ids from `source_ids`.
            max_lengths: for each sentence, as in `translate`; by default as exported.
            length_penalties: for each sentence, as in `translate`; by default as exported.

        Raises:
            InputError: if an argument has the wrong type, or the lists have different lengths.
        """
        rows = [_array("ids", [ids], np.int32) for ids in sources]
        for row, ids in zip(rows, sources, strict=True):
            if row.ndim != 2:
                raise InputError(f"ids is {ids!r}, but must be a list of numbers.")
        count, longest = len(rows), self.metadata.max_source_tokens
        limits = [0] * count if max_lengths is None else max_lengths
        alphas = [math.nan] * count if length_penalties is None else length_penalties
        for name, values in (("max_lengths", limits), ("length_penalties", alphas)):
            if len(values) != count:
                raise InputError(
                    f"{name} has {len(values)} values for {count} sentences. Give one for each "
                    "sentence."
                )
        lengths = [min(row.shape[1], longest) for row in rows]
        inputs = {
            "lengths": np.array(lengths, np.int32),
            "max_length": _array("max_length", limits, np.int32),
            "length_penalty": _array("length_penalty", alphas, np.float32),
        }
        if not rows:
            return []
        with self._idle_runtime() as runtime:  # it releases Python's lock while it runs
            if runtime.takes_batches:
                longest = max(1, *lengths)
            inputs["ids"] = np.zeros((count, longest), np.int32)
            for place, row, length in zip(inputs["ids"], rows, lengths, strict=True):
                place[:length] = row[0, :length]
            try:
                if runtime.takes_batches:
                    outputs = runtime.run(inputs)
                    return [_result(outputs, i) for i in range(count)]
                results = []
                for i in range(count):
                    one = {name: values[i : i + 1] for name, values in inputs.items()}
                    results.append(_result(runtime.run(one), 0))
                return results
            except (RuntimeError, ValueError) as error:
                raise _runtime_error(self.path, error) from error

    def source_ids(self, text: str) -> list[int]:
        """Returns the ids of a sentence, with the end token, for `translate_ids`."""
        return self.vocabulary.encode_source([self.truncate(text)], threads=1)[0]

    def texts(self, result: LiteRTResult) -> list[str]:
        """Returns the text of each hypothesis."""
        pairs = zip(result.ids, result.lengths, strict=True)
        return [self.vocabulary.target_text(ids[:length].tolist()) for ids, length in pairs]

    def lengths(self, text: str) -> tuple[int, int, int]:
        """Counts the tokens of a sentence, with the end token.

        Returns:
            The numbers of all tokens, of used tokens (after truncation), and of unknown tokens.
        """
        whole, used = self.vocabulary.encode_source([_bytes(text), self.truncate(text)], threads=1)
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


class _Interpreted:
    """The signature `translate_batch` or `translate_ids` in LiteRT's `Interpreter`."""

    def __init__(self, path: Path):
        self._interpreter = litert.Interpreter(str(path), num_threads=1)
        self.takes_batches = _BATCH_SIGNATURE in self._interpreter.get_signature_list()
        name = _BATCH_SIGNATURE if self.takes_batches else _SIGNATURE
        self._runner = self._interpreter.get_signature_runner(name)

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name."""
        outputs: dict[str, np.ndarray] = self._runner(**inputs)
        return outputs


class _Compiled:
    """The signature `translate_ids` in LiteRT's `CompiledModel`, with constant buffers."""

    takes_batches = False

    def __init__(self, path: Path):
        cpu = compiled_model.CpuOptions(num_threads=1, xnnpack_weight_cache_path=_WEIGHTS_IN_MEMORY)
        with _without_log():
            self._model = model = compiled_model.CompiledModel.from_file(
                str(path), options=compiled_model.Options(cpu_options=cpu)
            )
            buffers: list[compiled_model.TensorBuffer] = []
            weakref.finalize(self, _close, model, buffers)
            if _SIGNATURE not in model.get_signature_list():
                raise InputError(
                    f"{path} is for servers (--format=cpu), and CompiledModel cannot run it. Leave "
                    "low_memory out, or export with --format=litert."
                )
            inputs = model.get_input_tensor_details(_SIGNATURE)
            self._outputs = model.get_output_tensor_details(_SIGNATURE)
            self._input_buffers = {
                name: model.create_input_buffer_by_name(_SIGNATURE, name) for name in inputs
            }
            self._output_buffers = {
                name: model.create_output_buffer_by_name(_SIGNATURE, name) for name in self._outputs
            }
            buffers += [*self._input_buffers.values(), *self._output_buffers.values()]
            for name, each in inputs.items():  # the first write also logs
                self._input_buffers[name].write(np.zeros(each["shape"], each["dtype"]))

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name."""
        for name, array in inputs.items():
            self._input_buffers[name].write(array)
        self._model.run_by_name(_SIGNATURE, self._input_buffers, self._output_buffers)
        return {
            name: self._output_buffers[name]
            .read(math.prod(each["shape"]), np.dtype(each["dtype"]))
            .reshape(each["shape"])
            for name, each in self._outputs.items()
        }


def _close(
    model: compiled_model.CompiledModel, buffers: Sequence[compiled_model.TensorBuffer]
) -> None:
    """Closes a model, which writes to its log, when it is no longer used or the process ends."""
    with _without_log():
        for buffer in buffers:
            buffer.destroy()
        model.close()
        model.environment.close()


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Discards the log of `CompiledModel`. It has about 20 lines, and no setting to disable it.

    Two lines remain when the process ends: reading and writing a buffer makes an environment that
    only LiteRT can close.
    """
    with _STDERR_LOCK:  # two threads would restore each other's streams
        stderr = os.dup(2)
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _result(outputs: dict[str, np.ndarray], row: int) -> LiteRTResult:
    """Returns a row of the outputs of a signature."""
    ids, lengths, scores = (outputs[name][row] for name in ("ids", "lengths", "scores"))
    return LiteRTResult(ids, lengths, scores, int(outputs["status"][row]))


def _array(name: str, values: Any, dtype: Any) -> np.ndarray:
    """Converts numbers to an array of a dtype, and refuses numbers that the dtype changes."""
    try:
        with np.errstate(over="ignore"):  # too large floats become infinity, which is clamped
            array = np.array(values, dtype)
        is_same = array.dtype.kind != "i" or np.array_equal(array, np.array(values))
    except (OverflowError, TypeError, ValueError):
        is_same = False
    if not is_same:
        raise InputError(f"{name} is {values[0]!r}, which is not {np.dtype(dtype).name}.")
    return array


def _bytes(text: str) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"The text is {text!r}, not a str.")
    # Surrogates stand for invalid bytes, which become U+FFFD as in a SavedModel.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def append_archive(path: Path, metadata: LiteRTMetadata, vocabulary: Vocabulary) -> None:
    """Appends the archive that `LiteRTModel` reads to a model file.

    Args:
        path: the file.
        metadata: metadata of the model.
        vocabulary: the SentencePiece models.

    Example:
    >>> metadata = LiteRTMetadata(1, 1024, 16384, 1074, None, has_text=True)
    >>> _ = Path("model.tflite").write_bytes(b"model")
    >>> append_archive(Path("model.tflite"), metadata, Vocabulary.load("build/run/tokenizer"))
    >>> zipfile.ZipFile("model.tflite").namelist()
    ['model.json', 'joint.model']
    """
    checksum = _crc32(path, path.stat().st_size)
    fields = {"format_version": FORMAT_VERSION, _CHECKSUM: checksum, **metadata._asdict()}
    # `ZipInfo` has a fixed date, so equal models have equal files.
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_METADATA), json.dumps(fields))
        for name, model in vocabulary.models().items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, model)


def _read_archive(path: Path, verify: bool) -> tuple[LiteRTMetadata, Vocabulary]:
    """Returns the metadata and the vocabulary of a file. `verify` also compares its checksum."""
    advice = "Copy or export it again."
    try:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
            model_bytes = min(info.header_offset for info in archive.infolist())
        fields = json.loads(files.pop(_METADATA))
        version, checksum = fields.pop("format_version"), fields.pop(_CHECKSUM, None)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:  # zipfile and zlib raise many exceptions for damaged files
        raise InputError(
            f"{path} does not end with the archive of a LiteRT model. The file is cut off or "
            f"damaged, or is not from bin/export.py --format=litert. {advice}"
        ) from error
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version!r}. This program reads {FORMAT_VERSION}. Export "
            "the model again with this version of the package."
        )
    if verify and checksum != _crc32(path, model_bytes):
        raise InputError(
            f"{path} was changed after the export: the checksum of the model is not the one in "
            f"{_METADATA} at the end of the file. {advice}"
        )
    try:
        for name, hint in typing.get_type_hints(LiteRTMetadata, include_extras=True).items():
            check_scalar(name, hint, fields[name])
        return LiteRTMetadata(**fields), Vocabulary.from_models(files)
    except Exception as error:  # SentencePiece raises many exceptions for damaged models
        raise InputError(
            f"The metadata or the vocabulary at the end of {path} is damaged. {advice}"
        ) from error


def _crc32(path: Path, size: int) -> int:
    """Returns the CRC-32 of the first bytes of a file. It takes about 0.2 s per GB."""
    checksum = 0
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, 2**20))):
            checksum = zlib.crc32(block, checksum)
            size -= len(block)
    return checksum


def _runtime_error(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:300]
    advice = "Use a file of bin/export.py --format=litert."
    if "Didn't find op" in reason:
        advice = "Install a newer ai-edge-litert."
    version = ai_edge_litert.__version__
    return InputError(f"ai-edge-litert {version} cannot run {path} ({reason}). {advice}")
