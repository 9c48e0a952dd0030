"""A LiteRT model, `model.tflite` of bin/export.py, used: without TensorFlow, on ai-edge-litert.

    model = LiteRTModel("model.tflite", threads=2)
    best = model.translate("A small dog runs.")[0].text

Behind the model itself the file holds a ZIP archive, which LiteRT does not look at: the
SentencePiece models and what is known of the model. So one file is all that is needed.
"""

from __future__ import annotations

import json
import math
import threading
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.inference import Translation, translations_of
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("litert", "translating with a LiteRT model"):
    import ai_edge_litert
    from ai_edge_litert import interpreter as litert

FORMAT_VERSION = 1
MAX_THREADS = 1024  # each of which is started
_ABOUT = "model.json"


class LiteRTMetadata(NamedTuple):
    """What a file says of its model.

    Attributes:
        n_best: translations of a sentence, K.
        max_source_tokens: of a source, the end token included; what is beyond is cut.
        max_source_bytes: of a source's text; what is beyond is cut.
        max_output_tokens: of a translation at most, the end token included.
        trained_tokens: of the longest source of training, or None where that is not known.
        has_text: whether the model has the signature `translate`.
    """

    n_best: int
    max_source_tokens: int
    max_source_bytes: int
    max_output_tokens: int
    trained_tokens: int | None
    has_text: bool


class LiteRTResult(NamedTuple):
    """What the search found for a sentence, best first."""

    ids: np.ndarray  # int32 [K, L]
    lengths: np.ndarray  # int32 [K], the end token included
    scores: np.ndarray  # float32 [K]
    status: int  # bits of `export.request_params.Status`


class LiteRTModel:
    """A translator in one file. It may be used by several threads, one of which it serves at once.

    Args:
        path: `model.tflite`.
        threads: that a product may use.
        low_memory: without XNNPACK, whose kernels keep a copy of all weights in an order of
            their own: some times slower, in half of the memory.
        text_in_graph: ask the signature `translate`, which has the tokenizer within, and not
            `translate_ids`. Its operations are tensorflow-text's, which loads TensorFlow.

    Attributes:
        about: what the file says.
        vocabulary: the SentencePiece models of the file.

    Raises:
        InputError: for a file that is none of bin/export.py's, or that this runtime cannot run.
    """

    def __init__(
        self,
        path: str | Path,
        threads: int = 2,
        *,
        low_memory: bool = False,
        text_in_graph: bool = False,
    ):
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:  # True is no number
            raise InputError(f"threads is {threads!r}; expected a number from 1 to {MAX_THREADS:,}")
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{path} is a directory; expected the file model.tflite in it")
        self.about, self.vocabulary = _read_archive(self.path)
        if text_in_graph and not self.about.has_text:
            raise InputError(
                f"{path} has no vocabulary in its graph, and no signature translate; expected to "
                "be asked for ids, or the export of a unigram model without byte fallback"
            )
        self._signature = "translate" if text_in_graph else "translate_ids"
        resolver = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        options: dict[str, Any] = {"model_path": str(path), "num_threads": threads}
        if low_memory:
            options["experimental_op_resolver_type"] = resolver
        kind = litert.Interpreter
        if text_in_graph:
            kind, options["custom_op_registerers"] = _with_tensorflow_text()
        try:
            self._interpreter = kind(**options)
            self._run = self._interpreter.get_signature_runner(self._signature)
        except (RuntimeError, TypeError, ValueError) as error:  # TypeError: an odd path
            raise InputError(_not_run(self.path, error)) from error
        self._lock = threading.Lock()

    def translate(
        self, text: str, max_length: int = 0, length_penalty: float = math.nan
    ) -> list[Translation]:
        """Translates one sentence.

        Args:
            text: the sentence; what is longer than the model takes is cut.
            max_length: the most tokens, the end token included; 0: as exported. It can only
                lower what the sentence's own length allows.
            length_penalty: α, from 0 to 10, else the nearer of these; NaN: as exported.

        Returns:
            What was found, best first; empty where nothing was.

        Raises:
            InputError: for what is no text, and numbers that are none.
        """
        if self._signature == "translate_ids":
            result = self.translate_ids(self.source_ids(text), max_length, length_penalty)
            return translations_of(self.texts(result), result.scores)
        given = np.array([self._cut(text)], object)
        outputs = self._outputs({"text": given}, max_length, length_penalty)
        return translations_of(outputs["translations"][0], outputs["scores"][0])

    def translate_ids(
        self, ids: Sequence[int], max_length: int = 0, length_penalty: float = math.nan
    ) -> LiteRTResult:
        """Translates the ids of one sentence; see `translate`.

        Args:
            ids: as `source_ids` returns them. An end token is added where the last is none.
            max_length, length_penalty: as `translate`'s.
        """
        if self._signature != "translate_ids":
            raise InputError(
                f"{self.path} was opened with text_in_graph, which takes text; expected it to be "
                "opened without"
            )
        given = _array("ids", ids, np.int32)
        if given.ndim != 1:
            raise InputError(f"ids has {given.ndim} dimensions; expected the ids of one sentence")
        outputs = self._outputs({"ids": given[None]}, max_length, length_penalty)
        ids_found, lengths, scores = (outputs[name][0] for name in ("ids", "lengths", "scores"))
        return LiteRTResult(ids_found, lengths, scores, int(outputs["status"][0]))

    def source_ids(self, text: str) -> list[int]:
        """Returns the ids of a sentence, with the end token, as `translate_ids` takes them."""
        return self.vocabulary.encode_source([self._cut(text)])[0]

    def texts(self, result: LiteRTResult) -> list[str]:
        """Returns the text of each hypothesis."""
        pairs = zip(result.ids, result.lengths, strict=True)
        return [self.vocabulary.target_text(ids[:length].tolist()) for ids, length in pairs]

    def lengths(self, text: str) -> tuple[int, int]:
        """Returns the tokens of a sentence, the end token included, and how many are used."""
        whole, used = map(len, self.vocabulary.encode_source([_bytes(text), self._cut(text)]))
        return whole, min(used, self.about.max_source_tokens)

    def _cut(self, text: str) -> bytes:
        """Returns the bytes of what is translated, cut between characters."""
        data, limit = _bytes(text), self.about.max_source_bytes
        if len(data) <= limit:
            return data
        # As `text.tokenizer.cut`: before the last byte that begins a character.
        begins = (i for i in range(limit, max(limit - 4, -1), -1) if data[i] & 0xC0 != 0x80)
        return data[: next(begins, limit)]

    def _outputs(
        self, inputs: dict[str, np.ndarray], max_length: int, length_penalty: float
    ) -> dict[str, np.ndarray]:
        options = {
            "max_length": _array("max_length", [max_length], np.int32),
            "length_penalty": _array("length_penalty", [length_penalty], np.float32),
        }
        with self._lock:
            try:
                outputs: dict[str, np.ndarray] = self._run(**inputs, **options)
            except (RuntimeError, ValueError) as error:
                raise InputError(_not_run(self.path, error)) from error
        return outputs


