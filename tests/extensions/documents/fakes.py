"""A model without weights, which translates words by a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from keras_transformer.inference.engine import Engine

# How a model changes the words of a sentence: the indices of the source words that it writes.
Order = Callable[[int], Sequence[int]]


def tokens_of(line: bytes) -> int:
    return len(re.findall(r"\w+|\S", line.decode()))


def fake_engine(
    translate: Callable[[str], str] = str,
    order: Order | None = None,
    limit: int = 10**9,
    returns_alignments: bool = False,
    **fields: object,
) -> Engine:
    """Returns a model that writes the words of `order`, changed by `translate`."""
    model = Engine()

    def words_and_sources(line: bytes) -> tuple[list[str], Sequence[int]]:
        words = line.decode().split()
        assert tokens_of(line) < limit or len(line.decode()) == 1, "a line would be cut"
        indices = order(len(words)) if order else range(len(words))
        return [translate(words[index]) for index in indices], indices

    def lengths(text: np.ndarray) -> dict[str, np.ndarray]:
        counts = np.array([tokens_of(line) + 1 for line in text])
        return {"tokens": counts, "used": np.minimum(counts, limit), "unknown": counts * 0}

    def outputs(text: np.ndarray) -> dict[str, np.ndarray]:
        if order is None:
            texts = [[translate(line.decode()).encode()] for line in text]
        else:
            texts = [[" ".join(words_and_sources(line)[0]).encode()] for line in text]
        return {"translations": np.array(texts, object), "scores": np.full((len(text), 1), -1.0)}

    def verbose(text: np.ndarray, prefix: np.ndarray) -> dict[str, np.ndarray]:
        results = [words_and_sources(line) for line in text]
        sources = [[f"▁{w}" for w in line.decode().split()] + ["</s>"] for line in text]
        targets = [[f"▁{w}" for w in words] + ["</s>"] for words, _ in results]
        alignments = [
            [*indices, len(source) - 1]
            for (_, indices), source in zip(results, sources, strict=True)
        ]
        length = max(map(len, targets), default=1)
        width = max(map(len, sources), default=1)

        def padded(rows: Sequence[Sequence[object]], size: int, filler: object) -> np.ndarray:
            dtype = object if isinstance(filler, bytes) else np.int64
            return np.array([[*row, *[filler] * (size - len(row))] for row in rows], dtype)

        def encoded(rows: Sequence[Sequence[str]]) -> list[list[bytes]]:
            return [[piece.encode() for piece in row] for row in rows]

        scores, shape = np.full((len(text), 1), -1.0), (len(text), 1, length)
        return {
            "translations": np.array([[" ".join(w).encode()] for w, _ in results], object),
            "scores": scores,
            "log_probs": scores,
            "finished": scores < 0,
            "lengths": np.array([[len(row)] for row in targets]),
            "ids": np.zeros(shape, np.int64),
            "tokens": padded(encoded(targets), length, b"")[:, None],
            "token_log_probs": np.zeros(shape),
            "alignments": padded(alignments, length, 0)[:, None],
            "source_tokens": padded(encoded(sources), width, b""),
        }

    vars(model).update(label="fake", translate=outputs, lengths=lengths, **fields)
    if returns_alignments:
        vars(model).update(translate_verbose=verbose)
    return model


def reverse(count: int) -> Sequence[int]:
    return range(count - 1, -1, -1)


def repeat(count: int) -> Sequence[int]:
    return [index for index in range(count) for _ in (1, 2)]


def rotate(count: int) -> Sequence[int]:
    return [*range(count // 2, count), *range(count // 2)]


ORDERS: tuple[Order, ...] = (reverse, lambda n: range(0, n, 2), repeat, rotate, lambda n: [])
