"""Checks that every answer must pass."""

import numpy as np

from tests.stress.fuzz.model import Arrays, Request, Signature

_SCORE_TOLERANCE = 1e-4
_EMPTY_SCORE = -5e8  # rows without a translation have the score -1e9
_MAX_LENGTH_PENALTY = 10.0
# Bits of `status`, as clients know them.
_CUT, _MAX_LENGTH, _PENALTY, _PREFIX, _IDS, _NO_TRANSLATION, _LENGTHS, _TARGET_CUT = (
    1 << bit for bit in range(8)
)


class Problem(Exception):
    """An answer did not pass a check."""


def first_problem(
    request: Request, signature: Signature, outputs: Arrays, alone: Arrays, max_bytes: int | None
) -> str | None:
    """Returns the first problem of an answer, or None.

    Args:
        request: the request.
        signature: its signature.
        outputs: the answer.
        alone: the answer to the known sentence in a batch of one.
        max_bytes: the export's `max_source_bytes`; None if unknown.
    """
    try:
        _require(outputs.keys() == signature.outputs.keys(), f"the outputs are {sorted(outputs)}")
        _check_form(request, signature, outputs)
        if "scores" in outputs:
            _between("scores", outputs["scores"], None, 0)
            differences = np.diff(outputs["scores"], axis=1)
            _between("differences of scores, best first,", differences, None, 0)
        _check_known(outputs, alone, request.row)
        _check_signature(request, signature, outputs)
        if request.signature == "translate" and max_bytes is not None:
            _check_truncated(request, outputs, max_bytes)
    except Problem as problem:
        return str(problem)
    return None


def _require(holds: bool | np.bool_, problem: str) -> None:
    if not holds:
        raise Problem(problem)


def _between(name: str, values: np.ndarray, least: float | None, most: float | None) -> None:
    if values.size and least is not None:
        _require(values.min() >= least, f"{name}: the minimum is {values.min()}, below {least}")
    if values.size and most is not None:
        _require(values.max() <= most, f"{name}: the maximum is {values.max()}, above {most}")


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:200]


def _check_form(request: Request, signature: Signature, outputs: Arrays) -> None:
    rows = len(next(iter(request.inputs.values())))
    for name, tensor in signature.outputs.items():
        values, shape = outputs[name], (rows, *tensor.shape[1:])
        fits = None not in shape and values.shape == shape
        _require(fits, f"{name} has the shape {values.shape} instead of {shape}")
        fits = values.dtype == (object if tensor.dtype == "string" else tensor.dtype)
        _require(fits, f"{name} has the type {values.dtype} instead of {tensor.dtype}")
        if tensor.dtype == "float32":
            _require(np.isfinite(values).all(), f"{name} has values that are not finite")
        for value in values.flat if tensor.dtype == "string" else ():
            try:
                text = value.decode()
            except UnicodeDecodeError:
                raise Problem(f"{name} has {_short(value)}, which is invalid UTF-8") from None
            is_line = not text or text.splitlines() == [text]
            _require(is_line, f"{name} has {_short(text)}, which has a line break")


def _check_known(outputs: Arrays, alone: Arrays, row: int) -> None:
    for name, values in outputs.items():
        found, expected = values[row], alone[name][0]
        if values.dtype == np.float32:
            same = np.allclose(found, expected, rtol=1e-5, atol=_SCORE_TOLERANCE)
        else:
            same = np.array_equal(found, expected)
        text = f"is {_short(found)}, but {_short(expected)} in a batch of one"
        _require(same, f"{name} of the known sentence {text}")


