"""The baselines against float64 readings of their papers.

The recurrent model: Bahdanau et al. (2015) and Cho et al. (2014). The convolutional model: Gehring
et al. (2017).
"""

from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow as tf

from tests.extensions.paper.baselines.tiny import Array, make, source_ids, target_ids
from tests.layers.layer_check import to_numpy
from tests.reference import softmax

Weights = Mapping[str, Array]
HALF = np.sqrt(0.5)


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


def gru_logits(source: Array, target: Array, weights: Weights) -> Array:
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


def linear(x: Array, weights: Weights, name: str) -> Array:
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def gated(windows: Array, weights: Weights, path: str) -> Array:
    """A ⊗ σ(B) of windows [T, k, h], with W [k, h, 2h]."""
    both = np.einsum("tkh,kho->to", windows, weights[f"{path}/convolution/kernel"])
    a, b = np.split(both + weights[f"{path}/convolution/bias"], 2, axis=-1)
    return a / (1.0 + np.exp(-b))


def windows_of(x: Array, before: int, after: int) -> Array:
    """[T, before + 1 + after, h]: each position with its neighbours, and zeros beyond the ends."""
    padded = np.pad(x, ((before, after), (0, 0)))
    return np.array([padded[i : i + before + 1 + after] for i in range(len(x))])


def convolutional_logits(source: Array, target: Array, weights: Weights) -> Array:
    """Logits [T, V] of one sentence without padding: source [S], target [T]."""
    table = weights["embedding/embeddings"]
    of_source = table[source] + weights["source_positions/embeddings"][: len(source)]
    of_target = table[target] + weights["target_positions/embeddings"][: len(target)]
    x = linear(of_source, weights, "encoder_input")
    for i in range(2):
        x = (gated(windows_of(x, 1, 1), weights, f"encoder_layer_{i}") + x) * HALF
    keys = linear(x, weights, "encoder_output")
    values = (keys + of_source) * HALF
    h = linear(of_target, weights, "decoder_input")
    for i in range(2):
        layer = f"decoder_layer_{i}"
        y = gated(windows_of(h, 2, 0), weights, f"{layer}/convolution")
        query = (linear(y, weights, f"{layer}/query") + of_target) * HALF
        context = softmax(query @ keys.T) @ values * np.sqrt(len(source))
        y = (y + linear(context, weights, f"{layer}/context")) * HALF
        h = (y + h) * HALF
    return linear(h, weights, "decoder_output") @ table.T


READINGS = {"gru": gru_logits, "convolutional": convolutional_logits}


@pytest.mark.parametrize("name", READINGS)
def test_logits_are_those_of_the_equations(name: str) -> None:
    model, weights = make(name)
    sources, targets = [4, 1, 6], [5, 3, 2]
    source, target = source_ids(sources), target_ids(targets)
    logits = to_numpy(model({"source_ids": source, "target_ids": target}))
    for i, (s, t) in enumerate(zip(sources, targets, strict=True)):
        expected = READINGS[name](source[i, :s], target[i, :t], weights)
        np.testing.assert_allclose(logits[i, :t], expected, atol=2e-5)
    features, _ = model.decode(target, model.encode(source))
    rows, _ = model.output_rows(tf.constant([3, 5]))  # what a shortlist uses
    np.testing.assert_allclose(features @ tf.transpose(rows), logits[:, :, [3, 5]], atol=2e-5)


def test_the_encoder_gets_its_share_of_the_decoders_gradients() -> None:
    model, _ = make("convolutional")
    source = source_ids([4])

    def gradient() -> Array:
        with tf.GradientTape() as tape:
            keys = model.encode(source).states[:, :, 0]
            loss = tf.reduce_sum(keys)
        weight = model.weights_by_path()["encoder_output/bias"]
        return to_numpy(tape.gradient(loss, weight.value))

    np.testing.assert_allclose(gradient(), len(source[0]) / 2, rtol=1e-5)  # of two attentions
    model.decoder_layers.append(model.decoder_layers[0])
    np.testing.assert_allclose(gradient(), len(source[0]) / 3, rtol=1e-5)
