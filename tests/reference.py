"""A float64 reading of "Attention Is All You Need" (Vaswani et al., 2017) in NumPy.

Written from the paper's equations to check `keras_transformer` against: plain
functions of plain arrays, one head at a time and without a cache, so that each
line can be held against the paper. `weights` is a dictionary from a weight's
path inside the model to its array. Nothing here is fast.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_transformer.config import ModelConfig

Array = NDArray[Any]
Weights = Mapping[str, Array]


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# Section 3.2: attention


def attention(query: Array, key: Array, value: Array, mask: Array) -> tuple[Array, Array]:
    """Equation 1, softmax(QK^T / sqrt(d_k)) V, over the keys where `mask` is true.

    Args:
        query: [B, Tq, d_k]. key: [B, Tk, d_k]. value: [B, Tk, d_v].
        mask: bool, broadcast to [B, Tq, Tk].

    Returns:
        Output [B, Tq, d_v] and attention weights [B, Tq, Tk].
    """
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(key.shape[-1])
    # Finite, so that a query without any visible key does not have NaN weights.
    weights = softmax(np.where(mask, scores, -1e30))
    return weights @ value, weights


def _split(array: Array, sizes: list[int]) -> list[Array]:
    """Splits the last axis into parts of these sizes."""
    assert array.shape[-1] == sum(sizes)
    return np.split(array, np.cumsum(sizes)[:-1], axis=-1)


def _heads(query: Array, key: Array, value: Array, heads: int, mask: Array) -> tuple[Array, Array]:
    """Attention of each head: Concat(head_1, ..., head_h) [B, Tq, h d_v], [B, h, Tq, Tk]."""
    parts = [np.split(x, heads, axis=-1) for x in (query, key, value)]
    results = [attention(q, k, v, mask) for q, k, v in zip(*parts, strict=True)]
    outputs, weights = zip(*results, strict=True)
    return np.concatenate(outputs, axis=-1), np.stack(weights, axis=1)


def _project(x: Array, weights: Weights, name: str) -> Array:
    """x W + b for the weights `name_kernel` and, where the model has it, `name_bias`."""
    return x @ weights[f"{name}_kernel"] + weights.get(f"{name}_bias", 0.0)


def _attention_sizes(path: str, config: ModelConfig) -> tuple[int, int, int]:
    """h, d_k and d_v of the stack at this path. Other heads share the same total width."""
    h, dk, dv = config.num_heads, config.key_dim or 0, config.value_dim or 0
    if path.startswith("decoder") and config.other_toolkits.decoder_num_heads is not None:
        split = config.other_toolkits.decoder_num_heads
        assert (h * dk) % split == (h * dv) % split == 0
        return split, h * dk // split, h * dv // split
    return h, dk, dv


def self_attention(
    x: Array, weights: Weights, path: str, config: ModelConfig, mask: Array
) -> tuple[Array, Array]:
    """MultiHead(x, x, x) of section 3.2.2: output [B, T, d], weights [B, h, T, T]."""
    h, dk, dv = _attention_sizes(path, config)
    q, k, v = _split(_project(x, weights, f"{path}/qkv"), [h * dk, h * dk, h * dv])
    output, probabilities = _heads(q, k, v, h, mask)
    return _project(output, weights, f"{path}/output"), probabilities


def cross_attention(
    x: Array, memory: Array, weights: Weights, path: str, config: ModelConfig, mask: Array
) -> tuple[Array, Array]:
    """MultiHead(x, memory, memory): output [B, T, d], weights [B, h, T, S]."""
    h, dk, dv = _attention_sizes(path, config)
    q = _project(x, weights, f"{path}/query")
    k, v = _split(_project(memory, weights, f"{path}/key_value"), [h * dk, h * dv])
    output, probabilities = _heads(q, k, v, h, mask)
    return _project(output, weights, f"{path}/output"), probabilities


def padding_mask(ids: Array, pad_id: int) -> Array:
    """[B, T] ids to bool [B, 1, T]: true where there is a token."""
    return (ids != pad_id)[:, None, :]


def causal_mask(length: int) -> Array:
    """bool [T, T]: position i sees j <= i."""
    return np.array([[j <= i for j in range(length)] for i in range(length)])


def window_mask(length: int, window: int | None) -> Array:
    """bool [T, T]: position i sees |i - j| <= r // 2 (restricted self-attention, section 4)."""
    reach = length if window is None else window // 2
    return np.array([[abs(i - j) <= reach for j in range(length)] for i in range(length)])


# Sections 3.3 to 3.5, and the layer normalization of section 3.1


