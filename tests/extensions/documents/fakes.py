"""A model without weights, which translates words by a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from keras_transformer.inference.engine import Engine

# How a model changes the words of a sentence: the indices of the source words that it writes.
Order = Callable[[int], Sequence[int]]


def fake_engine(
    translate: Callable[[str], str] = str,
    order: Order | None = None,
    limit: int = 10**9,
    returns_alignments: bool = False,
    tokens_of: Callable[[str], int] = lambda line: len(re.findall(r"\w+|\S", line)),
    **fields: object,
) -> Engine:
    """Returns a model that writes the words of `order`, changed by `translate`."""
    model = Engine()

    def words_and_sources(line: str) -> tuple[list[str], Sequence[int]]:
        words = line.split()
        indices = order(len(words)) if order else range(len(words))
        return [translate(words[index]) for index in indices], indices

    def decoded(text: np.ndarray) -> list[str]:
        lines = [line.decode() for line in text]
        assert all(tokens_of(line) < limit or len(line) == 1 for line in lines), "it would be cut"
        return lines

    def lengths(text: np.ndarray) -> dict[str, np.ndarray]:
        counts = np.array([tokens_of(line.decode()) + 1 for line in text], int)
        return {"tokens": counts, "used": np.minimum(counts, limit), "unknown": counts * 0}

    def outputs(text: np.ndarray) -> dict[str, np.ndarray]:
        lines = decoded(text)
        rows = [words_and_sources(line)[0] if order else [translate(line)] for line in lines]
        texts = np.array([[" ".join(row).encode()] for row in rows], object)
        return {"translations": texts, "scores": np.full((len(text), 1), -1.0)}

    def verbose(text: np.ndarray, prefix: np.ndarray) -> dict[str, np.ndarray]:
        lines = decoded(text)
        results = [*map(words_and_sources, lines)]
        sources = [[f"▁{w}".encode() for w in line.split()] + [b"</s>"] for line in lines]
        targets = [[f"▁{w}".encode() for w in words] + [b"</s>"] for words, _ in results]
        alignments = [
            [*indices, len(source) - 1]
            for (_, indices), source in zip(results, sources, strict=True)
        ]
        length = max(map(len, targets), default=1)
        width = max(map(len, sources), default=1)

        def padded(rows: Sequence[Sequence[object]], size: int, filler: object) -> np.ndarray:
            dtype = object if isinstance(filler, bytes) else np.int64
            return np.array([[*row, *[filler] * (size - len(row))] for row in rows], dtype)

        scores, shape = np.full((len(text), 1), -1.0), (len(text), 1, length)
        return {
            "translations": np.array([[" ".join(w).encode()] for w, _ in results], object),
            "scores": scores,
            "log_probs": scores,
            "finished": scores < 0,
            "lengths": np.array([[len(row)] for row in targets]),
            "ids": np.zeros(shape, np.int64),
            "tokens": padded(targets, length, b"")[:, None],
            "token_log_probs": np.zeros(shape),
            "quality": np.array([[float("bad" not in line.lower())] for line in lines]),
            "status": np.zeros(len(text), int),
            "alignments": padded(alignments, length, 0)[:, None],
            "source_tokens": padded(sources, width, b""),
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
