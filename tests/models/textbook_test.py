"""The Transformer that PyTorch textbooks print is a configuration of ours.

Its forward pass is written down here in NumPy with PyTorch's conventions:
`nn.Linear` holds a weight [out, in] and computes x W^T + b; `nn.LayerNorm` has
an epsilon of 1e-5; four separate projections W_q, W_k, W_v, W_o with biases;
embeddings neither scaled nor tied; no norm after the stacks. `converted` shows
where each of its weights goes in `Transformer`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_transformer.config import ModelConfig
from keras_transformer.models.transformer import Transformer

Array = NDArray[Any]
State = dict[str, Array]

D, HEADS, FF, LAYERS, SOURCE_VOCAB, TARGET_VOCAB = 12, 3, 20, 2, 19, 17
CONFIG = ModelConfig(
    source_vocab_size=SOURCE_VOCAB,
    target_vocab_size=TARGET_VOCAB,
    num_encoder_layers=LAYERS,
    num_decoder_layers=LAYERS,
    d_model=D,
    d_ff=FF,
    num_heads=HEADS,
    tie_embeddings="none",
    scale_embeddings=False,
    sinusoid_layout="interleaved",
    norm_position="post",
    layer_norm_epsilon=1e-5,
    attention_bias=True,
    output_bias=True,
)


def formula(name: str, *shape: int) -> Array:
    """Fixed weights that no generator can change: sines of an irrational walk."""
    start = sum(ord(letter) * (i + 1) for i, letter in enumerate(name))
    walk = np.sin(1.0 + start + math.sqrt(2.0) * np.arange(math.prod(shape)) ** 1.5)
    centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
    return (centre + 0.5 * walk).reshape(shape)


def textbook_state() -> State:
    """A state dictionary as `torch` would name it."""
    shapes: dict[str, tuple[int, ...]] = {
        "encoder_embedding.weight": (SOURCE_VOCAB, D),
        "decoder_embedding.weight": (TARGET_VOCAB, D),
        "fc.weight": (TARGET_VOCAB, D),
        "fc.bias": (TARGET_VOCAB,),
    }
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "cross_attn"])):
        for i in range(LAYERS):
            at = f"{stack}_layers.{i}"
            for attention in attentions:
                for linear in ("W_q", "W_k", "W_v", "W_o"):
                    shapes[f"{at}.{attention}.{linear}.weight"] = (D, D)
                    shapes[f"{at}.{attention}.{linear}.bias"] = (D,)
            shapes[f"{at}.feed_forward.fc1.weight"] = (FF, D)
            shapes[f"{at}.feed_forward.fc1.bias"] = (FF,)
            shapes[f"{at}.feed_forward.fc2.weight"] = (D, FF)
            shapes[f"{at}.feed_forward.fc2.bias"] = (D,)
            for k in range(len(attentions) + 1):
                shapes[f"{at}.norm{k + 1}.weight"] = (D,)
                shapes[f"{at}.norm{k + 1}.bias"] = (D,)
    return {name: formula(name, *shape) for name, shape in shapes.items()}


def linear(x: Array, state: State, name: str) -> Array:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def norm(x: Array, state: State, name: str) -> Array:
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normed * state[f"{name}.weight"] + state[f"{name}.bias"]


def attend(x: Array, memory: Array, mask: Array, state: State, name: str) -> Array:
    def split_heads(y: Array) -> Array:  # --> [batch, heads, length, d_k]
        return y.reshape(y.shape[0], y.shape[1], HEADS, D // HEADS).transpose(0, 2, 1, 3)

    q = split_heads(linear(x, state, f"{name}.W_q"))
    k = split_heads(linear(memory, state, f"{name}.W_k"))
    v = split_heads(linear(memory, state, f"{name}.W_v"))
    scores = np.where(mask, q @ k.transpose(0, 1, 3, 2) / math.sqrt(D // HEADS), -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    heads = (weights / weights.sum(-1, keepdims=True)) @ v
    return linear(heads.transpose(0, 2, 1, 3).reshape(x.shape), state, f"{name}.W_o")


def feed_forward(x: Array, state: State, name: str) -> Array:
    return linear(np.maximum(linear(x, state, f"{name}.fc1"), 0.0), state, f"{name}.fc2")


def positional_encoding(length: int) -> Array:
    position = np.arange(length)[:, None]
    div_term = np.exp(np.arange(0, D, 2) * -(math.log(10000.0) / D))
    pe = np.zeros((length, D))
    pe[:, 0::2], pe[:, 1::2] = np.sin(position * div_term), np.cos(position * div_term)
    return pe


def textbook_forward(src: Array, tgt: Array, state: State) -> Array:
    src_mask = (src != 0)[:, None, None, :]
    tgt_mask = (tgt != 0)[:, None, :, None] & np.tri(tgt.shape[1], dtype=bool)
    x = state["encoder_embedding.weight"][src] + positional_encoding(src.shape[1])
    for i in range(LAYERS):
        at = f"encoder_layers.{i}"
        x = norm(x + attend(x, x, src_mask, state, f"{at}.self_attn"), state, f"{at}.norm1")
        x = norm(x + feed_forward(x, state, f"{at}.feed_forward"), state, f"{at}.norm2")
    y = state["decoder_embedding.weight"][tgt] + positional_encoding(tgt.shape[1])
    for i in range(LAYERS):
        at = f"decoder_layers.{i}"
        y = norm(y + attend(y, y, tgt_mask, state, f"{at}.self_attn"), state, f"{at}.norm1")
        y = norm(y + attend(y, x, src_mask, state, f"{at}.cross_attn"), state, f"{at}.norm2")
        y = norm(y + feed_forward(y, state, f"{at}.feed_forward"), state, f"{at}.norm3")
    return linear(y, state, "fc")


def converted(state: State) -> State:
    """The textbook's weights under the paths of `Transformer`."""

    def kernel(*names: str) -> Array:  # several Linears side by side: [in, sum of outs]
        return np.concatenate([state[f"{name}.weight"].T for name in names], axis=1)

    def bias(*names: str) -> Array:
        return np.concatenate([state[f"{name}.bias"] for name in names])

    ours = {
        "source_embedding/embeddings": state["encoder_embedding.weight"],
        "target_embedding/embeddings": state["decoder_embedding.weight"],
        "output_projection/kernel": kernel("fc"),
        "output_projection/bias": bias("fc"),
    }
    norms = {
        "encoder": ["self_attention", "feed_forward"],
        "decoder": ["self_attention", "cross_attention", "feed_forward"],
    }
    for stack, sublayers in norms.items():
        for i in range(LAYERS):
            here, there = f"{stack}/layer_{i}", f"{stack}_layers.{i}"
            attn = f"{there}.self_attn"
            qkv = [f"{attn}.W_q", f"{attn}.W_k", f"{attn}.W_v"]
            ours[f"{here}/self_attention/qkv_kernel"] = kernel(*qkv)
            ours[f"{here}/self_attention/qkv_bias"] = bias(*qkv)
            ours[f"{here}/self_attention/output_kernel"] = kernel(f"{attn}.W_o")
            ours[f"{here}/self_attention/output_bias"] = bias(f"{attn}.W_o")
            if stack == "decoder":
                attn = f"{there}.cross_attn"
                key_value = [f"{attn}.W_k", f"{attn}.W_v"]
                ours[f"{here}/cross_attention/query_kernel"] = kernel(f"{attn}.W_q")
                ours[f"{here}/cross_attention/query_bias"] = bias(f"{attn}.W_q")
                ours[f"{here}/cross_attention/key_value_kernel"] = kernel(*key_value)
                ours[f"{here}/cross_attention/key_value_bias"] = bias(*key_value)
                ours[f"{here}/cross_attention/output_kernel"] = kernel(f"{attn}.W_o")
                ours[f"{here}/cross_attention/output_bias"] = bias(f"{attn}.W_o")
            for name, fc in (("inner", "fc1"), ("outer", "fc2")):
                ours[f"{here}/feed_forward/{name}_kernel"] = kernel(f"{there}.feed_forward.{fc}")
                ours[f"{here}/feed_forward/{name}_bias"] = bias(f"{there}.feed_forward.{fc}")
            for k, sublayer in enumerate(sublayers, start=1):
                ours[f"{here}/{sublayer}_norm/gamma"] = state[f"{there}.norm{k}.weight"]
                ours[f"{here}/{sublayer}_norm/beta"] = state[f"{there}.norm{k}.bias"]
    return ours


def test_textbook_implementation_is_a_configuration() -> None:
    source = np.array([[5, 7, 1, 18, 3], [4, 9, 3, 0, 0]], np.int32)
    target = np.array([[2, 6, 11, 16, 8, 9], [2, 10, 5, 4, 0, 0]], np.int32)
    state = textbook_state()

    model = Transformer(CONFIG)
    model({"source_ids": source, "target_ids": target})
    weights = converted(state)
    ours = {w.path.partition("/")[2]: w for w in model.trainable_weights}
    assert ours.keys() == weights.keys()
    for path, variable in ours.items():
        variable.assign(weights[path])

    logits = model({"source_ids": source, "target_ids": target}, training=False)
    expected = textbook_forward(source, target, state)
    tokens = target != 0
    np.testing.assert_allclose(np.asarray(logits)[tokens], expected[tokens], rtol=1e-5, atol=1e-5)
