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
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from keras_transformer.config import Config, ModelConfig
from keras_transformer.errors import InputError, require
from keras_transformer.extensions.converters import ConvertOptions, source
from keras_transformer.runs.checkpoints import reading

# The models of OpenNMT-tf's catalog, with their numbers of heads.
_HEADS = {
    **dict.fromkeys(["Transformer", "TransformerBase", "TransformerBaseSharedEmbeddings"], 8),
    **dict.fromkeys(["TransformerBig", "TransformerBigSharedEmbeddings"], 16),
    **dict.fromkeys(["ScalingNmtEnDe", "ScalingNmtEnFr"], 16),
    "TransformerTiny": 2,
}
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu"}
_RATES = {  # our dropouts → arguments of the model
    "embedding_dropout": "dropout",
    "residual_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "ffn_dropout",
}
_EPSILON = 1e-3  # the default of Keras, which OpenNMT-tf does not change

_SOURCE = "examples_inputter/features_inputter/embedding"
_TARGET = "examples_inputter/labels_inputter/embedding"
_OUTPUT = "decoder/output_layer/kernel"
_OUTPUT_BIAS = "decoder/output_layer/bias"


class TFCheckpoint:
    """A checkpoint of TensorFlow 1 or 2: an `.index` file, or the newest one of a directory."""

    def __init__(self, path: Path):
        prefix: Any = str(path).removesuffix(".index")
        if path.is_dir():
            with reading(path / "checkpoint", "the name of a TensorFlow checkpoint"):
                prefix = tf.train.latest_checkpoint(str(path))
        if prefix is None or not Path(f"{prefix}.index").is_file():
            raise InputError(
                f"{path} contains no TensorFlow checkpoint. It needs the file checkpoint, with the "
                "files that it names. Or give the .index file of a checkpoint."
            )
        self.path = Path(prefix)
        self.directory = self.path.parent
        with reading(self.path, "a checkpoint"):
            self._reader: Any = tf.train.load_checkpoint(prefix)
            self._names = list(self._reader.get_variable_to_shape_map())

    def variables(self, scope: str, suffix: str = "") -> dict[str, np.ndarray]:
        """Returns the variables below a scope by the rest of their names, except slots."""
        slot = re.compile(r"\.OPTIMIZER_SLOT|/Adam(_1)?$")
        with reading(self.path, "a checkpoint"):
            return {
                name.removeprefix(scope).removesuffix(suffix): self._reader.get_tensor(name)
                for name in self._names
                if name.startswith(scope) and not slot.search(name)
            }

    def stored_names(self, root: str, suffix: str, *names: str) -> list[str]:
        """Returns the names under which variables are stored. Shared ones are stored once."""
        with reading(self.path, "a checkpoint of TensorFlow 2"):
            content = np.asarray(self._reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")).item()
            graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(content)
            stored = []
            for name in names:
                node = graph.nodes[0]
                for part in (root + name).split("/"):
                    ids = [child.node_id for child in node.children if child.local_name == part]
                    node = graph.nodes[ids[0]] if ids else graph.TrackableObject()
                keys = [a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"]
                key = keys[0] if keys else name
                stored.append(key.removeprefix(root).removesuffix(suffix))
        return stored


def read(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads a model of OpenNMT-tf."""
    checkpoint = TFCheckpoint(path)
    directory = checkpoint.directory
    if directory.name == "avg":  # it has averaged weights, and its parent is the model
        directory = directory.parent
    description = _description(directory, options.num_heads)
    file, configuration = _read_configuration(directory, options.config)
    data, parameters = (_section(configuration, name) for name in ("data", "params"))
    controls = {side: _section(data, f"{side}_sequence_controls") for side in ("source", "target")}
    if source.flag(controls["source"], "start") or not all(
        source.flag(controls["target"], name, True) for name in ("start", "end")
    ):
        raise InputError(
            "The configuration adds a start token to the source, or leaves out the start or the "
            "end token of the target (data.source_sequence_controls, "
            "data.target_sequence_controls). Such a model cannot be converted."
        )

    source.check_supported(parameters, {"coverage_penalty": (0.0,)}, directory)
    scope, suffix = "model/", "/.ATTRIBUTES/VARIABLE_VALUE"
    weights = source.SourceWeights(checkpoint.variables(scope, suffix), str(checkpoint.path))
    inputs, target, output = checkpoint.stored_names(scope, suffix, _SOURCE, _TARGET, _OUTPUT)
    tying = "none" if output != target else "all" if inputs == target else "target"
    order = source.order_tokens(
        [_tokens(data.get(f"{side}_vocabulary"), directory) for side in ("source", "target")],
        options.sentencepiece,
        joint=tying == "all",
        pad_piece="<blank>",
        start_row=1,
    )
    embeddings = _reordered(weights.take(inputs))
    targets = None if tying == "all" else _reordered(weights.take(target))
    kernel = _reordered(weights.take(output).T) if tying == "none" else None
    bias = _reordered(weights.take(_OUTPUT_BIAS)) if _OUTPUT_BIAS in weights else None
    arrays = order.weights(embeddings, targets, kernel, bias)

    kernel_name = re.compile(r"(encoder|decoder)/layers/\d+/ffn/layer/inner/kernel")
    longest = parameters.get("maximum_decoding_length", 250)  # does not depend on the source
    layers = [found[1] for found in map(kernel_name.fullmatch, weights.names()) if found]
    settings = {
        **source.COMMON_SETTINGS,
        **{f"model.{name}": value for name, value in description.items()},
        "model.tie_embeddings": tying,
        "model.d_model": embeddings.shape[-1],
        "model.d_ff": weights.take("encoder/layers/0/ffn/layer/inner/bias").size,
        "model.num_encoder_layers": layers.count("encoder"),
        "model.num_decoder_layers": layers.count("decoder"),
        "model.norm_position": "pre" if "encoder/layer_norm/gamma" in weights else "post",
        "model.layer_norm_epsilon": _EPSILON,
        "model.attention_bias": (
            "encoder/layers/0/self_attention/layer/linear_queries/bias" in weights
        ),
        "model.first_position": 1,
        "model.mask_source_end": not source.flag(controls["source"], "end"),
        "decoding.beam_size": parameters.get("beam_width", 4),
        "decoding.length_penalty": parameters.get("length_penalty", 0.0),
        **dict.fromkeys(["decoding.max_length", "decoding.max_extra_tokens"], longest),
    }
    with reading(file, "a YAML configuration"):
        config = Config().updated(settings)
    arrays |= weights.read_rest(_table, config.model)
    return source.make_model(config, arrays, order.vocabulary)


def _table(model: ModelConfig) -> source.WeightTable:
    """Returns the table of the stacks."""
    table: source.WeightTable = {}
    names = {"self_attention": "self_attention", "cross_attention": "attention/0"}
    parts = ("linear_queries", "linear_keys", "linear_values", "linear_output")
    kinds, norm_kinds = ("kernel", "bias"), ("gamma", "beta")
    is_pre = model.norm_position == "pre"
    norm = "input_layer_norm/{}" if is_pre else "output_layer_norm/{}"
    for stack, (_, sublayers) in source.STACKS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            ours, theirs = f"{stack}/layer_{i}", f"{stack}/layers/{i}"
            for sublayer in sublayers:
                name = f"{theirs}/{names[sublayer]}"
                projections = [f"{name}/layer/{part}/{{}}" for part in parts]
                attention_kinds = kinds if model.other_toolkits.attention_bias else kinds[:1]
                table |= source.attention(f"{ours}/{sublayer}", projections, attention_kinds)
                table |= source.layer_norm(f"{ours}/{sublayer}_norm", f"{name}/{norm}", norm_kinds)
            inner, outer = (f"{theirs}/ffn/layer/{part}/{{}}" for part in ("inner", "outer"))
            table |= source.feed_forward(f"{ours}/feed_forward", inner, outer, kinds)
            name = f"{theirs}/ffn/{norm}"
            table |= source.layer_norm(f"{ours}/feed_forward_norm", name, norm_kinds)
        if is_pre:
            table |= source.layer_norm(f"{stack}/norm", f"{stack}/layer_norm/{{}}", norm_kinds)
    return table


def _reordered(matrix: np.ndarray) -> np.ndarray:
    """Moves the last row, of the unknown token, to the fourth position. See `_tokens`."""
    return np.concatenate([matrix[:3], matrix[-1:], matrix[3:-1]])


# The configuration.


def _read_configuration(directory: Path, path: str | None) -> tuple[Path, dict[str, Any]]:
    files = [*directory.glob("*.yml"), *directory.glob("*.yaml")] if path is None else [Path(path)]
    what = f"{directory} must contain one configuration (.yml)"
    remedy = "Give the configuration that trained the model as config."
    file = source.only_one(files, what, remedy)
    with reading(file, "a YAML configuration"):
        return file, source.read_yaml(file.read_bytes(), "SafeLoader")


def _description(directory: Path, num_heads: int | None) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` that model_description.py sets.

    The file is Python code. It is parsed and not executed: only names of the catalog and arguments
    that are literals are understood.
    """
    path = directory / "model_description.py"
    with reading(path, "Python code"):
        nodes = [*ast.walk(ast.parse(path.read_bytes() if path.is_file() else b""))]
    names = [getattr(node, name, None) for node in nodes for name in ("attr", "id", "value")]
    words = [word for node in nodes if isinstance(node, ast.Call) for word in node.keywords]
    literals = {
        word.arg: word.value.value for word in words if isinstance(word.value, ast.Constant)
    }
    of_catalog = next((_HEADS[name] for name in map(str, names) if name in _HEADS), None)
    heads = num_heads or literals.get("num_heads") or of_catalog
    message = f"{path} does not say how many attention heads the model has. Give num_heads."
    require(heads is not None, message)
    activation = next((word.value for word in words if word.arg == "ffn_activation"), None)
    name = getattr(activation, "attr", getattr(activation, "id", "relu"))
    source.check_supported({"ffn_activation": name}, {"ffn_activation": [*_ACTIVATIONS]}, path)
    rates = {ours: literals.get(theirs, 0.1) for ours, theirs in _RATES.items()}
    with reading(path, "Python code"):
        heads = source.size({"num_heads": heads}, "num_heads")
    return {"num_heads": heads, "activation": _ACTIVATIONS[name], **rates}


def _section(configuration: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = configuration.get(name) or {}
    if not isinstance(section, dict):
        raise InputError(f"The section {name} of the configuration is {section!r:.60}.")
    return section


def _tokens(name: Any, directory: Path) -> list[str]:
    """Returns the tokens of a vocabulary, with the unknown token at the fourth position.

    In OpenNMT-tf its id is the last one, which usually differs between source and target.
    """
    if not isinstance(name, str):
        raise InputError(
            "The configuration lacks data.source_vocabulary or data.target_vocabulary. Give the "
            "configuration that trained the model as config."
        )
    path = directory / name
    # The path may be one on the machine of the training.
    path = path if os.path.isfile(path) else directory / Path(name).name
    tokens = source.read_tokens(path)
    if tokens[:3] != ["<blank>", "<s>", "</s>"]:
        raise InputError(
            f"{path} begins with {' '.join(tokens[:3])!r:.60}, but a vocabulary of OpenNMT-tf "
            "begins with the lines <blank>, <s> and </s>."
        )
    return [*tokens[:3], "<unk>", *tokens[3:]]
