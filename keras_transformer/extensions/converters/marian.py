"""Models of Marian NMT: `.npz` files such as those of OPUS-MT.

A directory contains the model (`*.npz`, with its configuration inside), the vocabulary
(`*vocab.yml`), the SentencePiece models `source.spm` and `target.spm`, and optionally
`decoder.yml`, which names these files and sets the search. A vocabulary may also be a SentencePiece
model itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.console import warn
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import ConvertOptions, source
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    read_sentencepiece,
)
from keras_transformer.extensions.converters.torch_files import check_archive
from keras_transformer.runs.checkpoints import Arrays, reading
from keras_transformer.text.model_proto import ModelProto

_CONFIG = "special:model.yml"
_KINDS, _NORM_KINDS = ("W", "b"), ("scale", "bias")
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
_FALSE = (
    "transformer-disable-position-embeddings transformer-no-affine transformer-no-bias "
    "transformer-no-projection transformer-pool transformer-rnn-projection "
    "transformer-train-position-embeddings right-left ulr"
)
# The options of a model, and the values that this package can express. Older models lack some.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-ffn-depth": ("2",),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "lemma-dim-emb": ("0",),
    **dict.fromkeys(_FALSE.split(), ("false",)),
}
_OPUS_MT_SEARCH = {"beam-size": "6", "normalize": "1"}  # its decoder.yml files have this search
# Options of decoder.yml that change translations and have no counterpart here, and the values that
# change nothing or are Marian's defaults.
_IGNORED_SEARCH: dict[str, tuple[Any, ...]] = {
    "word-penalty": ("0", "0.0"),
    "max-length": ("1000",),
    "output-sampling": ([], "false"),
    "output-approx-knn": ([],),
    "shortlist": ([],),
    "force-decode": ("false",),
    "skip-cost": ("false",),
}


def read(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads a model of Marian."""
    file, vocabularies, search = _find_files(path)
    arrays, marian = _read_npz(file)
    source.check_supported({"type": None, **marian}, _SUPPORTED, file)
    config = Config().updated({**_settings(marian, file), **search})
    found = source.SourceWeights(arrays, str(file))
    found.ignore(_CONFIG)
    order = _order_pieces(file, vocabularies, marian)
    weights = _embeddings(found, config.model, order) | found.read_rest(_table, config.model)
    return source.make_model(config, weights, order.vocabulary)


# Files.


def _find_files(path: Path) -> tuple[Path, list[Path], dict[str, Any]]:
    """Returns the model, the vocabularies of source and target, and the settings of the search.

    `decoder.yml` sets the search, and names the files if there are several of a kind. Without it,
    the search is that of OPUS-MT.
    """
    directory = path if path.is_dir() else path.parent
    if path.suffix == ".bin" or (path.is_dir() and not any(directory.glob("*.npz"))):
        raise InputError(
            f"{path} contains no .npz model. Models in Marian's binary format (.bin), such as int8 "
            "models for browsers, cannot be converted."
        )
    models: list[Path] = []
    vocabularies: list[Path] = []
    search = _search(_OPUS_MT_SEARCH)
    for file in [directory / "decoder.yml", *sorted(directory.glob("*.decoder.yml"))]:
        if file.is_file():
            with reading(file, "a configuration of Marian"):
                decoder = source.read_yaml(file.read_bytes(), "BaseLoader")
                models = _named_files(decoder, "models", file)
                vocabularies = _named_files(decoder, "vocabs", file)
                search = _search(decoder)
            for name, values in _IGNORED_SEARCH.items():
                if (value := decoder.get(name, values[0])) not in values:
                    warn(
                        f"{file} has {name} {value!r}, which the search of this package lacks. "
                        "Translations can differ from those of Marian."
                    )
            break
    if len(vocabularies) not in (0, 2):
        raise InputError(
            f"decoder.yml has {len(vocabularies)} vocabularies. Only models with two, of one "
            "source and one target, can be converted."
        )
    remedy = (
        "Name the files in decoder.yml. Convert models of an ensemble one by one: give the .npz."
    )
    if path.is_dir():
        found = [f for f in directory.glob("*.npz") if not f.name.endswith(".optimizer.npz")]
        path = source.only_one(models or found, f"{path} must contain one file *.npz", remedy)
    if not vocabularies:
        found = [*directory.glob("*vocab.yml"), *directory.glob("vocab*.spm")]
        what = f"{directory} must contain one file *vocab.yml"
        vocabularies = [source.only_one(found, what, remedy)] * 2
    return path, vocabularies, search


