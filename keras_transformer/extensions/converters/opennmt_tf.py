"""OpenNMT-tf 2: a directory with a TensorFlow checkpoint, its vocabularies and its configuration.

Files of the directory:

    checkpoint, ckpt-N.*    weights; averaged ones are in the subdirectory avg
    model_description.py    the model; it is read, but never executed
    data.yml                the configuration given to `onmt-main --config`, under any name
    *.vocab, *.model        vocabularies, and SentencePiece models

OpenNMT-tf numbers positions from 1, divides by 10000^(i / (d/2 - 1)), and usually has no end token
in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config, Tying
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.converted import (
    ConvertedModel,
    SourceWeights,
    WeightTable,
    make_model,
)
from keras_transformer.extensions.converters.files import (
    order_tokens,
    read_tokens,
    read_yaml,
)
from keras_transformer.extensions.converters.pieces import PieceOrder
from keras_transformer.extensions.converters.tf_checkpoints import TFCheckpoint
from keras_transformer.runs.checkpoints import Arrays

# The models of OpenNMT-tf's catalog, with their numbers of heads.
_HEADS = {
    "Transformer": 8,
    "TransformerBase": 8,
    "TransformerBaseSharedEmbeddings": 8,
    "TransformerBig": 16,
    "TransformerBigSharedEmbeddings": 16,
    "TransformerTiny": 2,
    "ScalingNmtEnDe": 16,
    "ScalingNmtEnFr": 16,
}
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu"}
_EPSILON = 1e-3  # the default of Keras, which OpenNMT-tf does not change

_SOURCE = "examples_inputter/features_inputter/embedding"
_TARGET = "examples_inputter/labels_inputter/embedding"
_OUTPUT = "decoder/output_layer/kernel"
_OUTPUT_BIAS = "decoder/output_layer/bias"

# Sublayers of ours → sublayers of OpenNMT-tf.
_SUBLAYERS: dict[str, dict[str, str]] = {
    "encoder": {"self_attention": "self_attention", "feed_forward": "ffn"},
    "decoder": {
        "self_attention": "self_attention",
        "cross_attention": "attention/0",
        "feed_forward": "ffn",
    },
}
# Weights of a sublayer → weights of OpenNMT-tf, each with a kernel and a bias.
_PROJECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "self_attention": {
        "qkv": ("linear_queries", "linear_keys", "linear_values"),
        "output": ("linear_output",),
    },
    "cross_attention": {
        "query": ("linear_queries",),
        "key_value": ("linear_keys", "linear_values"),
        "output": ("linear_output",),
    },
    "feed_forward": {"inner": ("inner",), "outer": ("outer",)},
}


def read(path: Path, options: ConvertOptions) -> ConvertedModel:
    """Reads a model of OpenNMT-tf."""
    checkpoint = TFCheckpoint.find(path)
    directory = checkpoint.directory
    if directory.name == "avg":  # averaged weights, in a subdirectory of the model
        directory = directory.parent
    description = _description(directory, options.num_heads)
    configuration = read_yaml(directory, options.config)
    data = _section(configuration, "data")
    _check_controls(data)
    source = SourceWeights(checkpoint.object_weights("model"), str(checkpoint.path))
    tying = _tying(checkpoint)
    order = order_tokens(
        [_tokens(data.get(f"{side}_vocabulary"), directory) for side in ("source", "target")],
        options.sentencepiece,
        joint=tying == "all",
        pad_piece="<blank>",
        start_row=1,
    )
    weights = _embeddings(checkpoint, source, order, tying)
    sizes = {name: _count(source, f"{name}/layers/") for name in ("encoder", "decoder")}
    norm = "input_layer_norm" if "encoder/layer_norm/gamma" in source else "output_layer_norm"
    has_bias = "encoder/layers/0/self_attention/layer/linear_queries/bias" in source
    weights |= source.read(_table(sizes, norm, has_bias))
    source.check_all_used()

    parameters = _section(configuration, "params")
    config = Config().updated(
        {
            **{f"model.{name}": value for name, value in description.items()},
            "model.tie_embeddings": tying,
            "model.output_bias": True,
            "model.d_model": weights["encoder/layer_0/feed_forward/outer_bias"].size,
            "model.d_ff": weights["encoder/layer_0/feed_forward/inner_bias"].size,
            "model.num_encoder_layers": sizes["encoder"],
            "model.num_decoder_layers": sizes["decoder"],
            "model.norm_position": "pre" if norm == "input_layer_norm" else "post",
            "model.layer_norm_epsilon": _EPSILON,
            "model.attention_bias": has_bias,
            "model.sinusoid_layout": "halves",
            "model.sinusoid_frequencies": "tensor2tensor",
            "model.first_position": 1,
            "model.mask_source_end": not _controls(data, "source").get("end", False),
            "decoding.beam_size": parameters.get("beam_width", 4),
            "decoding.length_penalty": parameters.get("length_penalty", 0.0),
            "decoding.coverage_penalty": parameters.get("coverage_penalty", 0.0),
        }
    )
    return make_model(config, weights, order.vocabulary)


def _table(sizes: Mapping[str, int], norm: str, has_bias: bool) -> WeightTable:
    """Returns our paths of all weights of the stacks, with their names in OpenNMT-tf."""
    table = {}
    for stack, sublayers in _SUBLAYERS.items():
        for i in range(sizes[stack]):
            for ours, theirs in sublayers.items():
                path, name = f"{stack}/layer_{i}/{ours}", f"{stack}/layers/{i}/{theirs}"
                for projection, parts in _PROJECTIONS[ours].items():
                    for kind in ("kernel", "bias"):
                        if kind == "kernel" or has_bias or ours == "feed_forward":
                            table[f"{path}/{projection}_{kind}"] = tuple(
                                f"{name}/layer/{part}/{kind}" for part in parts
                            )
                for kind in ("gamma", "beta"):
                    table[f"{path}_norm/{kind}"] = (f"{name}/{norm}/{kind}",)
        if norm == "input_layer_norm":
            for kind in ("gamma", "beta"):
                table[f"{stack}/norm/{kind}"] = (f"{stack}/layer_norm/{kind}",)
    return table


def _tying(checkpoint: TFCheckpoint) -> Tying:
    """Returns which matrices are shared: a shared matrix is stored once."""
    source, target, output = (
        checkpoint.object_name("model", name) for name in (_SOURCE, _TARGET, _OUTPUT)
    )
    if output != target:
        return "none"
    return "all" if source == target else "target"


def _embeddings(
    checkpoint: TFCheckpoint, source: SourceWeights, order: PieceOrder, tying: Tying
) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""

    def rows(name: str) -> np.ndarray:
        matrix = source.take(checkpoint.object_name("model", name))
        matrix = matrix.T if name == _OUTPUT and tying == "none" else matrix
        # OpenNMT-tf gives the unknown token the last id. See `_tokens`.
        return np.concatenate([matrix[:3], matrix[-1:], matrix[3:-1]])

    if tying == "all":
        arrays = {"embedding/embeddings": order.source_embeddings(rows(_SOURCE))}
    else:
        arrays = {
            "source_embedding/embeddings": order.source_embeddings(rows(_SOURCE)),
            "target_embedding/embeddings": order.target_embeddings(rows(_TARGET)),
        }
    if tying == "none":
        arrays["output_projection/kernel"] = order.target_embeddings(rows(_OUTPUT)).T
    bias = rows(_OUTPUT_BIAS) if _OUTPUT_BIAS in source else None
    arrays["output_projection/bias"] = order.output_bias(bias)
    return arrays


def _count(source: SourceWeights, prefix: str) -> int:
    i = 0
    while f"{prefix}{i}/ffn/layer/inner/kernel" in source:
        i += 1
    return i


def _description(directory: Path, num_heads: int | None) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` that model_description.py sets.

    The file is Python code. It is parsed and not executed: only names of the catalog and arguments
    that are literals are understood.
    """
    path = directory / "model_description.py"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError:
        tree = ast.Module([], [])
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path} is not Python code: {error}") from None
    names: list[str] = []
    arguments: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            arguments.update({each.arg: each.value for each in node.keywords if each.arg})
        names += [
            str(getattr(node, name)) for name in ("attr", "id", "value") if hasattr(node, name)
        ]
    given = arguments.get("num_heads")
    if isinstance(given, ast.Constant) and isinstance(given.value, int):
        num_heads = num_heads or given.value
    else:
        num_heads = num_heads or next((_HEADS[name] for name in names if name in _HEADS), None)
    if num_heads is None:
        raise InputError(
            f"{path} does not say how many attention heads the model has. Give the number with "
            "--num_heads."
        )
    activation = arguments.get("ffn_activation")
    name = getattr(activation, "attr", getattr(activation, "id", "relu"))
    if name not in _ACTIVATIONS:
        raise InputError(
            f"{path} sets ffn_activation to {name}. Only {', '.join(_ACTIVATIONS)} can be "
            "converted."
        )
    rates = {
        "embedding_dropout": "dropout",
        "residual_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "ffn_dropout",
    }
    found = {ours: arguments.get(theirs) for ours, theirs in rates.items()}
    return {
        "num_heads": num_heads,
        "activation": _ACTIVATIONS[name],
        **{
            name: rate.value if isinstance(rate, ast.Constant) else 0.1
            for name, rate in found.items()
        },
    }


