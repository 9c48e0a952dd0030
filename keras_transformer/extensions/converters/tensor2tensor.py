"""Tensor2Tensor: a directory with a checkpoint of TensorFlow 1, `hparams.json` and subwords.

Files of the directory, which `t2t-trainer` wrote as --output_dir, and of its --data_dir:

    checkpoint, model.ckpt-N.*    weights; the embeddings have up to 16 parts
    hparams.json                  sizes and variants of the model
    *.subwords                    the vocabulary

Tensor2Tensor has no start token: the decoder begins with a vector of zeros. A learned vector of the
target space is added to the source embeddings. The converter adds it to the matrix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.converted import (
    ConvertedModel,
    SourceWeights,
    WeightTable,
    make_model,
)
from keras_transformer.extensions.converters.files import (
    find_vocabularies,
    order_tokens,
)
from keras_transformer.extensions.converters.pieces import PieceOrder
from keras_transformer.extensions.converters.subword_text import SubwordText
from keras_transformer.extensions.converters.tf_checkpoints import TFCheckpoint
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.checkpoints import Arrays, reading

_SCOPE = "transformer/"
_TARGET_SPACE = "body/target_space_embedding/kernel"

# The values of hparams.json that can be converted. The first one is the default.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "norm_type": ("layer",),
    "ffn_layer": ("dense_relu_dense",),
    "self_attention_type": ("dot_product",),
    "pos": ("timing",),
    "proximity_bias": (False,),
    "attention_variables_3d": (False,),
    "unidirectional_encoder": (False,),
    "causal_decoder_self_attention": (True,),
    "hard_attention_k": (0,),
    "multiply_embedding_mode": ("sqrt_depth",),
    "num_area_layers": (0,),
    "prepend_mode": ("none",),
}
# layer_preprocess_sequence and layer_postprocess_sequence without dropout ("d").
_NORM_POSITIONS = {("none", "an"): "post", ("n", "a"): "pre"}

# Our path → Tensor2Tensor's names. Both are below the layer, such as `encoder/layer_0`.
_SELF_ATTENTION = {
    "self_attention/qkv_kernel": tuple(f"self_attention/multihead_attention/{x}" for x in "qkv"),
    "self_attention/output_kernel": ("self_attention/multihead_attention/output_transform",),
}
_CROSS_ATTENTION = {
    "cross_attention/query_kernel": ("encdec_attention/multihead_attention/q",),
    "cross_attention/key_value_kernel": (
        "encdec_attention/multihead_attention/k",
        "encdec_attention/multihead_attention/v",
    ),
    "cross_attention/output_kernel": ("encdec_attention/multihead_attention/output_transform",),
}
_FEED_FORWARD = {
    "feed_forward/inner_kernel": ("ffn/conv1",),
    "feed_forward/inner_bias": ("ffn/conv1",),
    "feed_forward/outer_kernel": ("ffn/conv2",),
    "feed_forward/outer_bias": ("ffn/conv2",),
}
_LAYERS: dict[str, dict[str, tuple[str, ...]]] = {
    "encoder": {**_SELF_ATTENTION, **_FEED_FORWARD},
    "decoder": {**_SELF_ATTENTION, **_CROSS_ATTENTION, **_FEED_FORWARD},
}
_NORMS = {
    "self_attention_norm": "self_attention",
    "cross_attention_norm": "encdec_attention",
    "feed_forward_norm": "ffn",
}
_NORM_PARTS = {"gamma": "layer_norm_scale", "beta": "layer_norm_bias"}


def read(path: Path, options: ConvertOptions) -> ConvertedModel:
    """Reads a Transformer of Tensor2Tensor."""
    checkpoint = TFCheckpoint.find(path)
    file = checkpoint.directory / "hparams.json"
    with reading(file, "hyperparameters of Tensor2Tensor"):
        hparams = dict(json.loads(file.read_text(encoding="utf-8")))
    _check_supported(hparams, file)
    with reading(file, "hyperparameters of Tensor2Tensor"):
        settings = _settings(hparams, file)
    arrays = {
        name.removeprefix(_SCOPE): array
        for name, array in checkpoint.variables(_SCOPE).items()
        if not name.endswith(("/Adam", "/Adam_1"))
    }
    source = SourceWeights(arrays, str(checkpoint.path))
    shared = settings["model.tie_embeddings"] != "none"
    vocabularies = find_vocabularies(checkpoint.directory, "*.subwords", options)
    order = order_tokens(
        [_tokens(each) for each in vocabularies],
        None,
        joint=shared,
        pad_piece="<pad>",
        start_row=-1,
    )
    weights = source.read(_table(settings))
    weights |= _embeddings(source, settings, order, options.target_space)
    if "source_embedding/embeddings" in weights and shared:
        settings["model.tie_embeddings"] = "target"
    source.check_all_used()
    return make_model(Config().updated(settings), weights, order.vocabulary)


# The configuration.


def _check_supported(hparams: Mapping[str, Any], file: Path) -> None:
    """Raises an `InputError` for a model that this package cannot express."""
    for name, supported in _SUPPORTED.items():
        value = hparams.get(name, supported[0])
        if value not in supported:
            raise InputError(
                f"{file} has {name} {value!r}. Only models with {supported[0]!r} can be converted."
            )


def _settings(hparams: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Returns the settings of the model, named like `model.d_model`."""
    before, after = (hparams[f"layer_{name}process_sequence"] for name in ("pre", "post"))
    norm_position = _NORM_POSITIONS.get((before.replace("d", "") or "none", after.replace("d", "")))
    if norm_position is None:
        raise InputError(
            f"{file} has the layer_preprocess_sequence {before!r} and the "
            f"layer_postprocess_sequence {after!r}. Only post-norm ('none' and 'dan') and pre-norm "
            "('n' and 'da') can be converted."
        )
    layers = hparams["num_hidden_layers"]
    size, heads = int(hparams["hidden_size"]), int(hparams["num_heads"])
    return {
        "model.d_model": size,
        "model.num_encoder_layers": hparams.get("num_encoder_layers") or layers,
        "model.num_decoder_layers": hparams.get("num_decoder_layers") or layers,
        "model.num_heads": heads,
        "model.key_dim": (hparams.get("attention_key_channels") or size) // heads,
        "model.value_dim": (hparams.get("attention_value_channels") or size) // heads,
        "model.d_ff": hparams["filter_size"],
        "model.norm_position": norm_position,
        "model.layer_norm_epsilon": hparams["norm_epsilon"],
        "model.tie_embeddings": (
            "all" if hparams["shared_embedding_and_softmax_weights"] else "none"
        ),
        "model.output_bias": True,
        "model.sinusoid_layout": "halves",
        "model.sinusoid_frequencies": "tensor2tensor",
        "model.embedding_dropout": hparams["layer_prepostprocess_dropout"],
        "model.residual_dropout": hparams["layer_prepostprocess_dropout"],
        "model.attention_dropout": hparams["attention_dropout"],
        "model.activation_dropout": hparams["relu_dropout"],
    }


