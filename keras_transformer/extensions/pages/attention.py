"""Attention in every layer and head, statistics of the heads, and sentence embeddings.

The functions call a model through its signatures, so that a run, an export and a server give the
same.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.page import render
from keras_transformer.inference import Languages, Status
from keras_transformer.inference.batching import outputs_by_line
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.tags import add_missing_tags
from keras_transformer.inference.translate import with_languages

# A function that calls a signature of a model: lists by name of the input to arrays by name of the
# output. For a server it is `lambda inputs: client.predict(inputs, "attention")`.
Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
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


class VisibleModel(NamedTuple):
    """A run, an ensemble or an export. For an ensemble, attention is from its first model.

    Attributes:
        label: the path of the model.
        signatures: functions from lists of inputs to arrays, by name.
        positions: a function from `{"count": n}` to `source` and `target`, float32 `[n, d_model]`,
            and `learned`, bool.
        owner: the object that keeps the weights alive.
    """

    label: str
    signatures: Mapping[str, Ask]
    positions: Ask
    owner: Any


def open_visible_model(
    model_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    languages: Languages = (None, None),
) -> VisibleModel:
    """Opens a model; `settings` change the configuration of a run.

    The languages are those of a model with several, if they are not its default ones.
    """
    import tensorflow as tf

    from keras_transformer.export.saved_model.signatures import Signatures

    def of_lists(function: Any) -> Ask:
        def ask(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            columns = {name: tf.constant(column) for name, column in inputs.items()}
            if (tag := model.source_tag) is not None:
                for name in columns.keys() & {"text", "source"}:
                    columns[name] = add_missing_tags(columns[name], tag, model.symbols)
            return {name: array.numpy() for name, array in function(**columns).items()}

        return ask

    model = with_languages(load_model(model_dir, settings), *languages)
    owner: Any = getattr(model, "loaded", None)
    if isinstance(model, KerasEngine):
        owner = Signatures(model.module)
        functions, positions = owner.by_name(), owner.positions
    else:
        functions = dict(getattr(owner, "signatures", {}))
        positions = getattr(owner, "positions", None)
    if "attention" not in functions or positions is None:
        raise InputError(
            f"{model.label} does not return its attention, like LiteRT models and older exports. "
            "Use the run directory, or a new SavedModel."
        )
    signatures = {name: of_lists(function) for name, function in functions.items()}
    return VisibleModel(model.label, signatures, of_lists(positions), owner)


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

    @property
    def kinds(self) -> list[str]:
        """The kinds that the model has. A decoder with an `SSRU` has no self-attention."""
        return [kind for kind in TITLES if self.weights(kind).size]

    def queries(self, kind: str) -> list[str]:
        """Returns the labels of the rows. In the decoder they are `read → predicted`."""
        if kind == "encoder":
            return label_pieces(self.source_tokens)
        pairs = zip(
            label_pieces(self.target_tokens), label_pieces(self.predicted_tokens), strict=True
        )
        return [f"{read} → {predicted}" for read, predicted in pairs]

    def keys(self, kind: str) -> list[str]:
        """Returns the labels of the columns."""
        return label_pieces(self.target_tokens if kind == "decoder" else self.source_tokens)

    def remarks(self) -> list[str]:
        """Returns a sentence for each problem."""
        return status_remarks(self.status, len(self.source_tokens), len(self.target_tokens))


def status_remarks(status: Status, source_tokens: int, target_tokens: int = 0) -> list[str]:
    """Returns a sentence for each problem that a model reports."""
    sentences = {
        Status.SOURCE_CUT: f"The source is too long. Only its first {source_tokens} tokens are "
        "used.",
        Status.TARGET_CUT: f"The target is too long. Only its first {target_tokens} tokens are "
        "used.",
        Status.LENGTH_PENALTY_CHANGED: "The length penalty is out of range. The nearest valid "
        "value is used.",
        Status.PREFIX_CUT: "The beginning of the translation is too long.",
        Status.NOT_TRANSLATED: "The model finds no translation.",
    }
    return [sentence for bit, sentence in sentences.items() if bit in status]


def attention(ask: Ask, source: str, target: str | None = None) -> Attention:
    """Returns the attention of one pair. Without a target, uses the model's best translation."""
    return read_attention(ask({"source": [source], "target": [target or ""]}))[0]


def read_attention(outputs: Mapping[str, Any]) -> list[Attention]:
    """Returns the attention of each row of the outputs of the signature `attention`."""
    pairs = []
    for i in range(len(outputs["status"])):
        row = {name: np.asarray(values)[i] for name, values in outputs.items()}
        s, t = int(row["source_lengths"]), int(row["target_lengths"])
        pair = Attention(
            decode_texts(row["source_tokens"][:s]),
            decode_texts(row["target_tokens"][:t]),
            decode_texts(row["predicted_tokens"][:t]),
            row["encoder"][:, :, :s, :s],
            # A server returns nothing for no layers.
            row["decoder"][:, :, :t, :t] if row["decoder"].size else np.zeros((0, 1, t, t)),
            row["cross"][:, :, :t, :s],
            decode_texts([row["target_text"]])[0],
            Status(int(row["status"])),
        )
        if not all(np.isfinite(pair.weights(kind)).all() for kind in pair.kinds):
            raise InputError("The attention is not finite. The weights of the model are damaged.")
        pairs.append(pair)
    return pairs


