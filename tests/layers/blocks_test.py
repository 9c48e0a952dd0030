"""Restricted self-attention in blocks against a mask over all pairs."""

from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from keras_transformer.config import ModelConfig
from keras_transformer.layers import masks
from keras_transformer.layers.attention import SelfAttention
from tests import reference
from tests.layers.layer_check import assert_same, randomize, to_numpy

B, D, H, KEY, VALUE = 2, 6, 2, 3, 4
CONFIG = ModelConfig(d_model=D, num_heads=H, key_dim=KEY, value_dim=VALUE)
Mask = NDArray[np.bool_]
ON_TORCH = keras.backend.backend() == "torch"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks as small as a window, so that short sequences have many."""
    monkeypatch.setattr(masks, "_MIN_BLOCK_SIZE", 1)


def make_layer(window: int, causal: bool, **arguments: Any) -> tuple[SelfAttention, dict[str, Any]]:
    layer = SelfAttention(H, KEY, VALUE, causal=causal, window=window, use_bias=True, **arguments)
    layer.build((None, None, D))
    return layer, {f"at/{path}": value for path, value in randomize(layer).items()}


def call(layer: Any, *arrays: Any, **options: Any) -> Any:
    return to_numpy(layer(*arrays, **options))


def inputs(length: int, seed: int = 0) -> tuple[NDArray[np.float32], Mask]:
    """Vectors, and a mask that forbids some of them, not only at the end."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(B, length, D)).astype(np.float32)
    real = rng.random((B, 1, length)) < 0.8
    real[1, :, length - length // 3 :] = False
    return x, real


def allowed(real: Mask, window: int, causal: bool) -> Mask:
    length = real.shape[-1]
    mask = real & reference.window_mask(length, window)
    return mask & reference.causal_mask(length) if causal else mask


def assert_is_the_masked(actual: Any, x: Any, weights: Any, mask: Mask) -> None:
    """Compares queries that have a visible key with the equations of the paper in float64."""
    expected, _ = reference.self_attention(x.astype(np.float64), weights, "at", CONFIG, mask)
    sees = mask.any(-1)
    assert actual.shape == expected.shape
    assert_same(actual[sees], expected[sees])
    assert np.isfinite(actual).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "length, window",
    # One, two and many blocks, filled up or not; a window wider than the sequence.
    [(1, 1), (6, 1), (5, 9), (10, 9), (21, 2), (41, 5)],
)
@pytest.mark.usefixtures("small_blocks")
def test_blocks_equal_the_mask(length: int, window: int, causal: bool) -> None:
    layer, weights = make_layer(window, causal)
    x, real = inputs(length)
    everything = np.ones_like(real)
    assert_is_the_masked(call(layer, x), x, weights, allowed(everything, window, causal))
    assert_is_the_masked(call(layer, x, real), x, weights, allowed(real, window, causal))


@pytest.mark.parametrize("length, window", [(65, 8), (300, 100)])
def test_blocks_of_the_usual_size(length: int, window: int) -> None:
    layer, weights = make_layer(window, causal=False)
    x, real = inputs(length)
    assert_is_the_masked(call(layer, x, real), x, weights, allowed(real, window, False))


@pytest.mark.usefixtures("small_blocks")
def test_masks_of_other_forms() -> None:
    layer, weights = make_layer(5, causal=True)
    x, real = inputs(17)
    by_query = np.random.default_rng(2).random((B, 17, 17)) < 0.8
    for mask in (real, real[:1], real[0], np.ones((1, 1), bool), by_query, by_query[:1]):
        wanted = allowed(np.broadcast_to(mask, (B, *np.shape(mask)[-2:-1], 17)), 5, True)
        assert_is_the_masked(call(layer, x, mask), x, weights, wanted)


@pytest.mark.usefixtures("small_blocks")
def test_requested_weights_are_those_of_all_pairs() -> None:
    layer, weights = make_layer(5, causal=False)
    x, real = inputs(17)
    mask = allowed(real, 5, False)
    output, scores = call(layer, x, real, return_attention_scores=True)
    _, expected = reference.self_attention(x.astype(np.float64), weights, "at", CONFIG, mask)
    sees = mask.any(-1)
    assert_same(np.swapaxes(scores, 1, 2)[sees], np.swapaxes(expected, 1, 2)[sees])
    assert_same(output[sees], call(layer, x, real)[sees])


def make_model(window: int, is_masked: bool, **arguments: Any) -> tuple[Any, SelfAttention]:
    """A model for unknown lengths, with blocks or with a mask over all pairs."""
    layer, _ = make_layer(window, causal=False, **arguments)
    x = keras.Input((None, D), name="x")
    real = keras.Input((1, None), dtype="bool", name="real")
    outputs = layer(x, real, return_attention_scores=is_masked)
    return keras.Model([x, real], outputs[0] if is_masked else outputs), layer


# Keras trains eagerly on PyTorch by default, and `torch.compile` takes minutes for these models.
@pytest.mark.parametrize("jit_compile", [False, True][: 1 if ON_TORCH else 2])
@pytest.mark.usefixtures("small_blocks")
def test_training_moves_all_weights_as_with_the_mask(jit_compile: bool) -> None:
    trained = []
    for is_masked in (True, False):
        model, layer = make_model(5, is_masked)
        randomize(layer)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
        for length in (4, 17):  # one block, and several
            x, _ = inputs(length)
            # Every query has a visible key. The target is arbitrary.
            model.train_on_batch([x, np.ones((B, 1, length), bool)], np.roll(x, 1, axis=-1))
        trained.append(to_numpy([variable.value for variable in layer.trainable_weights]))
    before = list(randomize(layer).values())
    for masked, in_blocks, value in zip(*trained, before, strict=True):
        assert_same(in_blocks, masked)
        assert np.abs(in_blocks - value).max() > 1e-3


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="reads TensorFlow's graph; runs on the TensorFlow backend",
)
def test_largest_tensor_grows_linearly_with_the_length() -> None:
    import tensorflow as tf

    def largest(length: int, window: int | None) -> int:
        """The size of the largest tensor of a forward and a backward pass."""
        layer = SelfAttention(H, KEY, VALUE, window=window)
        layer.build((None, None, D))

        def gradients(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x))
            return tape.gradient(loss, [x, *(weight.value for weight in layer.weights)])

        function = tf.function(gradients).get_concrete_function(tf.TensorSpec([1, length, D]))
        shapes = (out.shape for op in function.graph.get_operations() for out in op.outputs)
        return max(shape.num_elements() for shape in shapes if shape.is_fully_defined())

    assert largest(1024, None) >= H * 1024**2
    assert largest(2048, 8) == 2 * largest(1024, 8) < 2048 * 150