def _check_signature(request: Request, signature: Signature, outputs: Arrays) -> None:
    match request.signature:
        case "translate":
            _check_translate(request, signature, outputs)
        case "serving_default":
            _between("scores of the best", outputs["scores"][:, 0], _EMPTY_SCORE, None)
        case "translate_ids":
            _between("status", outputs["status"] & ~(_CUT | _IDS | _LENGTHS), 0, 0)
            _between("lengths", outputs["lengths"], 0, outputs["ids"].shape[2])
            _between("ids", outputs["ids"], 0, None)
        case "score":
            _between("lengths", outputs["lengths"], 1, None)
            _between("log_probs", outputs["log_probs"], None, 0)
        case "lengths":
            _between("used", outputs["used"], 1, None)
            _between("used beyond tokens", outputs["used"] - outputs["tokens"], None, 0)
        case "attention":
            _check_attention(outputs)
        case "tokenize":
            _between("lengths", outputs["lengths"], 1, outputs["ids"].shape[1])
            _between("ids", outputs["ids"], 0, None)


def _check_translate(request: Request, signature: Signature, outputs: Arrays) -> None:
    size, status = signature.outputs["tokens"].shape[2] or 0, outputs["status"]
    asked, penalty = request.inputs["max_length"], request.inputs["length_penalty"]
    # TensorFlow flushes subnormal numbers to 0.
    penalty = np.where(np.abs(penalty) < np.finfo(np.float32).tiny, 0, penalty)
    lengths = outputs["lengths"]
    _between("lengths", lengths, 0, size)
    limits = np.where((asked > 0) & (asked <= size), asked, size)
    _between("lengths beyond max_length", lengths - limits[:, None], None, 0)
    expected = {
        _CUT: outputs["truncated"],
        _MAX_LENGTH: (asked < 0) | (asked > size),
        _PENALTY: (penalty < 0) | (penalty > _MAX_LENGTH_PENALTY),  # NaN means "as exported"
        _NO_TRANSLATION: outputs["scores"][:, 0] <= _EMPTY_SCORE,
    }
    for bit, rows in expected.items():
        text = f"status is {status.tolist()}, but bit {bit} should be {rows.tolist()}"
        _require(np.array_equal((status & bit) > 0, rows), text)
    _between("status", status & ~(sum(expected) | _PREFIX), 0, 0)
    no_prefix = np.array([not prefix for prefix in request.inputs["prefix"]])
    _between("status without prefix", status[no_prefix] & _PREFIX, 0, 0)
    beyond = np.arange(size) >= lengths[:, :, None]
    for name, padding in {"tokens": b"", "token_scores": 0, "alignments": -1}.items():
        text = f"{name} has values other than {padding!r} beyond the length"
        _require((outputs[name][beyond] == padding).all(), text)
    _between("token_scores", outputs["token_scores"], None, 0)
    alignments = outputs["alignments"]
    source_lengths = (outputs["source_tokens"] != b"").sum(1)[:, None, None]
    _between("alignments beyond the source", alignments - source_lengths, None, -1)
    _between("alignments", alignments[~beyond], 0, None)


def _check_attention(outputs: Arrays) -> None:
    _between("status", outputs["status"] & ~(_CUT | _TARGET_CUT | _NO_TRANSLATION), 0, 0)
    lengths = {}
    for side in ("source", "target"):
        lengths[side] = outputs[f"{side}_lengths"]
        pieces = (outputs[f"{side}_tokens"] != b"").sum(1)
        _between(f"{side}_lengths", lengths[side], 1, None)
        _between(f"{side}_tokens beyond their number", pieces - lengths[side], 0, 0)
    for name, side in {"encoder": "source", "decoder": "target", "cross": "target"}.items():
        sums = outputs[name].sum(-1)  # --> [batch, layers, heads, queries]
        inside = np.arange(sums.shape[-1]) < lengths[side][:, None]
        expected = np.broadcast_to(inside[:, None, None, :], sums.shape)
        _between(name, outputs[name], 0, None)
        _between(f"sums of the rows of {name}", np.abs(sums - expected), None, 1e-4)


def _check_truncated(request: Request, outputs: Arrays, max_bytes: int) -> None:
    truncated = outputs["truncated"]
    is_long = np.array([len(text) > max_bytes for text in request.inputs["text"]])
    text = f"truncated is {truncated.tolist()}, but texts over {max_bytes} bytes are truncated"
    _require(truncated[is_long].all(), text)
    is_full = (outputs["source_tokens"][truncated & ~is_long] != b"").all()
    _require(is_full, "truncated is true for a text within the limits")
