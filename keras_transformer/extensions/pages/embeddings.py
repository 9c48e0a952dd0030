"""Sentence embeddings, and their projection to two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.attention import Ask
from keras_transformer.inference.batching import map_batches


class Projection(NamedTuple):
    """Points in the plane of the first two principal components.

    Attributes:
        points: float64 `[N, 2]`.
        explained: float64 `[2]`, the share of the variance that each axis shows.
    """

    points: np.ndarray
    explained: np.ndarray


def embed(ask: Ask, sentences: Sequence[str]) -> np.ndarray:
    """Returns the mean encoder output of each sentence, float32 `[N, d_model]`."""

    def embed_batch(batch: list[int]) -> np.ndarray:
        return np.asarray(ask({"text": [sentences[i] for i in batch]})["embeddings"])

    found: dict[int, np.ndarray] = {}
    for batch, vectors in map_batches(embed_batch, sentences):
        found |= dict(zip(batch, vectors, strict=True))
    result = np.stack([found[i] for i in range(len(sentences))])
    if not np.isfinite(result).all():
        raise InputError("The embeddings are not finite. The weights of the model are damaged.")
    return result


def project(vectors: np.ndarray) -> Projection:
    """Returns the first two principal components, the one with more variance first.

    The sign of each axis is chosen so that its largest component is positive.

    Args:
        vectors: `[N, d]`.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    points = centred @ (axes * np.sign(largest)).T[:, :2]
    variances = lengths**2
    explained = variances[:2] / max(variances.sum(), np.finfo(np.float64).tiny)
    missing = 2 - points.shape[1]  # for one sentence, or embeddings of one number
    return Projection(np.pad(points, [[0, 0], [0, missing]]), np.pad(explained, [0, missing]))
