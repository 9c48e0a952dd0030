"""The attention of a pair of sentences in every layer and head, and statistics of the heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status

Inputs = Mapping[str, Sequence[Any]]
# Answers an export's signature: values by name of the input, as many of each, to arrays by name of
# the output. What `client.predict(inputs, "attention")` does, too.
Ask = Callable[[Inputs], Mapping[str, Any]]

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}


class Attention(NamedTuple):
    """The attention of a pair, float32 `[layers, heads, queries, keys]`; each row has the sum 1.

    S are the tokens of the source, with its end token; T those that the decoder reads, from the
    start token on. Row i of `decoder` and `cross` is of the i-th that is read, which predicts
    the one after it.
    """

    source_tokens: list[str]  # S pieces
    target_tokens: list[str]  # T pieces that are read
    predicted_tokens: list[str]  # T pieces: what follows each, the end token last
    encoder: np.ndarray  # [N, H, S, S]
    decoder: np.ndarray  # [M, H, T, T]
    cross: np.ndarray  # [M, H, T, S]
    target_text: str = ""
    status: Status = Status(0)

    def weights(self, kind: str) -> np.ndarray:
        """Returns `[layers, heads, queries, keys]` of a kind of `TITLES`."""
        found: np.ndarray = getattr(self, kind)
        return found

    def queries(self, kind: str) -> list[str]:
        """Returns labels of the rows; in the decoder `read → predicted`."""
        if kind == "encoder":
            return _labels(self.source_tokens)
        pairs = zip(_labels(self.target_tokens), _labels(self.predicted_tokens), strict=True)
        return [f"{read} → {predicted}" for read, predicted in pairs]

    def keys(self, kind: str) -> list[str]:
        """Returns labels of the columns."""
        return _labels(self.target_tokens if kind == "decoder" else self.source_tokens)

    def remarks(self) -> list[str]:
        """Returns a sentence for each thing that is not as was asked for."""
        limits = len(self.source_tokens), len(self.target_tokens)
        said = {
            Status.SOURCE_CUT: f"the source is longer; its first {limits[0]} tokens were taken",
            Status.TARGET_CUT: f"the target is longer; its first {limits[1]} tokens were taken",
            Status.NOT_TRANSLATED: "the model finds no translation; an empty one was taken",
        }
        return [sentence for bit, sentence in said.items() if bit in self.status]


def attention(ask: Ask, source: str, target: str | None = None) -> Attention:
    """Returns the attention of one pair.

    Args:
        ask: the signature `attention` of a model, from wherever it answers.
        source: text.
        target: text, or None for the model's own best translation.

    Raises:
        InputError: as `read_attention`.
    """
    return read_attention(ask({"source": [source], "target": [target or ""]}))[0]


def read_attention(outputs: Mapping[str, Any]) -> list[Attention]:
    """Returns the attention of each row of what the signature `attention` answers.

    Raises:
        InputError: for weights that are no numbers.
    """
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return [_row({name: array[i] for name, array in arrays.items()})
            for i in range(len(arrays["status"]))]  # fmt: skip


def _row(row: Mapping[str, Any]) -> Attention:
    s, t = int(row["source_lengths"]), int(row["target_lengths"])
    used = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
    weights = {kind: row[kind][:, :, :rows, :columns] for kind, (rows, columns) in used.items()}
    if not all(np.isfinite(each).all() for each in weights.values()):
        raise InputError("the attention is no number; expected a model whose weights are finite")
    return Attention(
        _texts(row["source_tokens"][:s]),
        _texts(row["target_tokens"][:t]),
        _texts(row["predicted_tokens"][:t]),
        **weights,
        target_text=_texts([row["target_text"]])[0],
        status=Status(int(row["status"])),
    )


def _labels(pieces: Sequence[str]) -> list[str]:
    """Returns pieces with a thinner sign in place of SentencePiece's, which begins a word."""
    return [piece.replace("\N{LOWER ONE EIGHTH BLOCK}", "_") for piece in pieces]


def _texts(values: Any) -> list[str]:
    return [value.decode("utf-8", "replace") for value in values]


# Statistics of heads.

# Means over all queries. Of a query at place i and its key at place j, counted from the start:
MEASURES: Mapping[str, str] = {
    "entropy": "entropy of its weights, in bits",
    "distance": "distance in tokens, |i - j|",
    "diagonal": "share on the same place, j = i",
    "previous": "share on the place before, j = i - 1",
    "next": "share on the place after, j = i + 1",
    "first": "share on the first token",
    "last": "share on the last token",
}


class HeadSummary(NamedTuple):
    """Means over many pairs."""

    means: Mapping[str, Mapping[str, np.ndarray]]  # kind → measure → float64 [layers, heads]
    pairs: int


def measure_heads(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the sum over the queries of each of `MEASURES`, float64 `[layers, heads]`.

    Args:
        weights: `[layers, heads, queries, keys]`.
    """
    weights = weights.astype(np.float64)
    queries, keys = weights.shape[-2:]
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    counted = {
        "distance": np.abs(i - j),
        "diagonal": i == j,
        "previous": j == i - 1,
        "next": j == i + 1,
        "first": (j == 0) & (i >= 0),
        "last": (j == keys - 1) & (i >= 0),
    }
    logarithms = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    entropy = -np.sum(weights * logarithms, axis=(-2, -1))
    return {"entropy": entropy} | {
        name: np.sum(weights * each, axis=(-2, -1)) for name, each in counted.items()
    }


def summarize_heads(attentions: Iterable[Attention]) -> HeadSummary:
    """Returns the means over all queries of some pairs, at least one; one at a time is held."""
    totals: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in TITLES}
    queries = dict.fromkeys(TITLES, 0)
    pairs = 0
    for attention in attentions:
        pairs += 1
        for kind, total in totals.items():
            weights = attention.weights(kind)
            queries[kind] += weights.shape[-2]
            for name, sums in measure_heads(weights).items():
                total[name] = total.get(name, 0.0) + sums
    means = {
        kind: {name: sums / queries[kind] for name, sums in total.items()}
        for kind, total in totals.items()
    }
    return HeadSummary(means, pairs)


def head_rows(summary: HeadSummary) -> Iterable[tuple[str, int, int, list[float]]]:
    """Yields the kind, layer and head, counted from 1, and its means in the order of `MEASURES`."""
    for kind, means in summary.means.items():
        layers, heads = means["entropy"].shape
        for layer in range(layers):
            for head in range(heads):
                values = [float(means[name][layer, head]) for name in MEASURES]
                yield kind, layer + 1, head + 1, values


def format_tsv(summary: HeadSummary) -> str:
    """Returns a header and a line a head, with tabs between."""
    lines = ["\t".join(("attention", "layer", "head", *MEASURES))]
    for kind, layer, head, values in head_rows(summary):
        lines.append("\t".join((kind, str(layer), str(head), *(f"{v:.6f}" for v in values))))
    return "\n".join(lines) + "\n"
