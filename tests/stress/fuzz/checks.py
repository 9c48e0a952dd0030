"""Checks that every answer must pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.stress.fuzz.model import Arrays, Request, Signature, Tensor

_SCORE_TOLERANCE = 1e-4
_EMPTY_SCORE = -5e8  # places without a translation have the score -1e9
_MAX_LENGTH_PENALTY = 10.0
# Bits of `status`, as clients know them.
_CUT, _MAX_LENGTH, _PENALTY, _PREFIX, _IDS, _NO_TRANSLATION, _LENGTHS, _TARGET_CUT = (
    1 << bit for bit in range(8)
)


def first_problem(
    request: Request,
    signature: Signature,
    outputs: Arrays,
    alone: Arrays,
    max_bytes: int | None,
) -> str | None:
    """Returns the first problem of an answer, or None.

    Args:
        request: the request.
        signature: its signature.
        outputs: the answer.
        alone: the answer to the known sentence in a batch of one.
        max_bytes: the export's `max_source_bytes`; None if unknown.
    """
    return next(_problems(request, signature, outputs, alone, max_bytes), None)


def _problems(
    request: Request, signature: Signature, outputs: Arrays, alone: Arrays, max_bytes: int | None
) -> Iterator[str]:
    if outputs.keys() != signature.outputs.keys():
        yield f"the outputs are {sorted(outputs)}"
        return
    rows = len(next(iter(request.inputs.values())))
    for name, tensor in signature.outputs.items():
        yield from _form(name, tensor, outputs[name], rows)
        if tensor.dtype == "string":
            yield from _text(name, outputs[name])
    if "scores" in outputs:
        yield from _scores(outputs["scores"])
    yield from _same(outputs, alone, request.index)
    if request.signature == "translate":
        yield from _translate(request, signature, outputs)
        yield from _truncated(request, outputs, max_bytes)
    elif request.signature == "serving_default":
        yield from _outside("scores of the best", outputs["scores"][:, 0], _EMPTY_SCORE, None)
    elif request.signature == "translate_ids":
        yield from _outside("status", outputs["status"] & ~(_CUT | _IDS | _LENGTHS), 0, 0)
        yield from _outside("lengths", outputs["lengths"], 0, outputs["ids"].shape[2])
        yield from _outside("ids", outputs["ids"], 0, None)
    elif request.signature == "score":
        yield from _outside("lengths", outputs["lengths"], 1, None)
        yield from _outside("log_probs", outputs["log_probs"], None, 0)
    elif request.signature == "lengths":
        yield from _outside("used", outputs["used"], 1, None)
        yield from _outside("used beyond tokens", outputs["used"] - outputs["tokens"], None, 0)
    elif request.signature == "attention":
        yield from _attention(outputs)
    elif request.signature == "tokenize":
        yield from _outside("lengths", outputs["lengths"], 1, outputs["ids"].shape[1])
        yield from _outside("ids", outputs["ids"], 0, None)


def _form(name: str, tensor: Tensor, values: np.ndarray, rows: int) -> Iterator[str]:
    shape = (rows, *tensor.shape[1:])
    if None in shape or values.shape != shape:
        yield f"{name} has the shape {values.shape} instead of {shape}"
    if values.dtype != (object if tensor.dtype == "string" else tensor.dtype):
        yield f"{name} has the type {values.dtype} instead of {tensor.dtype}"
    if tensor.dtype == "float32" and not np.isfinite(values).all():
        yield f"{name} has values that are not finite"


def _text(name: str, values: np.ndarray) -> Iterator[str]:
    for value in values.flat:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            yield f"{name} has {_short(value)}, which is invalid UTF-8"
            return
        if text and text.splitlines() != [text]:
            yield f"{name} has {_short(text)}, which has a line break"


def _scores(scores: np.ndarray) -> Iterator[str]:
    yield from _outside("scores", scores, None, 0)
    yield from _outside("differences of scores, best first,", np.diff(scores, axis=1), None, 0)


def _same(outputs: Arrays, alone: Arrays, index: int) -> Iterator[str]:
    for name, values in outputs.items():
        one, other = values[index], alone[name][0]
        if values.dtype == np.float32:
            same = np.allclose(one, other, rtol=1e-5, atol=_SCORE_TOLERANCE)
        else:
            same = np.array_equal(one, other)
        if not same:
            alone_text = f"but {_short(other)} in a batch of one"
            yield f"{name} of the known sentence is {_short(one)}, {alone_text}"


def _translate(request: Request, signature: Signature, outputs: Arrays) -> Iterator[str]:
    places, status = signature.outputs["tokens"].shape[2] or 0, outputs["status"]
    asked, penalty = request.inputs["max_length"], request.inputs["length_penalty"]
    # TensorFlow flushes subnormal numbers to 0.
    penalty = np.where(np.abs(penalty) < np.finfo(np.float32).tiny, 0, penalty)
    lengths = outputs["lengths"]
    yield from _outside("lengths", lengths, 0, places)
    limits = np.where((asked > 0) & (asked <= places), asked, places)
    yield from _outside("lengths beyond max_length", lengths - limits[:, None], None, 0)
    expected = {
        _CUT: outputs["truncated"],
        _MAX_LENGTH: (asked < 0) | (asked > places),
        _PENALTY: (penalty < 0) | (penalty > _MAX_LENGTH_PENALTY),  # NaN means "as exported"
        _NO_TRANSLATION: outputs["scores"][:, 0] <= _EMPTY_SCORE,
    }
    for bit, condition in expected.items():
        if not np.array_equal((status & bit) > 0, condition):
            yield f"status is {status.tolist()}, but bit {bit} should be {condition.tolist()}"
    yield from _outside("status", status & ~(sum(expected) | _PREFIX), 0, 0)
    no_prefix = np.array([not prefix for prefix in request.inputs["prefix"]])
    yield from _outside("status without prefix", status[no_prefix] & _PREFIX, 0, 0)
    beyond = np.arange(places) >= lengths[:, :, None]
    for name, padding in {"tokens": b"", "token_scores": 0, "alignments": -1}.items():
        if (outputs[name][beyond] != padding).any():
            yield f"{name} has values other than {padding!r} beyond the length"
    yield from _outside("token_scores", outputs["token_scores"], None, 0)
    source_lengths = (outputs["source_tokens"] != b"").sum(1)
    yield from _outside(
        "alignments beyond the source",
        outputs["alignments"] - source_lengths[:, None, None],
        None,
        -1,
    )
    yield from _outside("alignments", outputs["alignments"][~beyond], 0, None)


def _attention(outputs: Arrays) -> Iterator[str]:
    yield from _outside("status", outputs["status"] & ~(_CUT | _TARGET_CUT | _NO_TRANSLATION), 0, 0)
    lengths = {}
    for side in ("source", "target"):
        lengths[side] = outputs[f"{side}_lengths"]
        pieces = (outputs[f"{side}_tokens"] != b"").sum(1)
        yield from _outside(f"{side}_lengths", lengths[side], 1, None)
        yield from _outside(f"{side}_tokens beyond their number", pieces - lengths[side], 0, 0)
    for name, side in {"encoder": "source", "decoder": "target", "cross": "target"}.items():
        sums = outputs[name].sum(-1)  # --> [batch, layers, heads, queries]
        inside = np.arange(sums.shape[-1]) < lengths[side][:, None]
        expected = np.broadcast_to(inside[:, None, None, :], sums.shape)
        yield from _outside(name, outputs[name], 0, None)
        yield from _outside(f"sums of the rows of {name}", np.abs(sums - expected), None, 1e-4)


def _truncated(request: Request, outputs: Arrays, max_bytes: int | None) -> Iterator[str]:
    truncated, source = outputs["truncated"], outputs["source_tokens"]
    if max_bytes is None:
        return
    is_long = np.array([len(text) > max_bytes for text in request.inputs["text"]])
    if not truncated[is_long].all():
        yield f"truncated is {truncated.tolist()}, but texts over {max_bytes} bytes are truncated"
    if (source[truncated & ~is_long] == b"").any():
        yield "truncated is true for a text within the limits"


def _outside(
    name: str, values: np.ndarray, least: float | None, most: float | None
) -> Iterator[str]:
    if not values.size:
        return
    if least is not None and values.min() < least:
        yield f"{name}: the minimum is {values.min()}, below {least}"
    if most is not None and values.max() > most:
        yield f"{name}: the maximum is {values.max()}, above {most}"


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:200]
