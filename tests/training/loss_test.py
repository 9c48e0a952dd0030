"""The sliced loss against the textbook formula with full logits."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.training import loss
from tests import reference
from tests.builders import weekly

ROWS, WIDTH, CLASSES, PAD = 11, 6, 9, 0
rng = np.random.default_rng(1)
FEATURES = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
KERNEL = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
LABELS = rng.integers(1, CLASSES, ROWS).astype(np.int32)
LABELS[[2, 7, 10]] = PAD
TOKENS = ROWS - 3


def output_projection(kernel, smoothing, bias=None, on_gpus=False):
    kernel, bias = (None if w is None else SimpleNamespace(value=w) for w in (kernel, bias))
    model = SimpleNamespace(
        config=SimpleNamespace(tie_embeddings="all", pad_id=PAD),
        output_weights=lambda: (kernel, bias),
        weights_by_path=lambda: {"kernel": kernel, "bias": bias},
    )
    with mock.patch.object(loss, "uses_gpus", lambda _: on_gpus):
        return loss.OutputProjection(model, smoothing)


def exact(features, kernel, labels, smoothing, scale=1.0):
    """The sum of the paper's loss over full logits in float64, and `scale` times its gradients."""
    x, w = tf.cast(features, tf.float64), tf.cast(kernel, tf.float64)
    target = (1 - smoothing) * np.eye(len(kernel))[labels] + smoothing / len(kernel)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        log_probs = tf.nn.log_softmax(tf.matmul(x, w, transpose_b=True))
        total = -tf.reduce_sum((target * log_probs)[labels != PAD])
        scaled = total * scale
    return total, tape.gradient(scaled, [x, w])


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "width", "classes"), [(1, 3, 5), (8, 4, 7), (21, 16, 40)])
@pytest.mark.parametrize("padding", ["none", "some", "all"])
def test_fast_loss_equals_the_reference(
    monkeypatch, dtype, smoothing, rows, width, classes, padding
):
    monkeypatch.setattr(loss, "SLICE_ROWS", 8)
    random = np.random.default_rng(rows)
    features = tf.cast(random.normal(size=(rows, width)), dtype)
    kernel = tf.cast(tf.cast(random.normal(size=(classes, width)), dtype), tf.float32)
    logits = tf.cast(features, tf.float64).numpy() @ kernel.numpy().T
    best = logits.argmax(axis=-1)
    labels = random.integers(1, classes, rows).astype(np.int32)
    labels[1::4] = best[1::4]  # some of them padding
    labels[{"none": slice(0), "some": slice(None, None, 3), "all": slice(None)}[padding]] = PAD
    tokens = np.count_nonzero(labels)
    scale = 1 / max(tokens, 1)
    projection = output_projection(kernel, smoothing)
    sums, by_features, by_path = projection.loss_and_gradients(features, labels, scale)
    evaluated, *_ = projection.loss_and_gradients(features, labels, scale=None)
    gradients = by_features, by_path["kernel"]
    expected, expected_gradients = exact(features, kernel, labels, smoothing, scale)
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 3e-2, tf.float16: 4e-3}[dtype]
    assert float(sums.loss) == pytest.approx(float(expected), rel=tolerance)
    if tokens:
        mean = reference.label_smoothed_loss(logits, labels, PAD, smoothing)
        likelihood = -tokens * reference.label_smoothed_loss(logits, labels, PAD, 0.0)
        assert float(sums.loss) / tokens == pytest.approx(mean, rel=tolerance / 2)
        for found in (sums, evaluated):
            assert float(found.log_likelihood) == pytest.approx(likelihood, rel=tolerance / 2)
    assert float(sums.tokens) == float(evaluated.tokens) == tokens
    if dtype == tf.float32:  # padding is never correct
        assert float(evaluated.correct) == ((best == labels) & (labels != PAD)).sum()
    assert not tf.cast(gradients[0], tf.float32).numpy()[labels == PAD].any()
    near = max(tolerance / 10, 1e-5)
    assert float(evaluated.loss) == pytest.approx(float(sums.loss), rel=near)
    assert sums.loss.dtype == evaluated.loss.dtype == gradients[1].dtype == tf.float32
    assert gradients[0].dtype == dtype
    for found, gradient in zip(gradients, expected_gradients, strict=True):
        error = tf.norm(tf.cast(found, tf.float64) - gradient)
        assert float(error) <= tolerance * float(tf.norm(gradient))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda d: d.name)
