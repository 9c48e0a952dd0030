"""The sliced loss against the textbook formula with full logits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import loss
from tests import reference

ROWS, WIDTH, CLASSES, PAD = 11, 6, 9, 0
rng = np.random.default_rng(1)
FEATURES = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
KERNEL = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
LABELS = rng.integers(1, CLASSES, ROWS).astype(np.int32)
LABELS[[2, 7, 10]] = PAD
TOKENS = ROWS - 3


@pytest.fixture(params=[4, 11, 512], ids=["slices", "one_slice", "half_a_slice"])
def slice_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(loss, "SLICE_ROWS", request.param)
    return request.param


def full_logits(
    features: np.ndarray, kernel: np.ndarray, smoothing: float, scale: float = 1.0
) -> tuple[float, tf.Tensor, tf.Tensor]:
    """Section 5.4 as printed: the loss, and `scale` times its gradients by TensorFlow."""
    x, w = tf.constant(features, tf.float64), tf.constant(kernel, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        log_probabilities = tf.nn.log_softmax(tf.matmul(x, w, transpose_b=True))
        one_hot = tf.one_hot(LABELS, CLASSES, dtype=tf.float64)
        expected = (1 - smoothing) * one_hot + smoothing / CLASSES
        losses = -tf.reduce_sum(expected * log_probabilities, axis=-1)
        total = tf.reduce_sum(tf.boolean_mask(losses, LABELS != PAD))
        scaled = total * scale
    return float(total), *tape.gradient(scaled, [x, w])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_loss_and_gradients_are_those_of_the_full_logits(
    slice_rows: int, smoothing: float, scale: float
) -> None:
    sums, gradients = loss.loss_and_gradients(
        tf.constant(FEATURES), tf.constant(LABELS), tf.constant(KERNEL),
        label_smoothing=smoothing, pad_id=PAD, scale=scale,
    )  # fmt: skip
    total, by_features, by_kernel = full_logits(FEATURES, KERNEL, smoothing, scale)
    logits = FEATURES.astype(np.float64) @ KERNEL.T
    mean = reference.label_smoothed_loss(logits, LABELS, PAD, smoothing)
    likelihood = -TOKENS * reference.label_smoothed_loss(logits, LABELS, PAD, 0.0)
    assert float(sums.tokens) == TOKENS
    assert float(sums.loss) == pytest.approx(total, rel=1e-6)
    assert float(sums.loss) / TOKENS == pytest.approx(mean, rel=1e-6)
    assert float(sums.log_likelihood) == pytest.approx(likelihood, rel=1e-6)
    np.testing.assert_allclose(gradients.features, by_features, atol=1e-6)
    np.testing.assert_allclose(gradients.kernel, by_kernel, atol=2e-6)
    assert not np.asarray(gradients.features)[LABELS == PAD].any()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("rows", "width", "classes"), [(1, 3, 5), (8, 4, 7), (21, 16, 40)])
@pytest.mark.parametrize("padding", ["none", "some", "all"])
def test_fast_loss_equals_the_reference(
    monkeypatch: pytest.MonkeyPatch,
    dtype: tf.DType, smoothing: float, rows: int, width: int, classes: int, padding: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(loss, "SLICE_ROWS", 8)
    random = np.random.default_rng(rows)
    features = tf.cast(random.normal(size=(rows, width)), dtype)
    kernel = tf.cast(tf.cast(random.normal(size=(classes, width)), dtype), tf.float32)
    labels = random.integers(1, classes, rows).astype(np.int32)
    labels[{"none": slice(0), "some": slice(None, None, 3), "all": slice(None)}[padding]] = PAD
    scale = 1 / max(np.count_nonzero(labels), 1)
    sums, gradients = loss.loss_and_gradients(
        features, tf.constant(labels), kernel, label_smoothing=smoothing, pad_id=PAD, scale=scale
    )
    exact_features, exact_kernel = tf.cast(features, tf.float64), tf.cast(kernel, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([exact_features, exact_kernel])
        logits = tf.matmul(exact_features, exact_kernel, transpose_b=True)
        expected = loss.reference_loss(logits, tf.constant(labels), smoothing, PAD)
        scaled = expected * scale
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 3e-2, tf.float16: 4e-3}[dtype]
    assert float(sums.loss) == pytest.approx(float(expected), rel=tolerance)
    for found, exact in zip(
        gradients, tape.gradient(scaled, [exact_features, exact_kernel]), strict=True
    ):
        error = tf.norm(tf.cast(found, tf.float64) - exact)
        assert float(error) <= tolerance * float(tf.norm(exact))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_evaluation_sums_are_those_of_the_full_logits(slice_rows: int, smoothing: float) -> None:
    logits = FEATURES.astype(np.float64) @ KERNEL.T
    labels = LABELS.copy()
    best = logits.argmax(axis=-1)
    labels[[0, 4]] = best[[0, 4]]
    labels[2] = PAD
    real = labels != PAD
    sums = loss.evaluation_sums(
        tf.constant(FEATURES), tf.constant(labels), tf.constant(KERNEL),
        label_smoothing=smoothing, pad_id=PAD,
    )  # fmt: skip
    tokens = real.sum()
    expected = tokens * reference.label_smoothed_loss(logits, labels, PAD, smoothing)
    likelihood = -tokens * reference.label_smoothed_loss(logits, labels, PAD, 0.0)
    assert float(sums.tokens) == tokens
    assert float(sums.loss) == pytest.approx(expected, rel=1e-6)
    assert float(sums.log_likelihood) == pytest.approx(likelihood, rel=1e-6)
    assert float(sums.correct) == ((best == labels) & real).sum() >= 2


def test_padding_that_has_the_highest_logit_is_not_counted_as_correct() -> None:
    features, kernel = np.ones((3, 2), np.float32), np.zeros((4, 2), np.float32)
    kernel[PAD] = 5.0
    sums = loss.evaluation_sums(
        tf.constant(features), tf.constant([PAD, PAD, 2]), tf.constant(kernel),
        label_smoothing=0.1, pad_id=PAD,
    )  # fmt: skip
    assert (float(sums.tokens), float(sums.correct)) == (1.0, 0.0)


def test_a_constant_feature_is_the_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "SLICE_ROWS", 4)
    bias = np.linspace(-1, 1, CLASSES).astype(np.float32)
    features = np.concatenate([FEATURES, np.ones((ROWS, 1), np.float32)], axis=1)
    kernel = np.concatenate([KERNEL, bias[:, None]], axis=1)
    sums, gradients = loss.loss_and_gradients(
        tf.constant(features), tf.constant(LABELS), tf.constant(kernel),
        label_smoothing=0.1, pad_id=PAD,
    )  # fmt: skip
    logits = FEATURES.astype(np.float64) @ KERNEL.T + bias
    mean = reference.label_smoothed_loss(logits, LABELS, PAD, 0.1)
    assert float(sums.loss) / TOKENS == pytest.approx(mean, rel=1e-6)
    probabilities = reference.softmax(logits)
    expected = 0.9 * np.eye(CLASSES)[LABELS] + 0.1 / CLASSES
    by_bias = (probabilities - expected)[LABELS != PAD].sum(axis=0)
    np.testing.assert_allclose(np.asarray(gradients.kernel)[:, -1], by_bias, atol=2e-6)


@pytest.mark.parametrize("dtype, tolerance", [(tf.bfloat16, 2e-2), (tf.float16, 3e-3)])
def test_low_precision_is_near(
    dtype: tf.DType, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "SLICE_ROWS", 4)
    features = tf.cast(FEATURES, dtype)
    arguments = {"label_smoothing": 0.1, "pad_id": PAD}
    labels, kernel = tf.constant(LABELS), tf.constant(KERNEL)
    sums, gradients = loss.loss_and_gradients(features, labels, kernel, **arguments)
    evaluated = loss.evaluation_sums(features, labels, kernel, **arguments)
    rounded = tf.cast(features, tf.float32).numpy()
    low_kernel = tf.cast(tf.cast(KERNEL, dtype), tf.float32).numpy()
    total, by_features, by_kernel = full_logits(rounded, low_kernel, 0.1)
    assert gradients.features.dtype == dtype and gradients.kernel.dtype == tf.float32
    assert sums.loss.dtype == evaluated.loss.dtype == tf.float32
    assert float(sums.loss) == pytest.approx(total, rel=tolerance)
    assert float(evaluated.loss) == pytest.approx(float(sums.loss), rel=1e-6)
    for ours, exact in ((gradients.features, by_features), (gradients.kernel, by_kernel)):
        error = tf.norm(tf.cast(ours, tf.float64) - exact) / tf.norm(exact)
        assert float(error) < tolerance


def test_no_tensor_holds_the_logits_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "SLICE_ROWS", 4)

    @tf.function
    def compute(features: tf.Tensor, labels: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        sums, gradients = loss.loss_and_gradients(
            features, labels, kernel, label_smoothing=0.1, pad_id=PAD
        )
        return sums.loss + tf.reduce_sum(gradients.features) + tf.reduce_sum(gradients.kernel)

    graph = compute.get_concrete_function(
        tf.TensorSpec([40, WIDTH]), tf.TensorSpec([40], tf.int32), tf.TensorSpec([CLASSES, WIDTH])
    ).graph
    graphs = [graph, *(g for g in graph._functions.values())]
    shapes = {
        tuple(output.shape.as_list())
        for each in graphs
        for operation in getattr(each, "graph", each).get_operations()
        for output in operation.outputs
        if output.shape.rank == 2
    }
    assert (4, CLASSES) in shapes and (40, CLASSES) not in shapes
