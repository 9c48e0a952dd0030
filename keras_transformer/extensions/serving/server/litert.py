"""A LiteRT model behind the signatures of a SavedModel, without TensorFlow."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.litert.engine import LiteRTModel, LiteRTResult
from keras_transformer.extensions.serving.server.batching import (
    Arrays,
    RequestError,
)
from keras_transformer.extensions.serving.server.protos import (
    meta_graph_pb2,
    tensor_info,
)

# Bits of export.request_params.Status, whose module loads TensorFlow.
_SOURCE_CUT = 1
_LENGTHS_CHANGED = 64
_M_ARENA_MAX = -8  # an option of glibc's mallopt


class LiteRTEngine:
    """A `models.Engine` of a LiteRT model. It has the signatures that such a model can answer.

    The inputs and outputs are the same as those of a SavedModel, except that `translate` has no
    `prefix`, `token_scores` and `alignments`. Each call of `run` translates on one core.

    Args:
        path: `model.tflite`.
        batches_at_once: number of calls of `run` at the same time.

    Raises:
        InputError: if the file is damaged.
    """

    name = "LiteRT"

    def __init__(self, path: Path, batches_at_once: int):
        # Otherwise each thread keeps freed memory of its own: 283 instead of 258 MB for `small`.
        with contextlib.suppress(AttributeError, OSError):  # not glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
        self._model = LiteRTModel(path, batches_at_once)
        metadata = self._model.metadata
        self._best = metadata.n_best
        self._source_width = metadata.max_source_tokens
        self._target_width = metadata.max_output_tokens
        vocabulary = self._model.vocabulary
        self._pieces = [
            np.array([each.encode() for each in p], object) for p in vocabulary.pieces()
        ]
        self._symbols = sorted(each.encode() for each in vocabulary.source_symbols())
        self.signatures: Mapping[str, Any] = {
            name: meta_graph_pb2.SignatureDef(
                inputs=inputs, outputs=outputs, method_name="tensorflow/serving/predict"
            )
            for name, (inputs, outputs) in self._infos().items()
        }
        self._functions: dict[str, Callable[..., Arrays]] = {
            "serving_default": self._translate,
            "translate": self._translate,
            "translate_ids": self._translate_ids,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "lengths": self._lengths,
            "symbols": self._known_symbols,
        }

    def _infos(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Returns TensorInfo of the inputs and outputs of each signature."""
        best, source, target = self._best, self._source_width, self._target_width
        text, number = tensor_info(object), tensor_info(np.int32)
        best_texts, scores = tensor_info(object, best), tensor_info(np.float32, best)
        lengths = tensor_info(np.int32, best)
        ids = {
            width: {"ids": tensor_info(np.int32, width), "lengths": number}
            for width in (source, target)
        }
        return {
            "serving_default": ({"text": text}, {"translations": best_texts, "scores": scores}),
            "translate": (
                {"text": text, "max_length": number, "length_penalty": tensor_info(np.float32)},
                {
                    "translations": best_texts,
                    "scores": scores,
                    "lengths": lengths,
                    "tokens": tensor_info(object, best, target),
                    "source_tokens": tensor_info(object, source),
                    "truncated": tensor_info(bool),
                    "status": number,
                },
            ),
            "translate_ids": (
                ids[source],
                {
                    "ids": tensor_info(np.int32, best, target),
                    "lengths": lengths,
                    "scores": scores,
                    "status": number,
                },
            ),
            "tokenize": ({"text": text}, {**ids[source], "tokens": tensor_info(object, source)}),
            "detokenize": (ids[target], {"text": text}),
            "lengths": ({"text": text}, dict.fromkeys(("tokens", "used", "unknown"), number)),
            "symbols": ({"text": text}, {"symbols": tensor_info(object, len(self._symbols))}),
        }

    def max_rows(self, signature: str) -> int | None:
        """Returns the best number of sentences for translations, and None for the rest."""
        translates = signature in ("serving_default", "translate", "translate_ids")
        return self._model.batch_size if translates else None

    def run(self, signature: str, outputs: Sequence[str], inputs: Arrays) -> Arrays:
        """Returns the named outputs of a signature. It is thread-safe.

        Raises:
            RequestError: if LiteRT fails.
        """
        try:
            return self._functions[signature](outputs, **inputs)
        except InputError as error:
            raise RequestError(grpc.StatusCode.INTERNAL, str(error)) from error

    def warm_up(self, run: Callable[[str, Arrays], object], max_bytes: int) -> None:
        """Makes all interpreters, and answers a request."""
        self._model.warm_up()
        run("serving_default", {"text": np.array([b"warm up"], object)})

    def close(self) -> None:
        """Frees the memory of the model when no call uses it."""
        del self._model
        # The C library keeps freed memory for the thread that allocated it, here the warm-up's.
        with contextlib.suppress(AttributeError, OSError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)

    def _translate(
        self,
        outputs: Sequence[str],
        text: np.ndarray,
        max_length: np.ndarray | None = None,
        length_penalty: np.ndarray | None = None,
    ) -> Arrays:
        model, rows = self._model, len(text)
        lengths = [0] * rows if max_length is None else max_length.tolist()
        penalties = [math.nan] * rows if length_penalty is None else length_penalty.tolist()
        lines = [_decoded(each) for each in text]
        sources = [model.source_ids(line) for line in lines]
        found = model.translate_batch(sources, lengths, penalties)
        texts = [[each.encode() for each in model.texts(result)] for result in found]
        is_cut = [
            len(model.truncate(line)) < len(each) or bool(result.status & _SOURCE_CUT)
            for line, each, result in zip(lines, text, found, strict=True)
        ]
        status = [
            result.status | (_SOURCE_CUT if cut else 0)
            for result, cut in zip(found, is_cut, strict=True)
        ]
        makers: dict[str, Callable[[], np.ndarray]] = {
            "translations": lambda: np.array(texts, object).reshape(rows, self._best),
            "scores": lambda: np.array([each.scores for each in found], np.float32),
            "lengths": lambda: np.array([each.lengths for each in found], np.int32),
            "tokens": lambda: np.array([self._target_pieces(each) for each in found], object),
            "source_tokens": lambda: self._source_rows(sources)["tokens"],
            "truncated": lambda: np.array(is_cut, bool),
            "status": lambda: np.array(status, np.int32),
        }
        return {name: makers[name]() for name in outputs}

    def _translate_ids(
        self, outputs: Sequence[str], ids: np.ndarray, lengths: np.ndarray
    ) -> Arrays:
        counts = np.clip(lengths, 0, self._source_width)
        found = self._model.translate_batch(
            [row[:count].tolist() for row, count in zip(ids, counts, strict=True)]
        )
        padded = np.full((len(ids), self._best, self._target_width), self._pad_id, np.int32)
        for row, result in zip(padded, found, strict=True):
            row[:, : result.ids.shape[1]] = result.ids
        status = np.array([each.status for each in found], np.int32)
        status += np.where((lengths < 0) | (lengths > self._source_width), _LENGTHS_CHANGED, 0)
        makers = {
            "ids": padded,
            "lengths": np.array([each.lengths for each in found], np.int32),
            "scores": np.array([each.scores for each in found], np.float32),
            "status": status.astype(np.int32),
        }
        return {name: makers[name] for name in outputs}

    def _tokenize(self, outputs: Sequence[str], text: np.ndarray) -> Arrays:
        rows = self._source_rows([self._model.source_ids(_decoded(each)) for each in text])
        return {name: rows[name] for name in outputs}

    def _detokenize(self, outputs: Sequence[str], ids: np.ndarray, lengths: np.ndarray) -> Arrays:
        vocabulary = self._model.vocabulary
        texts = [
            vocabulary.target_text(row[: max(0, count)].tolist()).encode()
            for row, count in zip(ids, lengths.tolist(), strict=True)
        ]
        return dict.fromkeys(outputs, np.array(texts, object))

    def _lengths(self, outputs: Sequence[str], text: np.ndarray) -> Arrays:
        limit = 2 * self._model.metadata.max_source_bytes  # as in a SavedModel
        counts = [self._model.lengths(_decoded(each[:limit])) for each in text]
        columns = np.array(counts, np.int32).reshape(-1, 3).T
        named = dict(zip(("tokens", "used", "unknown"), columns, strict=True))
        return {name: named[name] for name in outputs}

    def _known_symbols(self, outputs: Sequence[str], text: np.ndarray) -> Arrays:
        row = np.array(self._symbols, object).reshape(1, -1)
        return dict.fromkeys(outputs, np.repeat(row, len(text), axis=0))

    @property
    def _pad_id(self) -> int:
        return self._model.vocabulary.pad_id

    def _source_rows(self, sources: Iterable[Sequence[int]]) -> Arrays:
        """Returns `ids`, `tokens` and `lengths` of sources, truncated and padded."""
        rows = list(sources)
        width = self._source_width
        ids = np.full((len(rows), width), self._pad_id, np.int32)
        lengths = np.array([min(len(row), width) for row in rows], np.int32)
        for place, row, length in zip(ids, rows, lengths, strict=True):
            place[:length] = [*row[: length - 1], row[-1]]  # the end token stays
        is_token = np.arange(width) < lengths[:, None]
        return {
            "ids": ids,
            "tokens": np.where(is_token, self._pieces[0][ids], b""),
            "lengths": lengths,
        }

    def _target_pieces(self, result: LiteRTResult) -> np.ndarray:
        """Returns the pieces of a result, bytes `(n_best, max_output_tokens)`, then b""."""
        pieces = np.full((self._best, self._target_width), b"", object)
        width = result.ids.shape[1]
        is_token = np.arange(width) < result.lengths[:, None]
        pieces[:, :width] = np.where(is_token, self._pieces[1][result.ids], b"")
        return pieces


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
