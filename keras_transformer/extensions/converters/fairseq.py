"""fairseq: checkpoints of PyTorch, and FSMT, the form of its models in transformers.

Files of a directory of fairseq:

    checkpoint_best.pt      weights and settings; or another name, given as --input
    dict.LANGUAGE.txt       the vocabularies, as fairseq-preprocess writes them
    *.model                 SentencePiece models

Files of FSMT, such as facebook/wmt19-en-de:

    config.json                                 sizes
    generation_config.json                      the search; old models have it in config.json
    model.safetensors or pytorch_model.bin      weights, named as in fairseq after `model.`
    vocab-src.json, vocab-tgt.json              the id of each token

Texts of FSMT are tokenized outside of the model, by Moses and BPE: `FSMTTokenizer` does it.

fairseq numbers positions from 2, divides by 10000^(i / (d/2 - 1)), and begins a target with the end
token. Learned positions begin with the third row of their matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import ConvertOptions, source
from keras_transformer.extensions.converters.huggingface import read_generation, read_search
from keras_transformer.extensions.converters.torch_files import Inert, read_torch_file
from keras_transformer.runs.checkpoints import Arrays, reading

_SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]  # they are not in the files
_PAD = 1
_START_ROW = 2  # the end token also begins a target
_FIRST_POSITION = 2
_LIMIT = 200  # the limit of fairseq-generate, which then forces an end token
_TARGET = "decoder.embed_tokens.weight"
_OUTPUT = "decoder.output_projection.weight"
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
# The settings that can be converted. The first value is fairseq's default.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "no_token_positional_embeddings": (False,),
    "adaptive_softmax_cutoff": (None,),
    "adaptive_input": (False,),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "activation_fn": tuple(_ACTIVATIONS),
}
_FSMT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("fsmt",),
    "activation_function": ("relu",),
    "eos_token_id": (_START_ROW,),
    "pad_token_id": (_PAD,),
}
# Options of FSMT, and the values that transformers uses for an old config.json without them.
_FSMT_DEFAULTS = {
    "decoder_start_token_id": 2,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "length_penalty": 1.0,
    "max_length": 200,
    "num_beams": 5,
    "pad_token_id": 1,
}


def read(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads a Transformer of fairseq."""
    file = path
    if path.is_dir():
        best = path / "checkpoint_best.pt"
        found = [best] if best.is_file() else path.glob("*.pt")
        what = f"{path} must contain checkpoint_best.pt or one other .pt file"
        file = source.only_one(found, what, "Give the file.")
    content = read_torch_file(file)
    with reading(file, "a checkpoint of fairseq"):
        # `args` of old versions, `cfg` of new ones
        arguments = content["args"] if content.get("args") else content["cfg"]["model"]
        arguments = dict(vars(arguments) if isinstance(arguments, Inert) else arguments)
        weights = source.SourceWeights(_with_todays_names(content["model"]), str(file))
    architecture = str(arguments.get("arch") or arguments.get("_name"))
    if not architecture.startswith("transformer") or "lm" in architecture.split("_"):
        raise InputError(
            f"{file} has the architecture {architecture:.60}. Only transformer can be converted."
        )
    source.check_supported(arguments, _SUPPORTED, file)
    with reading(file, "a checkpoint of fairseq"):
        has_final_norm = "encoder.layer_norm.weight" in weights
        config = Config().updated({**_settings(arguments), "model.final_norm": has_final_norm})
        positions = _positions(weights) if config.model.positions == "learned" else {}
        for table in positions.values():
            config = config.updated(model__max_positions=len(table))
    is_joint = config.model.tie_embeddings == "all"
    languages = [arguments.get(f"{side}_lang") or "LANGUAGE" for side in ("source", "target")]
    names = [f"dict.{language}.txt" for language in languages]
    vocabularies = source.find_vocabularies(
        file.parent, options, names, "dict.*.txt" if is_joint else None
    )
    tokens = [_tokens(vocabulary) for vocabulary in vocabularies]
    return _make_model(config, weights, tokens, options.sentencepiece, positions)


