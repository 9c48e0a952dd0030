"""fairseq: a checkpoint of PyTorch, with the dictionaries of source and target.

Files of the directory:

    checkpoint_best.pt      weights and settings; or another name, given as --input
    dict.LANGUAGE.txt       the vocabularies, as fairseq-preprocess writes them
    *.model                 SentencePiece models

fairseq numbers positions from 2, divides by 10000^(i / (d/2 - 1)), and begins a target with the end
token. Learned positions begin with the third row of their matrix.
"""

from __future__ import annotations

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
    read_tokens,
)
from keras_transformer.extensions.converters.pieces import PieceOrder
from keras_transformer.extensions.converters.torch_files import (
    Inert,
    read_torch_file,
)
from keras_transformer.runs.checkpoints import Arrays, reading

_SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]  # they are not in the files
_START_ROW = 2  # the end token also begins a target
_FIRST_POSITION = 2

# The settings that can be converted. The first value is fairseq's default.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "no_token_positional_embeddings": (False,),
    "adaptive_softmax_cutoff": (None,),
    "adaptive_input": (False,),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "activation_fn": ("relu", "gelu", "swish"),
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
# Settings that must be the same in the encoder and the decoder.
_SAME = ("embed_dim", "normalize_before", "learned_pos")

# Sublayers of ours → projections and norm of fairseq.
_SUBLAYERS: dict[str, tuple[dict[str, tuple[str, ...]], str]] = {
    "self_attention": (
        {
            "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "output": ("self_attn.out_proj",),
        },
        "self_attn_layer_norm",
    ),
    "cross_attention": (
        {
            "query": ("encoder_attn.q_proj",),
            "key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
            "output": ("encoder_attn.out_proj",),
        },
        "encoder_attn_layer_norm",
    ),
    "feed_forward": ({"inner": ("fc1",), "outer": ("fc2",)}, "final_layer_norm"),
}


def read(path: Path, options: ConvertOptions) -> ConvertedModel:
    """Reads a Transformer of fairseq."""
    file = _find_checkpoint(path)
    content = read_torch_file(file)
    with reading(file, "a checkpoint of fairseq"):
        arguments = _arguments(content)
        source = SourceWeights(_with_todays_names(content["model"]), str(file))
    _check_supported(arguments, file)
    with reading(file, "a checkpoint of fairseq"):
        settings = _settings(arguments)
    settings["model.final_norm"] = "encoder.layer_norm.weight" in source
    is_joint = settings["model.tie_embeddings"] == "all"
    vocabularies = find_vocabularies(
        file.parent,
        "dict.*.txt",
        options,
        [
            f"dict.{arguments.get(f'{side}_lang') or 'LANGUAGE'}.txt"
            for side in ("source", "target")
        ],
        can_share=is_joint,
    )
    order = order_tokens(
        [_tokens(each) for each in vocabularies],
        options.sentencepiece,
        joint=is_joint,
        pad_piece="<pad>",
        start_row=_START_ROW,
    )
    weights = source.read(stack_table(settings), transpose=True)
    weights |= embeddings(source, settings, order)
    if settings["model.positions"] == "learned":
        weights |= _positions(source)
        settings["model.max_positions"] = len(weights["source_positions/embeddings"])
    source.check_all_used()
    return make_model(Config().updated(settings), weights, order.vocabulary)


# The checkpoint.


def _find_checkpoint(path: Path) -> Path:
    if not path.is_dir():
        return path
    best = path / "checkpoint_best.pt"
    found = [best] if best.is_file() else sorted(path.glob("*.pt"))
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise InputError(
            f"{path} must contain checkpoint_best.pt or one other .pt file, but has {names}. Give "
            "the file."
        )
    return found[0]


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the model: `args` of old versions, `cfg` of new ones."""
    arguments = content.get("args")
    if arguments is None:
        arguments = content["cfg"]["model"]
    return dict(vars(arguments)) if isinstance(arguments, Inert) else dict(arguments)


def _with_todays_names(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the weights with the names of fairseq 0.12, without those that are constants."""
    norms = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
    arrays = {}
    for name, array in state.items():
        stack, _, rest = name.partition(".")
        if rest == "version" or rest.startswith(
            ("embed_positions._float", "embed_positions.weights")
        ):
            continue
        before, fused, kind = name.partition(".in_proj_")
        if fused:  # one matrix for queries, keys and values
            for part, each in zip("qkv", np.split(array, 3), strict=True):
                arrays[f"{before}.{part}_proj.{kind}"] = each
            continue
        for i, norm in enumerate(norms.get(stack, [])):
            name = name.replace(f".layer_norms.{i}.", f".{norm}.")
        arrays[name] = array
    return arrays


# The configuration.


