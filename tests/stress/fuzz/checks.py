"""What has to be true of every answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.stress.fuzz.process import Arrays, Signature, Tensor
from tests.stress.fuzz.requests import Request

_SCORE_TOLERANCE = 1e-4
_NOTHING = -5e8  # the score of a place that no translation fills is -1e9
_MAX_LENGTH_PENALTY = 10.0
# Bits of `status`, as clients know them.
_CUT, _MAX_LENGTH, _PENALTY, _PREFIX, _IDS, _NOTHING_FOUND, _LENGTHS, _TARGET_CUT = (
    1 << bit for bit in range(8)
)


def first_problem(
    request: Request,
    signature: Signature,
    outputs: Arrays,
    alone: Arrays | None,
    max_bytes: int | None,
) -> str | None:
    """Returns the first thing that is wrong with an answer, or None.

    Args:
        request: what was asked.
        signature: what it is answered with.
        outputs: the answer.
        alone: that to the known row by itself; None where the request has none.
        max_bytes: the export's `max_source_bytes`, where it is known.
    """
    return next(_problems(request, signature, outputs, alone, max_bytes), None)


def _problems(
    request: Request,
    signature: Signature,
    outputs: Arrays,
    alone: Arrays | None,
    max_bytes: int | None,
) -> Iterator[str]:
    if outputs.keys() != signature.outputs.keys():
        yield f"the outputs are {sorted(outputs)}"
        return
    for name, tensor in signature.outputs.items():
        yield from _form(name, tensor, outputs[name], len(request.kinds))
        if tensor.dtype == "string":
            yield from _text(name, outputs[name])
    if "scores" in outputs:
        yield from _scores(outputs["scores"])
    if alone is not None and request.place is not None:
        yield from _same(outputs, alone, request.place)
    if request.signature == "translate":
        yield from _translate(request, signature, outputs)
        yield from _truncated(request, outputs, max_bytes)
    elif request.signature == "serving_default":
        yield from _outside("scores of the best", outputs["scores"][:, 0], _NOTHING, None)
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
        yield f"{name} has the shape {values.shape}; expected {shape}"
    if values.dtype != (object if tensor.dtype == "string" else tensor.dtype):
        yield f"{name} has the type {values.dtype}; expected {tensor.dtype}"
    if tensor.dtype == "float32" and not np.isfinite(values).all():
        yield f"{name} has values that are not finite"


def _text(name: str, values: np.ndarray) -> Iterator[str]:
    for value in values.flat:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            yield f"{name} has {_short(value)}, which is no UTF-8"
            return
        if text and text.splitlines() != [text]:
            yield f"{name} has {_short(text)}, which has a line break"


def _scores(scores: np.ndarray) -> Iterator[str]:
    yield from _outside("scores", scores, None, 0)
    yield from _outside("differences of scores, best first,", np.diff(scores, axis=1), None, 0)


def _same(outputs: Arrays, alone: Arrays, place: int) -> Iterator[str]:
    for name, values in outputs.items():
        one, other = values[place], alone[name][0]
        if values.dtype == np.float32:
            same = np.allclose(one, other, rtol=1e-5, atol=_SCORE_TOLERANCE)
        else:
            same = np.array_equal(one, other)
        if not same:
            yield f"{name} of the known row is {_short(one)}; alone it is {_short(other)}"


def _translate(request: Request, signature: Signature, outputs: Arrays) -> Iterator[str]:
    places, status = signature.outputs["tokens"].shape[2] or 0, outputs["status"]
    asked, penalty = request.inputs["max_length"], request.inputs["length_penalty"]
    # TensorFlow takes numbers too small for float32's full precision for 0.
    penalty = np.where(np.abs(penalty) < np.finfo(np.float32).tiny, 0, penalty)
    lengths = outputs["lengths"]
    yield from _outside("lengths", lengths, 0, places)
    limits = np.where((asked > 0) & (asked <= places), asked, places)
    yield from _outside("lengths beyond max_length", lengths - limits[:, None], None, 0)
    expected = {
        _CUT: outputs["truncated"],
        _MAX_LENGTH: (asked < 0) | (asked > places),
        _PENALTY: ~((penalty >= 0) & (penalty <= _MAX_LENGTH_PENALTY)),
        _NOTHING_FOUND: outputs["scores"][:, 0] <= _NOTHING,
    }
    for bit, condition in expected.items():
        if not np.array_equal((status & bit) > 0, condition):
            yield f"status is {status.tolist()}; expected bit {bit} where {condition.tolist()}"
    yield from _outside("status", status & ~(sum(expected) | _PREFIX), 0, 0)
    no_prefix = np.array([not prefix for prefix in request.inputs["prefix"]])
    yield from _outside("status without prefix", status[no_prefix] & _PREFIX, 0, 0)
    beyond = np.arange(places) >= lengths[:, :, None]
    for name, nothing in {"tokens": b"", "token_scores": 0, "alignments": -1}.items():
        if (outputs[name][beyond] != nothing).any():
            yield f"{name} has more than {nothing!r} beyond the length"
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
    yield from _outside("status", outputs["status"] & ~(_CUT | _TARGET_CUT | _NOTHING_FOUND), 0, 0)
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
        yield f"truncated is {truncated.tolist()}, but texts of more than {max_bytes} bytes are cut"
    if (source[truncated & ~is_long] == b"").any():
        yield "truncated is true of a text that has fewer bytes and tokens than the caps"


def _outside(
    name: str, values: np.ndarray, least: float | None, most: float | None
) -> Iterator[str]:
    if not values.size:
        return
    if least is not None and values.min() < least:
        yield f"{name}: the least is {values.min()}; expected at least {least}"
    if most is not None and values.max() > most:
        yield f"{name}: the most is {values.max()}; expected at most {most}"


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:200]
