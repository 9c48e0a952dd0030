"""The attention of a pair of sentences in every layer and head, and statistics of the heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status

Inputs = Mapping[str, Sequence[Any]]
# A function that calls a signature of a model: lists by name of the input to arrays by name of the
# output. For a server it is `lambda inputs: client.predict(inputs, "attention")`.
Ask = Callable[[Inputs], Mapping[str, Any]]

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}


class Attention(NamedTuple):
    """The attention of a pair, float32 `[layers, heads, queries, keys]`. Each row sums to 1.

    Row i of `decoder` and `cross` belongs to the i-th token that the decoder reads, from the start
    token on. In this position the decoder predicts the next token.

    Attributes:
        source_tokens: the S pieces of the source, with its end token.
        target_tokens: the T pieces that the decoder reads.
        predicted_tokens: the T pieces that follow, with the end token.
        encoder: `[N, H, S, S]`.
        decoder: `[M, H, T, T]`.
        cross: `[M, H, T, S]`.
        target_text: the target.
        status: whether anything was truncated or changed.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    predicted_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    target_text: str = ""
    status: Status = Status(0)

    def weights(self, kind: str) -> np.ndarray:
        """Returns `[layers, heads, queries, keys]` of a kind in `TITLES`."""
        found: np.ndarray = getattr(self, kind)
        return found

    def queries(self, kind: str) -> list[str]:
        """Returns the labels of the rows. In the decoder they are `read → predicted`."""
        if kind == "encoder":
            return _labels(self.source_tokens)
        pairs = zip(_labels(self.target_tokens), _labels(self.predicted_tokens), strict=True)
        return [f"{read} → {predicted}" for read, predicted in pairs]

    def keys(self, kind: str) -> list[str]:
        """Returns the labels of the columns."""
        return _labels(self.target_tokens if kind == "decoder" else self.source_tokens)

    def remarks(self) -> list[str]:
        """Returns a sentence for each problem."""
        source, target = len(self.source_tokens), len(self.target_tokens)
        sentences = {
            Status.SOURCE_CUT: f"The source is too long. Only its first {source} tokens are used.",
            Status.TARGET_CUT: f"The target is too long. Only its first {target} tokens are used.",
            Status.NOT_TRANSLATED: "The model finds no translation. The target is empty.",
        }
        return [sentence for bit, sentence in sentences.items() if bit in self.status]


def attention(ask: Ask, source: str, target: str | None = None) -> Attention:
    """Returns the attention of one pair.

    Args:
        target: the target text. None uses the model's best translation.
    """
    return read_attention(ask({"source": [source], "target": [target or ""]}))[0]


def read_attention(outputs: Mapping[str, Any]) -> list[Attention]:
    """Returns the attention of each row of the outputs of the signature `attention`."""
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    count = len(arrays["status"])
    return [_row({name: array[i] for name, array in arrays.items()}) for i in range(count)]


def _row(row: Mapping[str, Any]) -> Attention:
    s, t = int(row["source_lengths"]), int(row["target_lengths"])
    used = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
    weights = {kind: row[kind][:, :, :rows, :columns] for kind, (rows, columns) in used.items()}
    if not all(np.isfinite(each).all() for each in weights.values()):
        raise InputError("The attention is not finite. The weights of the model are damaged.")
    return Attention(
        decode_texts(row["source_tokens"][:s]),
        decode_texts(row["target_tokens"][:t]),
        decode_texts(row["predicted_tokens"][:t]),
        **weights,
        target_text=decode_texts([row["target_text"]])[0],
        status=Status(int(row["status"])),
    )


def _labels(pieces: Sequence[str]) -> list[str]:
    """Replaces SentencePiece's word marker with `_`, which is thinner."""
    return [piece.replace("\N{LOWER ONE EIGHTH BLOCK}", "_") for piece in pieces]


def decode_texts(values: Iterable[bytes]) -> list[str]:
    """Returns the strings of an output of a signature."""
    return [value.decode("utf-8", "replace") for value in values]


# Statistics of heads: means over all queries, for a query at position i and a key at position j.

MEASURES: Mapping[str, str] = {
    "entropy": "entropy of the weights, in bits",
    "distance": "distance in tokens, |i - j|",
    "diagonal": "share on the same position, j = i",
    "previous": "share on the previous position, j = i - 1",
    "next": "share on the next position, j = i + 1",
    "first": "share on the first token",
    "last": "share on the last token",
}


class HeadSummary(NamedTuple):
    """Means over many pairs.

    Attributes:
        means: kind → measure → float64 `[layers, heads]`.
        pairs: the number of pairs.
        truncated: the number of pairs that were truncated.
    """

    means: Mapping[str, Mapping[str, np.ndarray]]
    pairs: int
    truncated: int


def measure_heads(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the sum over the queries of each of `MEASURES`, float64 `[layers, heads]`.

    Args:
        weights: `[layers, heads, queries, keys]`.
    """
    weights = weights.astype(np.float64)
    queries, keys = weights.shape[-2:]
    i, j = np.indices((queries, keys))
    factors = {
        "distance": np.abs(i - j),
        "diagonal": i == j,
        "previous": j == i - 1,
        "next": j == i + 1,
        "first": j == 0,
        "last": j == keys - 1,
    }
    logarithms = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    terms = {"entropy": -logarithms} | factors
    return {name: np.sum(weights * each, axis=(-2, -1)) for name, each in terms.items()}


def summarize_heads(attentions: Iterable[Attention]) -> HeadSummary:
    """Returns the means over all queries of at least one pair. Only one pair is in memory."""
    totals: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in TITLES}
    queries = dict.fromkeys(TITLES, 0)
    pairs = truncated = 0
    for attention in attentions:
        pairs += 1
        truncated += bool(attention.status & (Status.SOURCE_CUT | Status.TARGET_CUT))
        for kind, total in totals.items():
            weights = attention.weights(kind)
            queries[kind] += weights.shape[-2]
            for name, sums in measure_heads(weights).items():
                total[name] = total.get(name, 0.0) + sums
    means = {
        kind: {name: sums / queries[kind] for name, sums in total.items()}
        for kind, total in totals.items()
    }
    return HeadSummary(means, pairs, truncated)


def format_tsv(summary: HeadSummary) -> str:
    """Returns a table with a line per head, separated by tabs. Layers and heads start at 1."""
    lines = ["\t".join(("attention", "layer", "head", *MEASURES))]
    for kind, means in summary.means.items():
        for layer, head in np.ndindex(means["entropy"].shape):
            values = [f"{means[name][layer, head]:.6f}" for name in MEASURES]
            lines.append("\t".join((kind, str(layer + 1), str(head + 1), *values)))
    return "\n".join(lines) + "\n"