# Weights.


def _table(settings: Mapping[str, Any]) -> WeightTable:
    """Returns the table of all weights except the embeddings."""
    table = {}
    is_pre = settings["model.norm_position"] == "pre"
    scope = "layer_prepostprocess/layer_norm" if is_pre else "layer_postprocess/layer_norm"
    for stack, layer in _LAYERS.items():
        for i in range(settings[f"model.num_{stack}_layers"]):
            ours, theirs = f"{stack}/layer_{i}", f"body/{stack}/layer_{i}"
            for path, names in layer.items():
                kind = path.rpartition("_")[2]
                table[f"{ours}/{path}"] = tuple(f"{theirs}/{name}/{kind}" for name in names)
            for path, name in _NORMS.items():
                if stack == "decoder" or name != "encdec_attention":
                    for part, kind in _NORM_PARTS.items():
                        table[f"{ours}/{path}/{part}"] = (f"{theirs}/{name}/{scope}/{kind}",)
        if is_pre:
            for part, kind in _NORM_PARTS.items():
                table[f"{stack}/norm/{part}"] = (f"body/{stack}/{scope}/{kind}",)
    return table


def _embeddings(
    source: SourceWeights, settings: Mapping[str, Any], order: PieceOrder, target_space: int
) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""
    scale = settings["model.d_model"] ** 0.5
    space: Any = 0.0
    if _TARGET_SPACE in source:
        spaces = source.take(_TARGET_SPACE)
        if target_space >= len(spaces):
            raise InputError(f"target_space is {target_space}. Choose one below {len(spaces)}.")
        # Embeddings are multiplied by √d_model, but this vector is not.
        space = spaces[target_space] / scale
    names = {"inputs": "input_emb", "targets": "target_emb", "softmax": "softmax"}
    if settings["model.tie_embeddings"] == "all":
        names = dict.fromkeys(names, "shared")
    matrices = {name: _matrix(source, scope) for name, scope in names.items()}
    target = order.target_embeddings(matrices["targets"])
    inputs = order.source_embeddings(matrices["inputs"] + space)
    # Tensor2Tensor has no unknown token.
    bias = np.zeros(len(matrices["softmax"]), np.float32)
    bias[order.vocabulary.unknown_id] = EXCLUDED_TOKEN_BIAS
    arrays = {"output_projection/bias": order.output_bias(bias)}
    if settings["model.tie_embeddings"] == "all" and _TARGET_SPACE not in source:
        return {**arrays, "embedding/embeddings": target}
    if settings["model.tie_embeddings"] == "none":
        arrays["output_projection/kernel"] = order.target_embeddings(matrices["softmax"]).T
    return {
        **arrays,
        "source_embedding/embeddings": inputs,
        "target_embedding/embeddings": target,
    }


def _matrix(source: SourceWeights, scope: str) -> np.ndarray:
    """Joins the parts of a matrix, `symbol_modality_V_d/SCOPE/weights_0` and so on.

    A row for the unknown token is added after the first two tokens.
    """
    names = [name for name in source.names() if name.split("/")[1:2] == [scope]]
    parts = [name for i in range(len(names)) for name in names if name.endswith(f"/weights_{i}")]
    if not parts or len({name.rpartition("/")[0] for name in parts}) > 1:
        raise InputError(
            f"{source.place} must have one matrix {scope}/weights_0. It is damaged, or "
            "hparams.json belongs to another model."
        )
    matrix = np.concatenate([source.take(name) for name in parts])
    return np.insert(matrix, 2, 0.0, axis=0)


def _tokens(path: Path) -> list[str]:
    """Returns the tokens of a vocabulary, with an unknown token in the third place."""
    return ["<pad>", "</s>", "<unk>", *SubwordText.load(path).written()[2:]]
