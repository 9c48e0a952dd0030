"""Models of Marian NMT: `.npz` files such as those of OPUS-MT.

A directory contains the model (`*.npz`, with its configuration inside), the vocabulary
(`*vocab.yml`), the SentencePiece models `source.spm` and `target.spm`, and perhaps `decoder.yml`,
which names these files and sets the search. A vocabulary may also be a SentencePiece model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.console import warn
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.converted import (
    ConvertedModel,
    SourceWeights,
    WeightTable,
    make_model,
)
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    read_sentencepiece,
)
from keras_transformer.runs.checkpoints import Arrays, reading
from keras_transformer.text.model_proto import ModelProto

_CONFIG = "special:model.yml"

# Our path → Marian's names. Both are below the layer, `encoder/layer_0` and `encoder_l1`. `{pre}`
# is "_pre" for pre-norm.
_SELF_ATTENTION = {
    "self_attention/qkv_kernel": ("self_Wq", "self_Wk", "self_Wv"),
    "self_attention/qkv_bias": ("self_bq", "self_bk", "self_bv"),
    "self_attention/output_kernel": ("self_Wo",),
    "self_attention/output_bias": ("self_bo",),
    "self_attention_norm/gamma": ("self_Wo_ln_scale{pre}",),
    "self_attention_norm/beta": ("self_Wo_ln_bias{pre}",),
}
_CROSS_ATTENTION = {
    "cross_attention/query_kernel": ("context_Wq",),
    "cross_attention/query_bias": ("context_bq",),
    "cross_attention/key_value_kernel": ("context_Wk", "context_Wv"),
    "cross_attention/key_value_bias": ("context_bk", "context_bv"),
    "cross_attention/output_kernel": ("context_Wo",),
    "cross_attention/output_bias": ("context_bo",),
    "cross_attention_norm/gamma": ("context_Wo_ln_scale{pre}",),
    "cross_attention_norm/beta": ("context_Wo_ln_bias{pre}",),
}
_FEED_FORWARD = {
    "feed_forward/inner_kernel": ("ffn_W1",),
    "feed_forward/inner_bias": ("ffn_b1",),
    "feed_forward/outer_kernel": ("ffn_W2",),
    "feed_forward/outer_bias": ("ffn_b2",),
    "feed_forward_norm/gamma": ("ffn_ffn_ln_scale{pre}",),
    "feed_forward_norm/beta": ("ffn_ffn_ln_bias{pre}",),
}
_LAYERS = {
    "encoder": {**_SELF_ATTENTION, **_FEED_FORWARD},
    "decoder": {**_SELF_ATTENTION, **_CROSS_ATTENTION, **_FEED_FORWARD},
}
_TOP_NORM = {"norm/gamma": ("top_ln_scale",), "norm/beta": ("top_ln_bias",)}
_EMBEDDING_NORM = {"gamma": ("emb_ln_scale_pre",), "beta": ("emb_ln_bias_pre",)}

# Options of Marian that this package cannot express, and the only values that it supports. Older
# models lack some options.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-ffn-depth": ("2",),
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-attention-mask": ("default",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-no-bias": ("false",),
    "transformer-no-projection": ("false",),
    "transformer-pool": ("false",),
    "transformer-rnn-projection": ("false",),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": ("false",),
    "lemma-dim-emb": ("0",),
    "right-left": ("false",),
    "ulr": ("false",),
}
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}

# The search of OPUS-MT's own decoder.yml files.
_OPUS_MT_SEARCH = {"beam-size": "6", "normalize": "1"}
# Options of decoder.yml that change translations and have no counterpart here, and the values that
# change nothing or are Marian's defaults.
_IGNORED_SEARCH: dict[str, tuple[Any, ...]] = {
    "word-penalty": ("0", "0.0"),
    "max-length-factor": ("3", "3.0"),
    "max-length": ("1000",),
    "output-sampling": ([], "false"),
    "output-approx-knn": ([],),
    "shortlist": ([],),
    "force-decode": ("false",),
    "skip-cost": ("false",),
}


def read(path: Path, options: ConvertOptions) -> ConvertedModel:
    """Reads a model of Marian."""
    del options
    files = _find_files(path)
    arrays, marian = _read_npz(files.model)
    _check_supported(marian, files.model)
    source = SourceWeights(arrays, str(files.model))
    source.ignore(_CONFIG)
    config = Config().updated({**_settings(marian, files.model), **files.search})
    order = _order_pieces(files, marian)
    table = _table(config.model)
    weights = {**source.read(table), **_embeddings(source, config.model, order)}
    source.check_all_used()
    return make_model(config, weights, order.vocabulary)


# Files.


class _Decoder(NamedTuple):
    """The content of decoder.yml."""

    models: list[Path]
    vocabularies: list[Path]
    settings: dict[str, Any]  # of the search, named like `decoding.beam_size`


class _Files(NamedTuple):
    """The files of a model."""

    model: Path
    vocabularies: list[Path]  # of the source and the target
    sentencepiece: list[Path]
    search: dict[str, Any]  # settings of the search


def _find_files(path: Path) -> _Files:
    """Finds the files of a model. `decoder.yml` decides if there are several."""
    directory = path if path.is_dir() else path.parent
    if path.suffix == ".bin" or (path.is_dir() and not any(directory.glob("*.npz"))):
        raise InputError(
            f"{path} contains no .npz model. Models in Marian's binary format (.bin), such as int8 "
            "models for browsers, cannot be converted."
        )
    decoder = _read_decoder(directory)
    model = path
    if path.is_dir():
        models = [f for f in directory.glob("*.npz") if not f.name.endswith(".optimizer.npz")]
        model = _only_one(decoder.models or models, "*.npz", path)
    vocabularies = decoder.vocabularies
    if not vocabularies:
        candidates = [*directory.glob("*vocab.yml"), *directory.glob("vocab*.spm")]
        vocabularies = [_only_one(candidates, "*vocab.yml", path)] * 2
    pieces = [directory / "source.spm", directory / "target.spm"]
    if all(file.suffix == ".spm" for file in vocabularies):
        pieces = vocabularies
    return _Files(model, vocabularies, pieces, decoder.settings)


def _read_decoder(directory: Path) -> _Decoder:
    """Reads decoder.yml. Without one, the search is that of OPUS-MT."""
    named = [directory / "decoder.yml", *sorted(directory.glob("*.decoder.yml"))]
    file = next((file for file in named if file.is_file()), None)
    if file is None:
        return _Decoder([], [], _search(_OPUS_MT_SEARCH))
    with reading(file, "a configuration of Marian"):
        decoder = _yaml(file.read_bytes())
        models, vocabularies = (_named_files(decoder, name, file) for name in ("models", "vocabs"))
        settings = _search(decoder)
    if len(models) > 1:
        raise InputError(
            f"{file} has an ensemble of {len(models)} models. Convert each one separately: give "
            "its .npz file as the input."
        )
    if len(vocabularies) not in (0, 2):
        raise InputError(
            f"{file} has {len(vocabularies)} vocabularies. Only models with two, of one source and "
            "one target, can be converted."
        )
    for name, values in _IGNORED_SEARCH.items():
        value = decoder.get(name, values[0])
        if value not in values:
            warn(
                f"{file} has {name} {value!r}, which the search of this package lacks. "
                "Translations can differ from Marian's."
            )
    return _Decoder(models, vocabularies, settings)


def _named_files(decoder: Mapping[str, Any], name: str, file: Path) -> list[Path]:
    """Returns the files that an entry of decoder.yml names, in the directory of decoder.yml."""
    names = decoder.get(name, [])
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError(f"{name} is not a list of files")
    # They may be paths of the machine of the training.
    files = [file.with_name(Path(each).name) for each in names]
    for each in files:
        if each.suffix == ".fsv":
            raise InputError(f"{each} is a factored vocabulary, which cannot be converted.")
        if not each.is_file():
            raise InputError(
                f"{file} names {each.name} as one of its {name}, but {each} does not exist. Copy "
                f"it there, or correct {file.name}."
            )
    return files


def _only_one(candidates: list[Path], pattern: str, place: Path) -> Path:
    """Returns the only candidate."""
    if len(candidates) != 1:
        found = ", ".join(sorted(file.name for file in candidates)) or "none"
        raise InputError(
            f"{place} must contain one file {pattern}, but there are: {found}. Name the files in "
            "decoder.yml, or move the others away."
        )
    return candidates[0]


def _read_npz(file: Path) -> tuple[dict[str, np.ndarray], Mapping[str, Any]]:
    """Returns the arrays of a model, and its configuration."""
    try:
        with reading(file, "a model of Marian"), np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            if _CONFIG not in arrays:
                raise ValueError(f"it lacks {_CONFIG}")
            config = _yaml(arrays[_CONFIG].tobytes().rstrip(b"\0"))
    except MemoryError:  # also for a damaged header with a huge shape
        raise InputError(f"{file} needs more memory than there is, or it is damaged.") from None
    return arrays, config


def _yaml(content: bytes) -> Mapping[str, Any]:
    """Reads a YAML mapping whose values all stay strings, as in Marian."""
    with needs_extra("convert", "reading models of Marian"):
        import yaml
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    value = yaml.load(content.decode("utf-8"), loader)
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


# The configuration.


def _flag(marian: Mapping[str, Any], name: str) -> bool:
    return marian.get(name) == "true"


def _check_supported(marian: Mapping[str, Any], file: Path) -> None:
    """Raises an `InputError` for a model that this package cannot express."""
    if marian.get("type") != "transformer":
        raise InputError(
            f"{file} has the architecture {marian.get('type')!r}. Only transformer can be "
            "converted."
        )
    cell = marian.get("dec-cell")
    if marian.get("transformer-decoder-autoreg", "self-attention") == "rnn":
        raise InputError(
            f"{file} has a decoder with the recurrent cell {cell!r}. Only self-attention can be "
            "converted."
        )
    for name, supported in _SUPPORTED.items():
        value = marian.get(name, supported[0])
        if value not in supported:
            shown = " or ".join(str(each) for each in supported)
            raise InputError(
                f"{file} has {name} {value!r}. Only models with {shown} can be converted."
            )


def _settings(marian: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Returns the settings of the model, named like `model.d_model`."""
    # "d" is dropout. The order of "a" (add) and "n" (norm) decides.
    steps = {
        name: marian.get(f"transformer-{name}", "").replace("d", "")
        for name in ("preprocess", "postprocess", "postprocess-top", "postprocess-emb")
    }
    positions = {("", "an"): "post", ("n", "a"): "pre"}
    position = positions.get((steps["preprocess"], steps["postprocess"]))
    if position is None or not {steps["postprocess-top"], steps["postprocess-emb"]} <= {"", "n"}:
        shown = ", ".join(f"transformer-{name} {value!r}" for name, value in steps.items())
        raise InputError(
            f"{file} has {shown} (without dropout). Only post-norm ('' and 'an') and pre-norm ('n' "
            "and 'a') can be converted."
        )
    tying = "none"
    if _flag(marian, "tied-embeddings-all"):
        tying = "all"
    elif _flag(marian, "tied-embeddings"):
        tying = "target"
    has_final_norm = steps["postprocess-top"] == "n"
    with reading(file, "a model of Marian"):
        return {
            "model.d_model": int(marian["dim-emb"]),
            "model.num_encoder_layers": int(marian["enc-depth"]),
            "model.num_decoder_layers": int(marian["dec-depth"]),
            "model.num_heads": int(marian["transformer-heads"]),
            "model.d_ff": int(marian["transformer-dim-ffn"]),
            "model.decoder_d_ff": int(marian.get("transformer-decoder-dim-ffn", 0)) or None,
            "model.activation": _ACTIVATIONS[marian.get("transformer-ffn-activation", "swish")],
            "model.norm_position": position,
            "model.final_norm": None if has_final_norm == (position == "pre") else has_final_norm,
            "model.other_toolkits.embedding_norm": steps["postprocess-emb"] == "n",
            "model.layer_norm_epsilon": 1e-6,
            "model.tie_embeddings": tying,
            "model.attention_bias": True,
            "model.output_bias": True,
            "model.sinusoid_layout": "halves",
            "model.sinusoid_frequencies": "tensor2tensor",
        }