def _array(name: str, values: Any, dtype: Any) -> np.ndarray:
    """Returns numbers as an array of a dtype in which they are the same."""
    try:
        given = np.asarray(values) if len(values) else np.zeros(0, dtype)
        with np.errstate(over="ignore"):  # beyond float32 is infinite, which is clamped
            array: np.ndarray = given.astype(dtype, casting="same_kind")
        if array.dtype.kind == "i" and np.any(array != given):
            raise ValueError("it does not fit")
    except (TypeError, ValueError) as error:
        expected = np.dtype(dtype).name
        raise InputError(f"{name} is {values!r} ({error}); expected {expected}") from error
    return array


def _bytes(text: str) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"{text!r} is no text; expected a str")
    # Bytes that are no text, which surrogates stand for, become U+FFFD as in a SavedModel.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def append_archive(path: Path, about: LiteRTMetadata, vocabulary: Vocabulary) -> None:
    """Puts what `LiteRTModel` reads behind the model in a file."""
    fields = {"format_version": FORMAT_VERSION, **about._asdict()}
    # A date of its own would make equal models differ.
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_ABOUT), json.dumps(fields))
        for name, model in vocabulary.models().items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, model)


def _read_archive(path: Path) -> tuple[LiteRTMetadata, Vocabulary]:
    try:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        fields = json.loads(files.pop(_ABOUT))
        version = fields.pop("format_version")
        if version != FORMAT_VERSION:
            raise InputError(
                f"{path} has the format {version!r}; expected {FORMAT_VERSION}, or a "
                "keras_transformer as new as the file"
            )
        return LiteRTMetadata(**_checked(fields)), Vocabulary.of(files)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); expected what bin/export.py "
            "--format=litert writes"
        ) from error
    except (
        zipfile.BadZipFile, zlib.error, KeyError, TypeError, ValueError, RecursionError,
        NotImplementedError, EOFError, RuntimeError, AttributeError,
    ) as error:  # fmt: skip
        raise InputError(
            f"{path} has no vocabulary at its end ({error!r}): it is cut "
            "off, or none of bin/export.py's; expected a whole file of --format=litert"
        ) from error


def _checked(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in (
        "n_best",
        "max_source_tokens",
        "max_source_bytes",
        "max_output_tokens",
        "trained_tokens",
    ):
        value = fields[name]
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not is_count and (name != "trained_tokens" or value is not None):
            raise ValueError(f"{name} is {value!r}")
    if not isinstance(fields["has_text"], bool):
        raise ValueError(f"has_text is {fields['has_text']!r}")
    return fields


def _with_tensorflow_text() -> tuple[Any, Any]:
    try:
        from tensorflow_text.core.pybinds import tflite_registrar
    except ImportError as error:
        raise InputError(
            f"the signature translate needs tensorflow-text's operations ({error}); expected pip "
            "install tensorflow-text, or the signature translate_ids, which needs none"
        ) from error
    return litert.InterpreterWithCustomOps, tflite_registrar.SELECT_TFTEXT_OPS


def _not_run(path: Path, error: Exception) -> str:
    """Returns what is wrong, in a sentence, with what to do."""
    reason = " ".join(str(error).split())[:300]
    version = ai_edge_litert.__version__
    if "custom op" in reason:
        advice = "tensorflow-text's operations in the runtime, or the signature translate_ids"
    elif "Didn't find op" in reason:
        advice = "a newer ai-edge-litert"
    else:
        advice = "a file that bin/export.py --format=litert has written"
    return f"{path} cannot be run by ai-edge-litert {version} ({reason}); expected {advice}"