def _check_supported(arguments: Mapping[str, Any], file: Path) -> None:
    """Raises an `InputError` for a model that this package cannot express."""
    name = str(arguments.get("arch") or arguments.get("_name"))
    if not name.startswith("transformer") or "lm" in name.split("_"):
        raise InputError(f"{file} has the architecture {name}. Only transformer can be converted.")
    for name, supported in _SUPPORTED.items():
        value = arguments.get(name, supported[0])
        if value not in supported:
            shown = " or ".join(map(str, supported))
            raise InputError(
                f"{file} has {name} {value!r}. Only models with {shown} can be converted."
            )
    for name in _SAME:
        encoder, decoder = (arguments.get(f"{stack}_{name}") for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise InputError(
                f"{file} has encoder_{name} {encoder!r}, but decoder_{name} {decoder!r}. Both must "
                "be the same."
            )


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the model and the search, named like `model.d_model`."""
    tying = "none"
    if arguments.get("share_all_embeddings"):
        tying = "all"
    elif arguments.get("share_decoder_input_output_embed"):
        tying = "target"
    is_learned = bool(arguments.get("encoder_learned_pos"))
    dropout = arguments.get("dropout", 0.1)
    return {
        "model.d_model": arguments["encoder_embed_dim"],
        "model.num_encoder_layers": arguments["encoder_layers"],
        "model.num_decoder_layers": arguments["decoder_layers"],
        "model.num_heads": arguments["encoder_attention_heads"],
        "model.decoder_num_heads": arguments["decoder_attention_heads"],
        "model.d_ff": arguments["encoder_ffn_embed_dim"],
        "model.decoder_d_ff": arguments["decoder_ffn_embed_dim"],
        "model.activation": _ACTIVATIONS[arguments.get("activation_fn", "relu")],
        "model.norm_position": "pre" if arguments.get("encoder_normalize_before") else "post",
        "model.layer_norm_epsilon": 1e-5,
        "model.scale_embeddings": not arguments.get("no_scale_embedding", False),
        "model.embedding_norm": bool(arguments.get("layernorm_embedding", False)),
        "model.tie_embeddings": tying,
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.positions": "learned" if is_learned else "sinusoidal",
        "model.sinusoid_layout": "halves",
        "model.sinusoid_frequencies": "tensor2tensor",
        "model.first_position": 0 if is_learned else _FIRST_POSITION,
        "model.embedding_dropout": dropout,
        "model.residual_dropout": dropout,
        "model.attention_dropout": arguments.get("attention_dropout", 0.0),
        "model.activation_dropout": arguments.get("activation_dropout", 0.0),
        "decoding.beam_size": 5,  # the defaults of fairseq-generate
        "decoding.length_penalty": 1.0,
        "decoding.length_penalty_formula": "power",
    }


# Weights.


def stack_table(settings: Mapping[str, Any]) -> WeightTable:
    """Returns the table of all weights except the embeddings and positions."""
    table: dict[str, tuple[str, ...]] = {}

    def add_norm(ours: str, theirs: str) -> None:
        table[f"{ours}/gamma"], table[f"{ours}/beta"] = (f"{theirs}.weight",), (f"{theirs}.bias",)

    for stack, side in (("encoder", "source"), ("decoder", "target")):
        for i in range(settings[f"model.num_{stack}_layers"]):
            ours, theirs = f"{stack}/layer_{i}", f"{stack}.layers.{i}"
            for sublayer, (projections, norm) in _SUBLAYERS.items():
                if sublayer == "cross_attention" and stack == "encoder":
                    continue
                for projection, parts in projections.items():
                    for kind, suffix in (("kernel", "weight"), ("bias", "bias")):
                        table[f"{ours}/{sublayer}/{projection}_{kind}"] = tuple(
                            f"{theirs}.{part}.{suffix}" for part in parts
                        )
                add_norm(f"{ours}/{sublayer}_norm", f"{theirs}.{norm}")
        if settings["model.final_norm"]:
            add_norm(f"{stack}/norm", f"{stack}.layer_norm")
        if settings["model.embedding_norm"]:
            add_norm(f"{side}_norm", f"{stack}.layernorm_embedding")
    return table


def embeddings(source: SourceWeights, settings: Mapping[str, Any], order: PieceOrder) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    output = ["decoder.output_projection.weight", "decoder.embed_out"]
    arrays = {"output_projection/bias": order.output_bias(None)}
    if settings["model.tie_embeddings"] == "all":
        matrix = source.take_one_of(*names, *output)
        return {**arrays, "embedding/embeddings": order.source_embeddings(matrix)}
    if settings["model.tie_embeddings"] == "target":
        target = source.take_one_of(names[1], *output)
    else:
        target = source.take(names[1])
        kernel = source.take_one_of(*output)
        arrays["output_projection/kernel"] = order.target_embeddings(kernel).T
    return {
        **arrays,
        "source_embedding/embeddings": order.source_embeddings(source.take(names[0])),
        "target_embedding/embeddings": order.target_embeddings(target),
    }


def _positions(source: SourceWeights) -> Arrays:
    """Returns the learned positions of both sides, cut to the shorter matrix."""
    encoder, decoder = (
        source.take(f"{stack}.embed_positions.weight")[_FIRST_POSITION:]
        for stack in ("encoder", "decoder")
    )
    count = min(len(encoder), len(decoder))
    return {
        "source_positions/embeddings": encoder[:count],
        "target_positions/embeddings": decoder[:count],
    }


# The vocabulary.


def _tokens(path: Path) -> list[str]:
    """Returns the tokens of a dictionary, whose lines are a token and its count."""
    tokens = []
    for line in read_tokens(path):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdecimal():
            raise InputError(
                f"{path} has the line {line!r:.60}, but each line of a dictionary of fairseq is a "
                "token and its count."
            )
        tokens.append(token)
    return [*_SPECIAL_TOKENS, *tokens]