def activate(x: Array, activation: str) -> Array:
    if activation == "relu":
        return np.maximum(x, 0.0)
    if activation == "gelu":
        result: Array = x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
        return result
    assert activation == "silu", activation
    return x / (1.0 + np.exp(-x))


def feed_forward(x: Array, weights: Weights, path: str, activation: str) -> Array:
    """Equation 2: max(0, x W1 + b1) W2 + b2."""
    return _project(activate(_project(x, weights, f"{path}/inner"), activation), weights,
                    f"{path}/outer")  # fmt: skip


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta


def sinusoidal_positions(
    length: int, d_model: int, layout: str, frequencies: str, first: int
) -> Array:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) its cosine.

    In the "halves" layout all sines stand before all cosines. Tensor2Tensor divides by
    10000^(i/(d/2-1)) instead. The rows are the positions `first` to `first + length - 1`.
    """
    if frequencies == "tensor2tensor":
        divisors = [math.exp(i * math.log(10000) / (d_model / 2 - 1)) for i in range(d_model // 2)]
    else:
        assert frequencies == "paper", frequencies
        divisors = [10000.0 ** (2 * i / d_model) for i in range(d_model // 2)]
    angle = np.array([[p / divisor for divisor in divisors] for p in range(first, first + length)])
    if layout == "halves":
        return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)
    assert layout == "interleaved", layout
    table = np.empty((length, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)
    return table


def embed(ids: Array, weights: Weights, side: str, config: ModelConfig) -> Array:
    """Embeddings, scaled by sqrt(d) if configured, plus positions, normalized: [B, T, d].

    Args:
        side: "source" or "target".
    """
    path = "embedding" if config.tie_embeddings == "all" else f"{side}_embedding"
    x = weights[f"{path}/embeddings"][ids]
    if config.other_toolkits.scale_embeddings:
        x = x * math.sqrt(config.d_model)
    length = ids.shape[1]
    if config.positions == "learned":
        x = x + weights[f"{side}_positions/embeddings"][:length]
    else:
        x = x + positions_of(config, length)
    return _norm(x, weights, f"{side}_norm", config) if config.other_toolkits.embedding_norm else x


def positions_of(config: ModelConfig, length: int) -> Array:
    """The sinusoids of a model: [T, d]."""
    kind = config.other_toolkits
    return sinusoidal_positions(
        length, config.d_model, kind.sinusoid_layout, kind.sinusoid_frequencies, kind.first_position
    )


# Section 3.1: the stacks


def _norm(x: Array, weights: Weights, path: str, config: ModelConfig) -> Array:
    gamma, beta = (weights[f"{path}/{name}"] for name in ("gamma", "beta"))
    return layer_norm(x, gamma, beta, config.other_toolkits.layer_norm_epsilon)


def _norm_at(position: str, x: Array, weights: Weights, path: str, config: ModelConfig) -> Array:
    """The norm of a sublayer: LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)).

    Args:
        position: "pre" for the input of the sublayer, "post" for the sum.
    """
    return _norm(x, weights, f"{path}_norm", config) if config.norm_position == position else x


def _final_norm(x: Array, weights: Weights, path: str, config: ModelConfig) -> Array:
    """The norm behind a stack. Without a choice, only stacks with norms in front have one."""
    chosen = config.other_toolkits.final_norm
    chosen = config.norm_position == "pre" if chosen is None else chosen
    return _norm(x, weights, f"{path}/norm", config) if chosen else x


def encoder(
    x: Array, mask: Array, weights: Weights, config: ModelConfig
) -> tuple[Array, list[Array]]:
    """The encoder's stack: [B, S, d] to memory [B, S, d]; `mask` is bool [B, 1, S].

    Returns:
        The memory, and each layer's attention weights [B, h, S, S].
    """
    seen = []
    mask = mask & window_mask(x.shape[1], config.attention_window)
    for i in range(config.num_encoder_layers):
        path = f"encoder/layer_{i}/self_attention"
        y = _norm_at("pre", x, weights, path, config)
        output, probabilities = self_attention(y, weights, path, config, mask)
        x = _norm_at("post", x + output, weights, path, config)
        seen.append(probabilities)
        x = _feed_forward_sublayer(x, weights, f"encoder/layer_{i}/feed_forward", config)
    return _final_norm(x, weights, "encoder", config), seen


def ssru(x: Array, weights: Weights, path: str) -> Array:
    """The recurrent unit of the decoder: [B, T, d] to [B, T, d], one position after another."""
    candidates, gates = np.split(x @ weights[f"{path}/input_kernel"], 2, axis=-1)
    forget = 1 / (1 + np.exp(-gates - weights[f"{path}/forget_bias"]))
    cell, outputs = np.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        cell = forget[:, t] * cell + (1 - forget[:, t]) * candidates[:, t]
        outputs.append(np.maximum(cell, 0))
    return np.stack(outputs, axis=1)


def _feed_forward_sublayer(x: Array, weights: Weights, path: str, config: ModelConfig) -> Array:
    y = _norm_at("pre", x, weights, path, config)
    output = feed_forward(y, weights, path, config.activation)
    return _norm_at("post", x + output, weights, path, config)


def decoder(
    x: Array, memory: Array, memory_mask: Array, weights: Weights, config: ModelConfig
) -> tuple[Array, list[Array], list[Array]]:
    """The decoder's stack: [B, T, d] to [B, T, d]; `memory_mask` is bool [B, 1, S].

    Returns:
        The states, and each layer's attention weights: its own [B, h, T, T], and those of the
        memory [B, h, T, S].
    """
    seen, seen_across = [], []
    length = x.shape[1]
    mask = (causal_mask(length) & window_mask(length, config.attention_window))[None]
    for i in range(config.num_decoder_layers):
        path = f"decoder/layer_{i}/self_attention"
        y = _norm_at("pre", x, weights, path, config)
        if config.decoder_self_attention == "ssru":
            output = ssru(y, weights, f"decoder/layer_{i}/ssru")
        else:
            output, probabilities = self_attention(y, weights, path, config, mask)
            seen.append(probabilities)
        x = _norm_at("post", x + output, weights, path, config)
        path = f"decoder/layer_{i}/cross_attention"
        y = _norm_at("pre", x, weights, path, config)
        output, probabilities = cross_attention(y, memory, weights, path, config, memory_mask)
        x = _norm_at("post", x + output, weights, path, config)
        seen_across.append(probabilities)
        x = _feed_forward_sublayer(x, weights, f"decoder/layer_{i}/feed_forward", config)
    return _final_norm(x, weights, "decoder", config), seen, seen_across


def output_logits(x: Array, weights: Weights, config: ModelConfig) -> Array:
    """The pre-softmax product of section 3.4: [B, T, d] to [B, T, V]."""
    if config.tie_embeddings == "none":
        kernel = weights["output_projection/kernel"]
    else:
        tied = "embedding" if config.tie_embeddings == "all" else "target_embedding"
        kernel = weights[f"{tied}/embeddings"].T
    bias = weights["output_projection/bias"] if config.other_toolkits.output_bias else 0.0
    return x @ kernel + bias


def _run(
    source_ids: Array, target_ids: Array, weights: Weights, config: ModelConfig
) -> tuple[Array, dict[str, list[Array]]]:
    mask = padding_mask(source_ids, config.pad_id)
    x = embed(source_ids, weights, "source", config)
    memory, encoder_seen = encoder(x, mask, weights, config)
    y = embed(target_ids, weights, "target", config)
    states, decoder_seen, across = decoder(y, memory, mask, weights, config)
    return states, {"encoder": encoder_seen, "decoder": decoder_seen, "cross": across}


def transformer(
    source_ids: Array, target_ids: Array, weights: Weights, config: ModelConfig
) -> Array:
    """The whole model: int [B, S] and [B, T] to logits [B, T, V].

    Rows at padded target positions are meaningless.
    """
    states, _ = _run(source_ids, target_ids, weights, config)
    return output_logits(states, weights, config)


def attention_weights(
    source_ids: Array, read_ids: Array, weights: Weights, config: ModelConfig
) -> dict[str, Array]:
    """Attention weights of all layers: `encoder`, `decoder`, `cross`, each [B, layers, h, ., .]."""
    _, seen = _run(source_ids, read_ids, weights, config)
    batch, length = read_ids.shape
    none = np.zeros((batch, 0, 1, length, length))  # of a decoder with a recurrent unit
    return {kind: np.stack(layers, axis=1) if layers else none for kind, layers in seen.items()}


# Section 5.4


def label_smoothed_loss(logits: Array, labels: Array, pad_id: int, smoothing: float) -> float:
    """Cross entropy with (1 - eps) 1[k = label] + eps / V, averaged over the tokens."""
    size = logits.shape[-1]
    expected = (1.0 - smoothing) * np.eye(size)[labels] + smoothing / size
    losses = -(expected * log_softmax(logits)).sum(axis=-1)
    tokens = labels != pad_id
    return float((losses * tokens).sum() / tokens.sum())