def read_fsmt(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads an FSMT model."""
    file = path / "config.json"
    fsmt = {**_FSMT_DEFAULTS, **source.read_json(file)}
    source.check_supported({"model_type": None, **fsmt}, _FSMT_SUPPORTED, file)
    state = {name.removeprefix("model."): a for name, a in source.read_state(path).items()}
    with reading(path, "weights of FSMT"):
        is_tied = _OUTPUT not in state or np.array_equal(state[_OUTPUT], state[_TARGET])
    weights = source.SourceWeights(state, str(path))
    weights.ignore(*(f"{stack}.embed_positions.weight" for stack in source.STACKS))
    with reading(file, "a configuration of FSMT"):
        arguments = {  # their names are those of fairseq
            **fsmt,
            "encoder_embed_dim": source.size(fsmt, "d_model"),
            "encoder_ffn_embed_dim": source.size(fsmt, "encoder_ffn_dim"),
            "decoder_ffn_embed_dim": source.size(fsmt, "decoder_ffn_dim"),
            "no_scale_embedding": not source.flag(fsmt, "scale_embedding", True),
            "share_decoder_input_output_embed": is_tied,
        }
        config = Config().updated({**_settings(arguments), "model.final_norm": False})
    tokens = [_fsmt_tokens(path / f"vocab-{side}.json") for side in ("src", "tgt")]
    unknown_id = _SPECIAL_TOKENS.index("<unk>")
    file, generation = read_generation(path, fsmt)
    source.check_supported(generation, {"decoder_start_token_id": (_START_ROW,)}, file)
    config = read_search(config, file, generation, fsmt, unknown_id, never={_PAD})
    return _make_model(config, weights, tokens, None, {})


def _make_model(
    config: Config,
    weights: source.SourceWeights,
    tokens: Sequence[Sequence[str]],
    sentencepiece: Sequence[str] | None,
    positions: Arrays,
) -> source.ConvertedModel:
    tying = config.model.tie_embeddings
    order = source.order_tokens(
        tokens, sentencepiece, joint=tying == "all", pad_piece="<pad>", start_row=_START_ROW
    )
    names = ("encoder.embed_tokens.weight", _TARGET, _OUTPUT, "decoder.embed_out")
    arrays = source.embeddings(weights, tying, order, names)
    arrays |= positions
    arrays |= weights.read_rest(source.fairseq_table, config.model, transpose=True)
    return source.make_model(config, arrays, order.vocabulary)


# The checkpoint.


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
            for part, weight in zip("qkv", np.split(array, 3), strict=True):
                arrays[f"{before}.{part}_proj.{kind}"] = weight
            continue
        for i, norm in enumerate(norms.get(stack, [])):
            name = name.replace(f".layer_norms.{i}.", f".{norm}.")
        arrays[name] = array
    return arrays


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the model and the search, named like `model.d_model`."""
    tying = "none"
    if source.flag(arguments, "share_all_embeddings"):
        tying = "all"
    elif source.flag(arguments, "share_decoder_input_output_embed"):
        tying = "target"
    is_learned = source.flag(arguments, "encoder_learned_pos")
    is_pre = source.flag(arguments, "encoder_normalize_before")
    dropout = arguments.get("dropout", 0.1)
    return {
        **source.COMMON_SETTINGS,
        **source.fairseq_sizes(arguments, "ffn_embed_dim"),
        "model.d_model": source.size(arguments, "encoder_embed_dim"),
        "model.activation": _ACTIVATIONS[arguments.get("activation_fn", "relu")],
        "model.norm_position": "pre" if is_pre else "post",
        "model.layer_norm_epsilon": 1e-5,
        "model.scale_embeddings": not source.flag(arguments, "no_scale_embedding"),
        "model.embedding_norm": source.flag(arguments, "layernorm_embedding"),
        "model.tie_embeddings": tying,
        "model.positions": "learned" if is_learned else "sinusoidal",
        "model.first_position": 0 if is_learned else _FIRST_POSITION,
        "model.embedding_dropout": dropout,
        "model.residual_dropout": dropout,
        "model.attention_dropout": arguments.get("attention_dropout", 0.0),
        "model.activation_dropout": arguments.get("activation_dropout", 0.0),
        "decoding.beam_size": 5,  # the defaults of fairseq-generate
        "decoding.length_penalty": 1.0,
        "decoding.length_penalty_formula": "power",
        "decoding.max_length": _LIMIT,
        "decoding.max_extra_tokens": _LIMIT,  # the limit does not depend on the source
    }


def _positions(weights: source.SourceWeights) -> Arrays:
    """Returns the learned positions of both sides, cut to the shorter matrix."""
    encoder, decoder = (
        weights.take(f"{stack}.embed_positions.weight")[_FIRST_POSITION:]
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
    for line in source.read_tokens(path):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdecimal():
            raise InputError(
                f"{path} has the line {line!r:.60}, but each line of a dictionary of fairseq is a "
                "token and its count."
            )
        tokens.append(token)
    return [*_SPECIAL_TOKENS, *tokens]


def _fsmt_tokens(file: Path) -> list[str]:
    """Returns the tokens of a vocabulary of FSMT in the order of their ids."""
    with reading(file, "a vocabulary"):
        ids = source.read_ids(file)
        tokens = sorted(ids, key=lambda token: ids[token])
        if [ids[token] for token in tokens] != list(range(len(tokens))):
            raise ValueError("its ids are not 0, 1, 2 and so on")
    return tokens
