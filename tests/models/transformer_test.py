"""The whole model against the float64 reference: forward, backward, cached, masked, saved."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.decoding import next_token
from keras_transformer.errors import InputError
from keras_transformer.layers.state import DecodeState
from keras_transformer.models.transformer import (
    EXCLUDED_TOKEN_BIAS,
    OutputProjection,
    Transformer,
)
from tests import reference
from tests.builders import weekly
from tests.layers.layer_check import assert_same, check_layer, randomize, to_numpy

SMALL: dict[str, Any] = {
    "source_vocab_size": 11, "target_vocab_size": 11, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2,
}  # fmt: skip
UNTIED: dict[str, Any] = {"tie_embeddings": "none", "target_vocab_size": 13}
ALL_BIASES: dict[str, Any] = {"attention_bias": True, "output_bias": True}
HALVES: dict[str, Any] = {"sinusoid_layout": "halves"}
TENSOR2TENSOR: dict[str, Any] = {**HALVES, "sinusoid_frequencies": "tensor2tensor"}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre_norm": {"norm_position": "pre"},
    "tied_target": {"tie_embeddings": "target", "target_vocab_size": 13, "scale_embeddings": False},
    "untied": {**UNTIED, "norm_position": "pre"},
    "biases": {**ALL_BIASES, "layer_norm_epsilon": 0.01},
    # The implementation of most PyTorch textbooks.
    "textbook": {**UNTIED, **ALL_BIASES, "scale_embeddings": False, "layer_norm_epsilon": 1e-5},
    "halves": HALVES,
    "marian_prenorm": {
        **TENSOR2TENSOR, **ALL_BIASES,
        "norm_position": "pre", "activation": "silu", "final_norm": False,
    },
    "fairseq": {
        **TENSOR2TENSOR,
        "first_position": 2, "embedding_norm": True, "decoder_d_ff": 10, "decoder_num_heads": 4,
    },
    # `torch.nn.Transformer` normalizes the output of both stacks.
    "torch": {"attention_bias": True, "layer_norm_epsilon": 1e-5, "final_norm": True},
    "learned": {"positions": "learned", "max_positions": 7, "activation": "gelu"},
    "window": {"attention_window": 3, "activation": "silu"},
    "ssru": {"decoder_self_attention": "ssru", "norm_position": "pre"},
    "free_dims": {"key_dim": 3, "value_dim": 5, "num_heads": 3, "pad_id": 5},
}  # fmt: skip
S, T = 7, 6


def make_config(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**SMALL, **VARIANTS[name], **changes})


def make_batch(config: ModelConfig) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns three pairs of different lengths, only the first without padding, and the labels."""
    rng = np.random.default_rng(6)
    source = rng.integers(6, config.source_vocab_size, (3, S), dtype=np.int32)
    target = rng.integers(6, config.target_vocab_size, (3, T + 1), dtype=np.int32)
    target[:, 0] = config.token_ids.start_id
    for ids, lengths in ((source, (S, 4, 1)), (target, (T + 1, 6, 3))):
        for row, length in zip(ids, lengths, strict=True):
            row[length - 1] = config.token_ids.end_id
            row[length:] = config.pad_id
    inputs = {"source_ids": source, "target_ids": target[:, :-1].copy()}
    inputs["target_ids"][inputs["target_ids"] == config.token_ids.end_id] = config.pad_id
    return inputs, target[:, 1:]


built = functools.cache(Transformer)


def make_model(config: ModelConfig, **arguments: Any) -> tuple[Transformer, dict[str, np.ndarray]]:
    """Returns a shared model, whose weights are always the same, and these."""
    model = built(config, **arguments)
    return model, randomize(model)


class Recorder(dict[str, np.ndarray]):
    """Weights that record which of them were read."""

    def __init__(self, weights: dict[str, np.ndarray]):
        super().__init__(weights)
        self.read: set[str] = set()

    def __getitem__(self, path: str) -> np.ndarray:
        self.read.add(path)
        return super().__getitem__(path)

    def get(self, path: str, default: Any = None) -> Any:
        self.read.add(path)
        return super().get(path, default)


@pytest.mark.parametrize("name", VARIANTS)
def test_forward_pass_and_weights_are_the_papers(name: str) -> None:
    config = make_config(name)
    model, values = make_model(config)
    inputs, labels = make_batch(config)
    logits = to_numpy(model(inputs))
    weights = Recorder(values)
    expected = reference.transformer(inputs["source_ids"], inputs["target_ids"], weights, config)
    assert logits.shape == (3, T, config.target_vocab_size)
    tokens = labels != config.pad_id
    assert_same(logits[tokens], expected[tokens])
    assert values.keys() <= weights.read, "the reference does not use a weight"
    assert all(w.path.startswith("transformer/") for w in model.trainable_weights)
    assert model.count_params() == config.num_parameters()