def _named_files(decoder: Mapping[str, Any], name: str, file: Path) -> list[Path]:
    """Returns the files that an entry of decoder.yml names, in the directory of decoder.yml."""
    paths = decoder.get(name, [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"{name} is not a list of files")
    # They may be paths of the machine of the training.
    files = [file.with_name(Path(path).name) for path in paths]
    for named in files:
        if named.suffix == ".fsv":
            raise InputError(f"{named} is a factored vocabulary, which cannot be converted.")
        if not named.is_file():
            raise InputError(
                f"{file} names {named.name} as one of its {name}, but {named} does not exist. Copy "
                f"it there, or correct {file.name}."
            )
    return files


def _read_npz(file: Path) -> tuple[dict[str, np.ndarray], Mapping[str, Any]]:
    """Returns the arrays of a model, and its configuration."""
    with reading(file, "a model of Marian"), np.load(file, allow_pickle=False) as archive:
        check_archive(archive.zip, file.stat().st_size)
        arrays = {name: archive[name] for name in archive.files}
        if _CONFIG not in arrays:
            raise ValueError(f"it lacks {_CONFIG}")
        config = source.read_yaml(arrays[_CONFIG].tobytes().rstrip(b"\0"), "BaseLoader")
    return arrays, config


# The configuration.


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
    tying = "target" if source.flag(marian, "tied-embeddings") else "none"
    tying = "all" if source.flag(marian, "tied-embeddings-all") else tying
    has_final_norm = steps["postprocess-top"] == "n"
    with reading(file, "a model of Marian"):
        return {
            **source.COMMON_SETTINGS,
            "model.d_model": int(marian["dim-emb"]),
            "model.num_encoder_layers": int(marian["enc-depth"]),
            "model.num_decoder_layers": int(marian["dec-depth"]),
            "model.num_heads": int(marian["transformer-heads"]),
            "model.d_ff": int(marian["transformer-dim-ffn"]),
            "model.decoder_d_ff": int(marian.get("transformer-decoder-dim-ffn", 0)) or None,
            "model.activation": _ACTIVATIONS[marian.get("transformer-ffn-activation", "swish")],
            "model.norm_position": position,
            "model.final_norm": None if has_final_norm == (position == "pre") else has_final_norm,
            "model.embedding_norm": steps["postprocess-emb"] == "n",
            "model.layer_norm_epsilon": 1e-6,
            "model.tie_embeddings": tying,
        }


def _search(decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of Marian's search. Missing ones have Marian's defaults."""
    normalize = decoder.get("normalize", "0")
    factor = float(decoder.get("max-length-factor", 3))
    if factor != math.ceil(factor):
        warn(f"max-length-factor is {factor}. Here it is a whole number: {math.ceil(factor)}.")
    return {
        "decoding.max_extra_tokens": 1 - max(math.ceil(factor), 1),
        "decoding.beam_size": int(decoder.get("beam-size", 12)),
        "decoding.early_stopping": "marian",
        "decoding.length_penalty": float({"true": 1, "false": 0}.get(normalize, normalize)),
        "decoding.length_penalty_formula": "power",
        "decoding.unknown": "allow" if source.flag(decoder, "allow-unk") else "forbid",
    }


# Weights.


def _table(model: ModelConfig) -> source.WeightTable:
    """Returns the table of all weights except the embeddings and the output layer."""
    table: source.WeightTable = {}
    names = {"self_attention": "self", "cross_attention": "context"}
    pre = "_pre" if model.norm_position == "pre" else ""
    for stack, (side, sublayers) in source.STACKS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            ours, theirs = f"{stack}/layer_{i}", f"{stack}_l{i + 1}"
            for sublayer in sublayers:
                name = f"{theirs}_{names[sublayer]}"
                projections = [f"{name}_{{}}{part}" for part in "qkvo"]
                table |= source.attention(f"{ours}/{sublayer}", projections, _KINDS)
                norm = f"{name}_Wo_ln_{{}}{pre}"
                table |= source.layer_norm(f"{ours}/{sublayer}_norm", norm, _NORM_KINDS)
            inner, outer = f"{theirs}_ffn_{{}}1", f"{theirs}_ffn_{{}}2"
            table |= source.feed_forward(f"{ours}/feed_forward", inner, outer, _KINDS)
            norm = f"{theirs}_ffn_ffn_ln_{{}}{pre}"
            table |= source.layer_norm(f"{ours}/feed_forward_norm", norm, _NORM_KINDS)
        if model.has_final_norm:
            table |= source.layer_norm(f"{stack}/norm", f"{stack}_top_ln_{{}}", _NORM_KINDS)
        if model.other_toolkits.embedding_norm:
            table |= source.layer_norm(f"{side}_norm", f"{stack}_emb_ln_{{}}_pre", _NORM_KINDS)
    return table


def _embeddings(found: source.SourceWeights, model: ModelConfig, order: PieceOrder) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""
    names = ["Wemb", "Wemb"] if "Wemb" in found else ["encoder_Wemb", "decoder_Wemb"]
    target = None if model.tie_embeddings == "all" else found.take(names[1])
    output = None
    if model.tie_embeddings == "none":
        name = "decoder_ff_logit_out_Wt"  # [V, d_model]; older versions have [d_model, V]
        output = found.take(name) if name in found else found.take(name[:-1]).T
    name = "decoder_ff_logit_out_b"
    bias = found.take(name) if name in found else None
    return order.weights(found.take(names[0]), target, output, bias)


# The vocabulary.


def _order_pieces(file: Path, vocabularies: list[Path], marian: Mapping[str, Any]) -> PieceOrder:
    """Returns the vocabulary with Marian's ids."""
    models = [file.with_name("source.spm"), file.with_name("target.spm")]
    if all(vocabulary.suffix == ".spm" for vocabulary in vocabularies):
        models = vocabularies
    with reading(file, "a model of Marian"):
        sizes = map(int, marian.get("dim-vocabs", ["0", "0"]))
        sized = list(zip(vocabularies, sizes, strict=True))
    tables = {vocabulary: _ids(*vocabulary) for vocabulary in dict.fromkeys(sized)}
    source_ids, target_ids = (tables[vocabulary] for vocabulary in sized)
    if source.flag(marian, "tied-embeddings-all") and source_ids is not target_ids:
        if source_ids != target_ids:
            raise InputError(
                f"{file} shares its embeddings, but {vocabularies[0]} and {vocabularies[1]} "
                "differ. Give the vocabulary of this model."
            )
        target_ids = source_ids
    return order_pieces([*map(read_sentencepiece, models)], source_ids, target_ids)


def _ids(file: Path, size: int) -> dict[str, int]:
    """Returns the id of each piece of a vocabulary.

    Like Marian, it leaves out the entries of a `.yml` file whose ids are not below `size`, which is
    0 for no limit.
    """
    with reading(file, "a vocabulary"):
        if file.suffix == ".spm":
            pieces = ModelProto.FromString(file.read_bytes()).pieces
            return {piece.piece: i for i, piece in enumerate(pieces)}
        table = source.read_yaml(file.read_bytes(), "BaseLoader")
        ids = {str(piece): int(i) for piece, i in table.items()}
        "".join(ids).encode()  # fails for one half of a surrogate pair
    used = {piece: i for piece, i in ids.items() if not size or i < size}
    if len(used) < len(ids):
        warn(
            f"{file} has {len(ids):,} entries, but the model uses only the first {size:,} "
            "(dim-vocabs). Make sure that it is the vocabulary of this model."
        )
    return used
