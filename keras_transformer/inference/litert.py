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
import threading
import typing
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.inference import Translation, translations_of
from keras_transformer.schema import Bounds, check_scalar
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("litert", "translating with a LiteRT model"):
    import ai_edge_litert
    from ai_edge_litert import interpreter as litert

FORMAT_VERSION = 1
MAX_THREADS = 1024
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
        low_memory: disables XNNPACK, because its kernels keep a copy of all weights. This halves
            the memory and is several times slower.

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
    >>> from keras_transformer.export import export
    >>> exported = export("build/run", "build/litert", ["a dog"], format="litert")
    >>> model = LiteRTModel("build/litert/1/model.tflite")
    >>> [translation] = model.translate("a dog")
    >>> translation.score < 0
    True
    """

    def __init__(self, path: str | Path, threads: int = 2, *, low_memory: bool = False):
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:  # True is not a number
            raise InputError(f"threads is {threads!r}, but must be from 1 to {MAX_THREADS:,}.")
        self.path, self.threads = Path(path), threads
        if self.path.is_dir():
            raise InputError(f"{path} is a directory. Use the file model.tflite in it.")
        self.metadata, self.vocabulary = _read_archive(self.path)
        self._options: dict[str, Any] = {"model_path": str(path), "num_threads": 1}
        if low_memory:
            resolver = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            self._options["experimental_op_resolver_type"] = resolver
        self._free = threading.Semaphore(threads)
        self.batch_size = 1
        self._idle = [self._new_runner()]  # the last one was used last; its memory is warm

    def _new_runner(self) -> Any:
        """Returns the function of a new interpreter, which one thread at a time may call."""
        try:
            interpreter = litert.Interpreter(**self._options)
            if "translate_batch" in interpreter.get_signature_list():
                self.batch_size = _BATCH_SIZE
                return interpreter.get_signature_runner("translate_batch")
            return interpreter.get_signature_runner("translate_ids")
        except (RuntimeError, TypeError, ValueError) as error:  # TypeError: an invalid path
            raise _runtime_error(self.path, error) from error

    @contextlib.contextmanager
    def _runner(self) -> Iterator[Any]:
        """Yields the function of an interpreter that no other thread uses."""
        with self._free:
            try:
                run = self._idle.pop()
            except IndexError:  # all interpreters are in use, but more are allowed
                run = self._new_runner()
            try:
                yield run
            finally:
                self._idle.append(run)

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
            InputError: if an argument has the wrong type.
        """
        rows = [_array("ids", [ids], np.int32) for ids in sources]
        for row, ids in zip(rows, sources, strict=True):
            if row.ndim != 2:
                raise InputError(f"ids is {ids!r}, but must be a list of numbers.")
        count = len(rows)
        limits = _array("max_length", [0] * count if max_lengths is None else max_lengths, np.int32)
        alphas = [math.nan] * count if length_penalties is None else length_penalties
        options = {
            "max_length": limits,
            "length_penalty": _array("length_penalty", alphas, np.float32),
        }
        if not rows:
            return []
        with self._runner() as run:  # the interpreter releases Python's lock while it runs
            try:
                if self.batch_size > 1:
                    lengths = [row.shape[1] for row in rows]
                    padded = np.zeros((count, max(1, *lengths)), np.int32)
                    for place, row in zip(padded, rows, strict=True):
                        place[: row.shape[1]] = row[0]
                    outputs = run(ids=padded, lengths=np.array(lengths, np.int32), **options)
                    return [_result(outputs, i) for i in range(count)]
                results = []
                for i, row in enumerate(rows):
                    chosen = {name: values[i : i + 1] for name, values in options.items()}
                    results.append(_result(run(ids=row, **chosen), 0))
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


def _read_archive(path: Path) -> tuple[LiteRTMetadata, Vocabulary]:
    try:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
            model_bytes = min(info.header_offset for info in archive.infolist())
        fields = json.loads(files.pop(_METADATA))
        version = fields.pop("format_version")
        if version != FORMAT_VERSION:
            raise InputError(
                f"the format version is {version!r}, but this program reads {FORMAT_VERSION}"
            )
        if "trained_tokens" in fields:  # the name in version 0.1.0
            fields["max_train_source_length"] = fields.pop("trained_tokens")
        checksum = fields.pop(_CHECKSUM, None)  # version 0.1.0 wrote none
        if checksum is not None and checksum != _crc32(path, model_bytes):
            raise InputError("the model before it was changed after the export")
        for name, hint in typing.get_type_hints(LiteRTMetadata, include_extras=True).items():
            check_scalar(name, hint, fields[name])
        return LiteRTMetadata(**fields), Vocabulary.from_models(files)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:  # zipfile and zlib raise many exceptions for damaged files
        reason = str(error) if isinstance(error, InputError) else repr(error)
        raise InputError(
            f"{path} has no readable vocabulary at its end: {reason}. The file is cut off or "
            "damaged, or was not written by this version of bin/export.py --format=litert."
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