@pytest.mark.parametrize("name", ["paper", "textbook", "learned", "window", "fairseq", "ssru"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_gradients_are_those_of_the_papers_loss(name: str, norm_position: str) -> None:
    smoothing, step = 0.1, 1e-6
    config = make_config(
        name, norm_position=norm_position, num_encoder_layers=1, num_decoder_layers=1
    )
    model, weights = make_model(config)
    inputs, labels = make_batch(config)
    size = config.target_vocab_size
    expected_labels = (1 - smoothing) * np.eye(size, dtype=np.float32)[labels] + smoothing / size
    with tf.GradientTape() as tape:
        losses = tf.nn.softmax_cross_entropy_with_logits(expected_labels, model(inputs))
        tokens = tf.cast(labels != config.pad_id, tf.float32)
        loss = tf.reduce_sum(losses * tokens) / tf.reduce_sum(tokens)
    variables = {path: v.value for path, v in model.weights_by_path().items() if path in weights}
    gradients = tape.gradient(loss, variables)

    def reference_loss(moves: dict[str, np.ndarray]) -> float:
        moved = {path: weights[path] + moves.get(path, 0.0) for path in weights}
        logits = reference.transformer(inputs["source_ids"], inputs["target_ids"], moved, config)
        return reference.label_smoothed_loss(logits, labels, config.pad_id, smoothing)

    np.testing.assert_allclose(loss, reference_loss({}), rtol=1e-5)
    rng = np.random.default_rng(8)
    for path, gradient in gradients.items():  # the slope in a random direction
        direction = rng.normal(size=weights[path].shape)
        ahead, behind = (reference_loss({path: sign * step * direction}) for sign in (1, -1))
        found = (tf.convert_to_tensor(gradient).numpy() * direction).sum()
        slope = (ahead - behind) / (2 * step)
        np.testing.assert_allclose(found, slope, rtol=1e-3, atol=1e-5, err_msg=path)


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "halves",
        "learned",
        "window",
        "fairseq",
        "ssru",
        *map(weekly, ["pre_norm", "untied"]),
    ],
)
def test_cached_decoding_equals_the_full_pass(name: str) -> None:
    config = make_config(name)
    model, _ = make_model(config)
    inputs, labels = make_batch(config)
    # Without padding, all positions are compared.
    target = np.where(labels == config.pad_id, 6, inputs["target_ids"])
    full = to_numpy(model({"source_ids": inputs["source_ids"], "target_ids": target}))
    memory = model.encode(inputs["source_ids"])
    features, _ = model.decode(target, memory)
    assert_same(to_numpy(model.logits(features)), full)
    if name != "halves":  # this variant projects its memory again at each step
        memory = model.project_memory(memory)
    cache = model.init_cache(3, T + 2)
    for i in range(T):
        state = DecodeState(cache, i)
        features, _ = model.decode(target[:, i : i + 1], memory, state)
        cache = state.layers
        logits = to_numpy(model.logits(features))
        np.testing.assert_allclose(logits[:, 0], full[:, i], atol=1e-5)


@pytest.mark.parametrize("name", ["paper", weekly("window"), weekly("free_dims")])
def test_no_split_has_widths_that_are_computed_in_the_graph(name: str) -> None:
    # LiteRT reads uninitialized memory after such a split.
    model, _ = make_model(make_config(name))
    ids = tf.TensorSpec([1, None], tf.int32)
    function = tf.function(
        lambda source, target: model({"source_ids": source, "target_ids": target})
    )
    operations = {op.type for op in function.get_concrete_function(ids, ids).graph.get_operations()}
    assert "MatMul" in operations and "SplitV" not in operations


def test_a_masked_end_of_the_source_counts_as_no_token() -> None:
    config = make_config("paper", mask_source_end=True)
    model, values = make_model(config)
    inputs, labels = make_batch(config)
    inputs, labels = {name: ids[:2] for name, ids in inputs.items()}, labels[:2]
    logits = to_numpy(model(inputs))
    source = inputs["source_ids"]
    unended = np.where(source == config.token_ids.end_id, config.pad_id, source)
    expected = reference.transformer(unended, inputs["target_ids"], values, config)
    tokens = labels != config.pad_id
    assert_same(logits[tokens], expected[tokens])
    weights = to_numpy(model.encoder_attention(inputs["source_ids"])[0])
    assert np.all(weights[..., -1] == 0)