def label_pieces(pieces: Iterable[str]) -> list[str]:
    """Replaces SentencePiece's word marker with `_`, which is thinner."""
    return [piece.replace("\N{LOWER ONE EIGHTH BLOCK}", "_") for piece in pieces]


def decode_texts(values: Iterable[bytes]) -> list[str]:
    """Returns the strings of an output of a signature."""
    return [value.decode("utf-8", "replace") for value in values]


def attention_page(pair: Attention, known: Mapping[str, str]) -> str:
    """Returns an interactive page: lines and a matrix for a chosen layer and head.

    `known` has facts about the pair, such as {"Source": "A dog ."}.
    """
    data = {}
    for kind in pair.kinds:
        weights = pair.weights(kind)
        rounded = np.round(255 * np.clip(weights, 0, 1)).astype(np.uint8)
        data[kind] = {
            "queries": pair.queries(kind),
            "keys": pair.keys(kind),
            "layers": weights.shape[0],
            "heads": weights.shape[1],
            "weights": base64.b64encode(rounded.tobytes()).decode(),
        }
    kinds = {kind: TITLES[kind] for kind in pair.kinds}
    values = {"known": known, "remarks": pair.remarks(), "kinds": kinds}
    return render("attention", data={"attentions": data}, **values)


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

    def as_tsv(self) -> str:
        """Returns a table with a line per head, separated by tabs. Layers and heads start at 1."""
        lines = ["\t".join(("attention", "layer", "head", *MEASURES))]
        for kind, means in self.means.items():
            for layer, head in np.ndindex(means["entropy"].shape):
                values = [f"{means[name][layer, head]:.6f}" for name in MEASURES]
                lines.append("\t".join((kind, str(layer + 1), str(head + 1), *values)))
        return "\n".join(lines) + "\n"


def measure_heads(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the sum over the queries of each of `MEASURES`, float64 `[layers, heads]`.

    The weights are `[layers, heads, queries, keys]`.
    """
    weights = weights.astype(np.float64)
    queries, keys = weights.shape[-2:]
    i, j = np.indices((queries, keys))
    factors = {
        "entropy": -np.log2(weights, where=weights > 0, out=np.zeros_like(weights)),
        "distance": np.abs(i - j),
        "diagonal": i == j,
        "previous": j == i - 1,
        "next": j == i + 1,
        "first": j == 0,
        "last": j == keys - 1,
    }
    return {name: np.sum(weights * factor, axis=(-2, -1)) for name, factor in factors.items()}


def summarize_heads(attentions: Iterable[Attention]) -> HeadSummary:
    """Returns the means over all queries of at least one pair. Only one pair is in memory."""
    totals: dict[str, dict[str, np.ndarray]] = {}
    queries = dict.fromkeys(TITLES, 0)
    pairs = truncated = 0
    for pair in attentions:
        pairs += 1
        truncated += bool(pair.status & (Status.SOURCE_CUT | Status.TARGET_CUT))
        for kind in pair.kinds:
            total = totals.setdefault(kind, {})
            queries[kind] += pair.weights(kind).shape[-2]
            for name, sums in measure_heads(pair.weights(kind)).items():
                total[name] = total.get(name, 0.0) + sums
    means = {
        kind: {name: sums / queries[kind] for name, sums in total.items()}
        for kind, total in totals.items()
    }
    return HeadSummary(means, pairs, truncated)


def embed(ask: Ask, sentences: Sequence[str]) -> np.ndarray:
    """Returns the mean encoder output of each sentence, float32 `[N, d_model]`."""
    rows = outputs_by_line(lambda text: ask({"text": text}), sentences)
    result = np.stack([row["embeddings"] for row in rows])
    if not np.isfinite(result).all():
        raise InputError("The embeddings are not finite. The weights of the model are damaged.")
    return result


def project(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projects vectors `[N, d]` to their first two principal components, `[N, 2]`.

    The sign of each axis is chosen so that its largest component is positive. The second result is
    the share of the variance that each axis shows.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = np.pad(axes, [[0, 2], [0, 0]])[:2]  # one sentence, or one number, has only one
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    variances = np.pad(lengths**2, [0, 1])
    explained = variances[:2] / max(variances.sum(), np.finfo(np.float64).tiny)
    return centred @ (axes * np.sign(largest)).T, explained


def embeddings_page(vectors: np.ndarray, sentences: Sequence[str], model: str) -> str:
    """Returns an interactive page with a point for each sentence."""
    points, explained = project(vectors)
    first, second = (f"{100 * share:.1f} %" for share in explained)
    known = {
        "Model": model,
        "Sentences": f"{len(sentences):,}",
        "Variance shown": f"{first} horizontally, {second} vertically",
    }
    data = {"points": np.round(points, 5).tolist(), "sentences": list(sentences)}
    return render("embeddings", known=known, data=data)
