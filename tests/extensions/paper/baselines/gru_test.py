"""The recurrent model against a float64 reading of Bahdanau et al. (2015) and Cho et al. (2014)."""

from collections.abc import Mapping

import numpy as np

from tests.extensions.paper.baselines.tiny import Array, make, source_ids, target_ids
from tests.layers.layer_check import to_numpy
from tests.reference import softmax

Weights = Mapping[str, Array]


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def gru_step(x: Array, state: Array, weights: Weights, path: str) -> Array:
    """Computes h' = z h + (1 - z) tanh(W x + r (U h + b)), with the reset after the product.

    The kernels of z, r and the candidate are concatenated. The biases belong to x and h.
    """
    of_x, of_h = weights[f"{path}/bias"]
    xs = np.split(x @ weights[f"{path}/kernel"] + of_x, 3)
    hs = np.split(state @ weights[f"{path}/recurrent_kernel"] + of_h, 3)
    z, r = sigmoid(xs[0] + hs[0]), sigmoid(xs[1] + hs[1])
    return z * state + (1.0 - z) * np.tanh(xs[2] + r * hs[2])


def logits_of(source: Array, target: Array, weights: Weights) -> Array:
    """Logits [T, V] of one sentence without padding: source [S], target [T]."""
    table = weights["embedding/embeddings"]
    units = len(weights["encoder/forward_gru/gru_cell/recurrent_kernel"])
    directions = []
    for name, positions in (
        ("forward", range(len(source))),
        ("backward", range(len(source))[::-1]),
    ):
        state, states = np.zeros(units), {}
        for i in positions:
            path = f"encoder/{name}_gru/gru_cell"
            state = states[i] = gru_step(table[source[i]], state, weights, path)
        directions.append([states[i] for i in range(len(source))])
    annotations = np.array([np.concatenate(both) for both in zip(*directions, strict=True)])
    keys = annotations @ weights["keys/kernel"]
    first = directions[1][0] @ weights["first_state/kernel"] + weights["first_state/bias"]
    state = np.tanh(first)
    result = []
    for token in target:
        word = table[token]
        energies = np.tanh(state @ weights["decoder/cell/query/kernel"] + keys)
        attention = softmax(energies @ weights["decoder/cell/attention/scale"])
        context = attention @ annotations
        state = gru_step(np.concatenate([word, context]), state, weights, "decoder/cell/gru")
        features = np.concatenate([word, state, context]) @ weights["output_map/kernel"]
        result.append((features + weights["output_map/bias"]) @ table.T)
    return np.array(result)


def test_logits_are_those_of_the_equations() -> None:
    model, weights = make("gru")
    sources, targets = [4, 1, 6], [5, 3, 2]
    source, target = source_ids(sources), target_ids(targets)
    logits = to_numpy(model({"source_ids": source, "target_ids": target}))
    for i, (s, t) in enumerate(zip(sources, targets, strict=True)):
        expected = logits_of(source[i, :s], target[i, :t], weights)
        np.testing.assert_allclose(logits[i, :t], expected, atol=2e-5)