def _section(configuration: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = configuration.get(name) or {}
    if not isinstance(section, dict):
        raise InputError(f"The section {name} of the configuration is {section!r:.60}.")
    return section


def _controls(data: Mapping[str, Any], side: str) -> dict[str, Any]:
    default = {"start": True, "end": True} if side == "target" else {}
    return {**default, **_section(data, f"{side}_sequence_controls")}


def _check_controls(data: Mapping[str, Any]) -> None:
    """Raises an error for start tokens in the source, or a target without start or end."""
    source, target = _controls(data, "source"), _controls(data, "target")
    if source.get("start") or not (target["start"] and target["end"]):
        raise InputError(
            "The configuration adds a start token to the source, or leaves out the start or the "
            "end token of the target (data.source_sequence_controls, "
            "data.target_sequence_controls). Such a model cannot be converted."
        )


def _tokens(name: Any, directory: Path) -> list[str]:
    """Returns the tokens of a vocabulary, with the unknown token in the fourth place.

    In OpenNMT-tf its id is the last one, which usually differs between source and target.
    """
    if not isinstance(name, str):
        raise InputError(
            "The configuration lacks data.source_vocabulary or data.target_vocabulary. Give the "
            "configuration that trained the model with --config."
        )
    path = directory / name
    # The path may be one on the machine of the training.
    path = path if path.is_file() else directory / Path(name).name
    tokens = read_tokens(path)
    if tokens[:3] != ["<blank>", "<s>", "</s>"]:
        raise InputError(
            f"{path} begins with {' '.join(tokens[:3])!r:.60}, but a vocabulary of OpenNMT-tf "
            "begins with the lines <blank>, <s> and </s>."
        )
    return [*tokens[:3], "<unk>", *tokens[3:]]