def test_excluded_tokens_change_nothing(monkeypatch, smoothing, dtype):
    """Loss and gradients are those of a model without these tokens, which do not move."""
    monkeypatch.setattr(loss, "SLICE_ROWS", 4)
    excluded = np.isin(np.arange(CLASSES + 3), [PAD, 4, 7])
    kernel = np.full((CLASSES + 3, WIDTH), 50.0, np.float32)
    kernel[~excluded] = KERNEL
    kernel = tf.cast(tf.cast(kernel, dtype), tf.float32).numpy()
    bias = np.where(excluded, EXCLUDED_TOKEN_BIAS, 0.0).astype(np.float32)
    features = tf.cast(FEATURES, dtype)
    labels = np.where(LABELS == PAD, PAD, np.flatnonzero(~excluded)[LABELS]).astype(np.int32)
    projection = output_projection(kernel, smoothing, tf.constant(bias))
    sums, gradient, by_path = projection.loss_and_gradients(features, labels)
    evaluated, *_ = projection.loss_and_gradients(features, labels, scale=None)

    # A reference without the tokens, in which no label is the id of padding.
    total, (by_features, by_kernel) = exact(
        tf.boolean_mask(features, LABELS != PAD),
        kernel[~excluded],
        LABELS[LABELS != PAD],
        smoothing,
    )
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 3e-2, tf.float16: 4e-3}[dtype]
    assert float(sums.loss) == pytest.approx(float(total), rel=tolerance)
    assert float(evaluated.loss) == pytest.approx(float(sums.loss), rel=max(tolerance / 10, 1e-5))
    found = tf.boolean_mask(gradient, LABELS != PAD)
    for actual, expected in ((found, by_features), (by_path["kernel"][~excluded], by_kernel)):
        error = tf.norm(tf.cast(actual, tf.float64) - expected)
        assert float(error) <= tolerance * float(tf.norm(expected))
    for actual in by_path.values():
        assert not np.asarray(actual)[excluded].any()


def in_graph(xla, on_gpus):
    """The losses of training and of evaluation, traced for unknown sizes, as in training."""

    @tf.function(jit_compile=xla, autograph=False)
    def compute(features, labels):
        projection = output_projection(KERNEL, 0.1, on_gpus=on_gpus)
        return (
            projection.loss_and_gradients(features, labels),
            projection.loss_and_gradients(features, labels, scale=None)[0],
        )

    return compute.get_concrete_function(
        tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None], tf.int32)
    )


@pytest.mark.parametrize("slices", [1, weekly(100), 2**28], ids=["8 rows", "2 slices", "1 slice"])
@pytest.mark.parametrize("xla", [False, True])
def test_slices_of_a_gpu_change_nothing(monkeypatch, slices, xla):
    monkeypatch.setattr(loss, "_GPU_SLICE_LOGITS", slices)
    function = in_graph(xla, on_gpus=True)
    (sums, gradient, by_path), evaluated = function(tf.constant(FEATURES), tf.constant(LABELS))
    total, (by_features, by_kernel) = exact(FEATURES, KERNEL, LABELS, 0.1)
    assert float(sums.tokens) == float(evaluated.tokens) == TOKENS
    assert float(sums.loss) == pytest.approx(float(total), rel=1e-6)
    assert float(evaluated.loss) == pytest.approx(float(total), rel=1e-6)
    np.testing.assert_allclose(gradient, by_features, atol=1e-6)
    np.testing.assert_allclose(by_path["kernel"], by_kernel, atol=2e-6)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("on_gpus", [False, True])
def test_a_replica_without_rows_adds_nothing(on_gpus, xla):
    function = in_graph(xla, on_gpus)
    (sums, gradient, by_path), evaluated = function(tf.zeros([0, WIDTH]), tf.zeros([0], tf.int32))
    assert [float(value) for value in (*sums, *evaluated)] == [0.0] * (len(sums) + len(evaluated))
    assert gradient.shape == (0, WIDTH)
    np.testing.assert_array_equal(by_path["kernel"], np.zeros_like(KERNEL))


def test_no_tensor_has_the_logits_of_all_rows(monkeypatch):
    monkeypatch.setattr(loss, "SLICE_ROWS", 4)

    @tf.function(autograph=False)
    def compute(features, labels, kernel):
        projection = output_projection(kernel, 0.1)
        sums, gradient, by_path = projection.loss_and_gradients(features, labels)
        return sums.loss + tf.reduce_sum(gradient) + tf.reduce_sum(by_path["kernel"])

    graph = compute.get_concrete_function(
        tf.TensorSpec([40, WIDTH]), tf.TensorSpec([40], tf.int32), tf.TensorSpec([CLASSES, WIDTH])
    ).graph
    graphs = [graph, *(g for g in graph._functions.values())]
    shapes = {
        tuple(output.shape.as_list())
        for one in graphs
        for operation in getattr(one, "graph", one).get_operations()
        for output in operation.outputs
        if output.shape.rank == 2
    }
    assert (4, CLASSES) in shapes and (40, CLASSES) not in shapes