def _search(decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of Marian's search. Missing ones have Marian's defaults."""
    normalize = decoder.get("normalize", "0")
    return {
        "decoding.beam_size": int(decoder.get("beam-size", 12)),
        "decoding.length_penalty": float({"true": 1, "false": 0}.get(normalize, normalize)),
        "decoding.length_penalty_formula": "power",
        "decoding.unknown": "allow" if _flag(decoder, "allow-unk") else "forbid",
    }


# Weights.


def _table(model: ModelConfig) -> WeightTable:
    """Returns the table of all weights except the embeddings and the output layer."""
    table = {}
    pre = "_pre" if model.norm_position == "pre" else ""
    for stack, layer in _LAYERS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            for path, names in layer.items():
                table[f"{stack}/layer_{i}/{path}"] = tuple(
                    f"{stack}_l{i + 1}_{name.format(pre=pre)}" for name in names
                )
        if model.has_final_norm:
            for path, names in _TOP_NORM.items():
                table[f"{stack}/{path}"] = tuple(f"{stack}_{name}" for name in names)
        if model.other_toolkits.embedding_norm:
            side = {"encoder": "source", "decoder": "target"}[stack]
            for path, names in _EMBEDDING_NORM.items():
                table[f"{side}_norm/{path}"] = tuple(f"{stack}_{name}" for name in names)
    return table


def _embeddings(source: SourceWeights, model: ModelConfig, order: PieceOrder) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""
    arrays: Arrays = {}
    names = ["Wemb", "Wemb"] if "Wemb" in source else ["encoder_Wemb", "decoder_Wemb"]
    if model.tie_embeddings == "all":
        arrays["embedding/embeddings"] = order.source_embeddings(source.take(names[0]))
    else:
        embeddings = [source.take(name) for name in names]
        arrays["source_embedding/embeddings"] = order.source_embeddings(embeddings[0])
        arrays["target_embedding/embeddings"] = order.target_embeddings(embeddings[1])
    if model.tie_embeddings == "none":
        name = "decoder_ff_logit_out_Wt"  # [V, d_model]; older versions have [d_model, V]
        kernel = source.take(name) if name in source else source.take(name[:-1]).T
        arrays["output_projection/kernel"] = order.target_embeddings(kernel).T
    name = "decoder_ff_logit_out_b"
    bias = source.take(name) if name in source else None
    arrays["output_projection/bias"] = order.output_bias(bias)
    return arrays


# The vocabulary.


def _order_pieces(files: _Files, marian: Mapping[str, Any]) -> PieceOrder:
    """Returns the vocabulary with Marian's ids."""
    models = [read_sentencepiece(file) for file in files.sentencepiece]
    with reading(files.model, "a model of Marian"):
        sizes = map(int, marian.get("dim-vocabs", ["0", "0"]))
        places = list(zip(files.vocabularies, sizes, strict=True))
    tables = {place: _ids(*place) for place in dict.fromkeys(places)}
    source, target = (tables[place] for place in places)
    if _flag(marian, "tied-embeddings-all") and source is not target:
        if source != target:
            raise InputError(
                f"{files.model} shares its embeddings, but {files.vocabularies[0]} and "
                f"{files.vocabularies[1]} differ. Give the vocabulary of this model."
            )
        target = source
    return order_pieces(models[0], models[1], source, target)


def _ids(file: Path, size: int) -> dict[str, int]:
    """Returns the id of each piece of a vocabulary.

    Like Marian, it leaves out the entries of a `.yml` file whose ids are not below `size`, which is
    0 for no limit.
    """
    with reading(file, "a vocabulary"):
        if file.suffix == ".spm":
            pieces = ModelProto.FromString(file.read_bytes()).pieces
            return {piece.piece: i for i, piece in enumerate(pieces)}
        ids = {str(piece): int(i) for piece, i in _yaml(file.read_bytes()).items()}
    used = {piece: i for piece, i in ids.items() if not size or i < size}
    if len(used) < len(ids):
        warn(
            f"{file} has {len(ids):,} entries, but the model uses only the first {size:,} "
            "(dim-vocabs). Make sure that it is the vocabulary of this model."
        )
    return used