@pytest.mark.parametrize("name", ["paper", "fairseq", "learned"])
def test_a_forced_language_changes_no_other_token(name: str) -> None:
    config = make_config(name, forced_language=True, max_positions=S + 1)
    model, values = make_model(config)
    inputs, labels = make_batch(config)
    source = np.pad(inputs["source_ids"], ((0, 0), (1, 0)), constant_values=8)
    logits = to_numpy(model({**inputs, "source_ids": source}))
    if name == "learned":  # the first position is the one of the language
        path = "source_positions/embeddings"
        values = {**values, path: values[path][1:]}
    expected = reference.transformer(inputs["source_ids"], inputs["target_ids"], values, config)
    tokens = labels != config.pad_id
    assert_same(logits[tokens], expected[tokens])
    weights = to_numpy(model.encoder_attention(source)[0])
    assert weights.shape[-1] == S + 1 and np.all(weights[..., 0] == 0)


@pytest.mark.parametrize("name", ["paper", "ssru", weekly("fairseq")])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_near_float32(name: str, policy: str) -> None:
    config = make_config(name)
    model, weights = make_model(config, dtype=policy)
    inputs, labels = make_batch(config)
    assert {w.dtype for w in model.trainable_weights} == {"float32"}
    expected = reference.transformer(inputs["source_ids"], inputs["target_ids"], weights, config)
    tokens = labels != config.pad_id
    error = np.abs(to_numpy(model(inputs))[tokens] - expected[tokens]).max()
    assert 1e-6 < error < (0.2 if policy == "mixed_bfloat16" else 0.02)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_excluded_tokens_do_not_enter_the_softmax(policy: str) -> None:
    config = make_config("biases")
    model, _ = make_model(config, dtype=policy)
    excluded = np.isin(
        np.arange(config.target_vocab_size), [config.pad_id, config.token_ids.start_id]
    )
    bias = model.output_projection.bias
    bias.assign(np.where(excluded, EXCLUDED_TOKEN_BIAS, to_numpy(bias)))
    embeddings = model.target_embedding.embeddings
    embeddings.assign(embeddings * np.where(excluded, 100.0, 1.0)[:, None])  # any large logits
    inputs, _ = make_batch(config)
    logits = tf.reshape(tf.cast(model(inputs), tf.float32), [-1, config.target_vocab_size])
    for log_softmax in (tf.nn.log_softmax, next_token.log_softmax):
        log_probs = log_softmax(logits).numpy()
        assert (np.exp(log_probs[:, excluded]) == 0).all() and np.isfinite(log_probs).all()
        expected = log_softmax(tf.boolean_mask(logits, ~excluded, axis=1))
        np.testing.assert_allclose(log_probs[:, ~excluded], expected, rtol=0, atol=1e-6)


def test_get_config_rebuilds_and_keeps_every_field() -> None:
    config = make_config("free_dims", tie_embeddings="none", positions="learned", max_positions=9)
    model, _ = make_model(config)
    rebuilt = Transformer.from_config(model.get_config())
    assert rebuilt.config == config
    rebuilt.build()
    rebuilt.set_weights(model.get_weights())
    inputs, _ = make_batch(config)
    assert_same(to_numpy(rebuilt(inputs)), to_numpy(model(inputs)))
    with pytest.raises(InputError, match="num_heads"):
        Transformer({"num_heads": 0})


def test_weights_by_path_covers_frozen_weights() -> None:
    model = Transformer(make_config("biases"))
    paths = model.weights_by_path().keys()
    model.encoder.trainable = False
    frozen = model.weights_by_path()
    assert frozen.keys() == paths and len(frozen) == len(model.weights)
    assert len(model.trainable_weights) < len(frozen)
    other = Transformer(make_config("biases"))
    other.assign_weights({path: to_numpy(v) for path, v in frozen.items()})
    for ours, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


@pytest.mark.parametrize("outer", [weekly("captioner"), "my_transformer", "transformer"])
def test_weights_by_path_are_the_same_inside_another_model(outer: str) -> None:
    config = make_config("textbook")
    alone, _ = make_model(config)
    inputs, _ = make_batch(config)

    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__(name=outer)
            self.inner = Transformer(config)

        def call(self, inputs: dict[str, Any]) -> Any:
            return self.inner(inputs)

    model = Outer()
    model(inputs)
    paths = model.inner.weights_by_path().keys()
    assert sorted(paths) == sorted(alone.weights_by_path())
    model.inner.assign_weights({p: to_numpy(v) for p, v in alone.weights_by_path().items()})
    assert_same(to_numpy(model(inputs)), to_numpy(alone(inputs)))


@pytest.mark.parametrize("use_kernel, use_bias", [(True, True), (True, False), (False, True)])
def test_output_projection_is_a_keras_layer(use_kernel: bool, use_bias: bool) -> None:
    x = np.random.default_rng(9).normal(size=(2, 3, 5)).astype(np.float32)
    arguments = {"vocab_size": 7 if use_kernel else 5, "use_kernel": use_kernel}
    arguments["use_bias"] = use_bias
    check_layer(OutputProjection, arguments, {"inputs": x}, (2, 3, arguments["vocab_size"]))
