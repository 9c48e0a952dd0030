"""Principal components against the eigenvectors of the covariance, and embeddings in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.embeddings import embed, project
from tests.messages import mentions


@pytest.mark.parametrize("shape", [(50, 7), (5, 20), (3, 2)])
def test_points_are_on_the_first_eigenvectors(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    vectors = (random.normal(size=shape) * np.linspace(3, 0.1, shape[1]) + 100).astype(np.float32)
    exact = vectors.astype(np.float64)
    centred = exact - exact.mean(0)
    values, eigenvectors = np.linalg.eigh(centred.T @ centred)  # the smallest first
    projection = project(vectors)
    np.testing.assert_allclose(projection.explained, values[::-1][:2] / values.sum(), rtol=1e-6)
    for axis in (0, 1):
        expected = centred @ eigenvectors[:, -1 - axis]
        sign = np.sign(expected @ projection.points[:, axis])
        np.testing.assert_allclose(projection.points[:, axis], sign * expected, atol=1e-6)
    turned = project(vectors[::-1])
    np.testing.assert_allclose(turned.points[::-1], projection.points, atol=1e-6)


def test_axes_point_to_their_largest_component() -> None:
    points = project(np.outer([0.0, 1, 2], [0.1, -3, 0.2])).points[:, 0]
    assert points.tolist() == sorted(points, reverse=True)


@pytest.mark.parametrize("vectors", [np.ones((4, 3)), np.ones((1, 3)), np.zeros((3, 1))])
def test_equal_vectors_are_one_point(vectors: np.ndarray) -> None:
    projection = project(vectors)
    np.testing.assert_array_equal(projection.points, np.zeros((len(vectors), 2)))
    np.testing.assert_array_equal(projection.explained, [0, 0])


def test_embeddings_are_in_the_order_of_the_sentences() -> None:
    sizes: list[int] = []

    def ask(inputs: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
        sizes.append(len(inputs["text"]))
        return {"embeddings": np.array([[len(text), ord(text[0])] for text in inputs["text"]])}

    sentences = [chr(65 + i % 26) * (1 + i * 7 % 100) for i in range(200)]
    expected = [[len(text), ord(text[0])] for text in sentences]
    assert embed(ask, sentences).tolist() == expected
    assert sum(sizes) == 200 and len(sizes) > 1
    with pytest.raises(InputError, match=mentions("embeddings", "not finite")):
        embed(lambda inputs: {"embeddings": np.full((1, 4), np.nan)}, ["a"])
