"""The model under stock `compile`, `fit` and `save`, with our losses and metrics."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from tests import reference
from tests.layers.layer_check import INTEGERS, assert_same, randomize, to_numpy
from tests.messages import mentions, tells

RNG = np.random.default_rng(3)
LABELS = np.array([[5, 2, 7, 0], [1, 0, 0, 0], [3, 3, 9, 9]], np.int32)
LOGITS = RNG.normal(size=(3, 4, 11)).astype(np.float32)
REAL = LABELS != 0


def cross_entropy(smoothing: float) -> Any:
    """The loss of each position in float64."""
    logits = LOGITS.astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = np.full(LOGITS.shape, smoothing / 11)
    np.put_along_axis(target, LABELS[..., None], 1 - smoothing + smoothing / 11, axis=-1)
    return -(target * log_probs).sum(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_loss_is_a_mean_over_real_tokens(smoothing: float, dtype: str) -> None:
    loss = kt.losses.LabelSmoothedCrossEntropy(smoothing)
    expected = cross_entropy(smoothing)
    labels = LABELS.astype(dtype)
    assert_same(to_numpy(loss(labels, LOGITS)), np.float32(expected[REAL].mean()))
    weights = np.array([1.0, 0.0, 2.0], np.float32)
    weighted = (expected * REAL * weights[:, None]).sum() / REAL.sum()
    assert_same(to_numpy(loss(labels, LOGITS, weights)), np.float32(weighted))
    total = kt.losses.LabelSmoothedCrossEntropy(smoothing, reduction="sum")
    assert_same(to_numpy(total(labels, LOGITS)), np.float32(expected[REAL].sum()))
    rebuilt = keras.losses.deserialize(keras.losses.serialize(loss))
    assert rebuilt.get_config() == loss.get_config()


def test_excluded_tokens_have_no_part_in_the_smoothing() -> None:
    loss = kt.losses.LabelSmoothedCrossEntropy(0.1)
    logits = np.insert(LOGITS, [4, 4, 11], EXCLUDED_TOKEN_BIAS, axis=-1)
    labels = np.where(LABELS > 3, LABELS + 2, LABELS)
    assert_same(to_numpy(loss(labels, logits)), to_numpy(loss(LABELS, LOGITS)))


def test_a_batch_of_padding_has_no_loss() -> None:
    loss = kt.losses.LabelSmoothedCrossEntropy()
    assert float(loss(np.zeros_like(LABELS), LOGITS)) == 0
    for weights in (None, np.ones(0, np.float32), np.ones_like(LOGITS[:0, :, 0])):  # no rows
        assert float(loss(LABELS[:0], LOGITS[:0], weights)) == 0


@pytest.mark.parametrize("dtype", INTEGERS)
def test_metrics_ignore_padding(dtype: str) -> None:
    accuracy, perplexity = kt.metrics.TokenAccuracy(), kt.metrics.Perplexity()
    for rows in (slice(0, 1), slice(1, 3)):
        accuracy.update_state(LABELS[rows].astype(dtype), LOGITS[rows])
        perplexity.update_state(LABELS[rows].astype(dtype), LOGITS[rows])
    right = (LOGITS.argmax(-1) == LABELS)[REAL]
    assert_same(to_numpy(accuracy.result()), np.float32(right.mean()))
    assert_same(to_numpy(perplexity.result()), np.float32(np.exp(cross_entropy(0)[REAL].mean())))
    for metric in (accuracy, perplexity):
        rebuilt = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert rebuilt.get_config() == metric.get_config()


INPUTS = ("source_ids", "target_ids")
VARIANTS: list[dict[str, Any]] = [
    {"tie_embeddings": "none", "output_bias": True, "attention_bias": True},
    {"norm_position": "pre", "positions": "learned", "max_positions": 9, "key_dim": 3},
]


def small(**changes: Any) -> Any:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 1}
    return kt.Transformer.from_preset("tiny", 30, **{**sizes, "num_decoder_layers": 1, **changes})


def test_the_forward_pass_is_the_papers_on_every_backend() -> None:
    model = small(num_encoder_layers=2, num_decoder_layers=2)
    weights = randomize(model)
    source, target = np.array([[5, 6, 7, 3], [9, 3, 0, 0]]), np.array([[2, 6, 5], [2, 10, 9]])
    expected = reference.transformer(source, target, weights, model.config)
    found = to_numpy(model({"source_ids": source, "target_ids": target}))
    assert_same(found, expected)
    assert np.abs(expected).max() > 0.1


def test_summary_and_count_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")  # the width of a summary
    model = small(num_encoder_layers=2)
    feed_forward, norm, attention = 2 * 16 * 8 + 8 + 16, 2 * 16, 4 * 16 * 16
    blocks = 2 * (attention + feed_forward + 2 * norm) + 2 * attention + feed_forward + 3 * norm
    count = 30 * 16 + blocks  # a tied model with biases only in the feed-forward networks
    assert model.count_params() == count
    model.encoder.trainable = False
    lines: list[str] = []
    model.summary(print_fn=lines.append, line_length=120, expand_nested=True, show_trainable=True)
    text = "\n".join(lines)
    encoder = sum(to_numpy(weight).size for weight in model.encoder.weights)
    for row in (
        ("Total params", f"{count:,}"),
        ("Trainable params", f"{count - encoder:,}"),
        ("Non-trainable params", f"{encoder:,}"),
        ("embedding (TokenEmbedding)", "(None, None, 16)", "480"),
        ("source_positions", "(None, 16)"),
        ("encoder (Encoder)", "(None, None, 16)", f"{encoder:,}"),
        ("layer_1 (EncoderLayer)", "(None, None, 16)", f"{encoder // 2:,}"),
        ("layer_0 (DecoderLayer)", "(None, None, 16)"),
    ):
        assert tells(text, *row), row
    assert "?" not in text  # every shape is known
    inputs = {name: keras.Input((None,), dtype="int32") for name in INPUTS}
    assert keras.Model(inputs, model(inputs)).count_params() == count
    assert model.encoder_model().count_params() == 30 * 16 + encoder


def test_weights_of_all_variants_load_into_new_models(tmp_path: Path) -> None:
    for i, changes in enumerate(VARIANTS):
        model = small(**changes)
        assert model.built
        randomize(model)
        model.save_weights(tmp_path / f"{i}.weights.h5")
        other = small(**changes)  # never called
        other.load_weights(tmp_path / f"{i}.weights.h5")
        assert other.weights_by_path().keys() == model.weights_by_path().keys()
        ids = np.array([[5, 6, 3, 0], [7, 3, 0, 0]])
        inputs = {"source_ids": ids, "target_ids": ids}
        assert_same(to_numpy(other(inputs)), to_numpy(model(inputs)), 0.0)


def test_stock_fit_trains_and_honours_frozen_layers(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = small()
    model.encoder.trainable = False
    model.compile(
        keras.optimizers.Adam(kt.schedules.Noam(d_model=16, warmup_steps=40)),
        loss=kt.losses.LabelSmoothedCrossEntropy(0.1),
        metrics=[kt.metrics.TokenAccuracy(), kt.metrics.Perplexity()],
    )
    source = RNG.integers(4, 30, (64, 6))
    targets = np.concatenate([np.full((64, 1), 2), source], axis=1)
    labels = np.concatenate([source, np.full((64, 1), 3)], axis=1)
    labels[::2, 5:] = 0
    inputs = {"source_ids": source, "target_ids": targets}
    frozen = [to_numpy(weight) for weight in model.encoder.weights]
    history = model.fit(inputs, labels, epochs=8, batch_size=16, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["perplexity"][-1] < history["perplexity"][0]
    assert_same([to_numpy(weight) for weight in model.encoder.weights], frozen, 0.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert_same(to_numpy(loaded(inputs)), to_numpy(model(inputs)))


def test_weights_of_sentences_and_then_of_tokens() -> None:
    model = small(embedding_dropout=0.0, residual_dropout=0.0, output_bias=True)
    for layer in (model.embedding, model.encoder, model.decoder):
        layer.trainable = False  # only the bias has a gradient, which is traced quickly
    loss = kt.losses.LabelSmoothedCrossEntropy()
    metric = kt.metrics.Perplexity()
    model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=[metric], jit_compile=False)
    labels = np.where(LABELS == 0, 0, LABELS + 10)
    inputs = {"source_ids": labels, "target_ids": labels}
    logits = model(inputs)
    for weights in (np.array([1.0, 0.5, 2.0]), RNG.random(labels.shape), np.array([3.0, 0, 1])):
        history = model.fit(inputs, labels, sample_weight=weights, verbose=0).history
        assert_same(history["loss"][0], to_numpy(loss(labels, logits, weights)))
    assert model.evaluate(inputs, labels, sample_weight=weights, verbose=0)[0] > 0


def test_the_encoder_is_a_functional_model_with_a_mask() -> None:
    model = small()
    randomize(model, scale=0.1)
    ids = RNG.integers(4, 30, (3, 5))
    padded, states = np.pad(ids, ((0, 0), (0, 2))), to_numpy(model.encode(ids).states)
    encoder = model.encoder_model()
    assert_same(to_numpy(encoder(padded))[:, :5], states)
    pooled = keras.layers.GlobalAveragePooling1D()(encoder.output)
    assert_same(to_numpy(keras.Model(encoder.input, pooled)(padded)), states.mean(1))


@pytest.mark.parametrize(
    "use, problem",
    [
        (lambda: kt.Transformer({"dmodel": 8}), mentions("'dmodel'", "d_model")),
        (lambda: kt.losses.LabelSmoothedCrossEntropy(1.0), mentions("label_smoothing", "1.0")),
        (lambda: kt.Transformer("tiny"), mentions("'tiny'", "from_preset")),
        (lambda: kt.Transformer(kt.TrainingConfig()), mentions("TrainingConfig", "ModelConfig")),
        (lambda: kt.Transformer.from_preset("tinny", 30), mentions("tinny", "tiny")),
        (lambda: kt.Transformer.from_preset("tiny", 30, dmodel=8), mentions("dmodel", "d_model")),
        (lambda: small().quantize("int4"), mentions("quantize", "Transformer", "kt.load")),
    ],
)
def test_messages_say_what_to_give(use: Any, problem: Any) -> None:
    with pytest.raises(ValueError, match=problem):
        use()


def test_the_loss_does_not_depend_on_a_keras_mask() -> None:
    embedding = kt.layers.TokenEmbedding(11, 8, mask_zero=True)
    decoder, dense = kt.layers.Decoder(1, 2, 16), keras.layers.Dense(11)
    losses = []
    for padding in (0, 5):
        ids = np.pad([[5, 2, 7]], [(0, 0), (0, padding)])
        logits = dense(decoder(embedding(ids)))
        assert getattr(logits, "_keras_mask", None) is not None
        losses.append(float(kt.losses.LabelSmoothedCrossEntropy()(ids, logits)))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="Keras's trainer on JAX drops masks of outputs"
)
def test_stock_losses_and_metrics_do_not_count_padding() -> None:
    model = small()
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
        jit_compile=False,
    )
    found = []
    for padding in (0, 5):
        ids = np.pad([[5, 2, 7]], [(0, 0), (0, padding)])
        found.append(model.evaluate({"source_ids": ids, "target_ids": ids}, ids, verbose=0))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
