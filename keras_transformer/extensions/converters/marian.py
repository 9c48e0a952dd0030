"""Models of Marian NMT: `.npz` files such as those of OPUS-MT, and `.bin` files of Firefox.

A directory contains the model (`*.npz` or `model*.bin`, with its configuration inside), the
vocabulary (`*vocab.yml`), the SentencePiece models `source.spm` and `target.spm`, and optionally
`decoder.yml`, which names these files and sets the search. A vocabulary may also be a SentencePiece
model itself, or two: `srcvocab*.spm` and `trgvocab*.spm`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.config.schema import Count, Size, Weight, check_scalar
from keras_transformer.console import warn
from keras_transformer.errors import InputError, require
from keras_transformer.extensions.converters import ConvertOptions, source
from keras_transformer.extensions.converters.marian_binary import read_binary_model
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
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-ffn-depth": ("2",),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "lemma-dim-emb": ("0",),
    **dict.fromkeys(_FALSE.split(), ("false",)),
}
_SUPPORTED_RNN: dict[str, tuple[Any, ...]] = {
    "dec-cell": ("ssru",),
    "layer-normalization": ("false",),
}
# The search without a configuration: that of OPUS-MT's decoder.yml files, and that of Firefox
# (toolkit/components/translations/content/translations-engine.worker.js in its sources). Firefox
# also splits texts into sentences, and sentences into parts of 127 tokens (max-length-break).
_OPUS_MT_SEARCH = {"beam-size": "6", "normalize": "1"}
_FIREFOX_SEARCH = {"beam-size": "1", "normalize": "1", "max-length-factor": "2"}
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
    arrays, marian = _read_model(file)
    source.check_supported({"type": None, **marian}, _SUPPORTED, file)
    if marian.get("transformer-decoder-autoreg") == "rnn":
        source.check_supported(marian, _SUPPORTED_RNN, file)
    with reading(file, "a model of Marian"):
        config = search.updated(_settings(marian, file))
    found = source.SourceWeights(arrays, str(file))
    # Multipliers of int8 activations are for products of integers.
    found.ignore(_CONFIG, *(name for name in arrays if name.endswith("_QuantMultA")))
    order = _order_pieces(file, vocabularies, marian)
    weights = _embeddings(found, config.model, order) | found.read_rest(_table, config.model)
    return source.make_model(config, weights, order.vocabulary)


# Files.


def _find_files(path: Path) -> tuple[Path, list[Path], Config]:
    """Returns the model, the vocabularies of source and target, and the search.

    `decoder.yml` sets the search, and names the files if there are several of a kind. Without it,
    the search is that of OPUS-MT or Firefox.
    """
    directory = path if path.is_dir() else path.parent
    candidates = [f for f in directory.glob("*.npz") if not f.name.endswith(".optimizer.npz")]
    configurations = [directory / "decoder.yml", *sorted(directory.glob("*.decoder.yml"))]
    configurations = [file for file in configurations if file.is_file()]
    search = _search(_OPUS_MT_SEARCH)
    if path.suffix == ".bin" or (path.is_dir() and not candidates):
        candidates = [*directory.glob("model*.bin")]
        search = _search(_FIREFOX_SEARCH)
        # Next to a .npz model, they may be configurations of its training.
        if not configurations and (found := [*directory.glob("config*.yml")]):
            what = f"{directory} must contain at most one file config*.yml"
            configurations = [source.only_one(found, what, "Remove the others.")]
    models: list[Path] = []
    vocabularies: list[Path] = []
    if configurations:
        file = configurations[0]
        with reading(file, "a configuration of Marian"):
            decoder = source.read_yaml(file.read_bytes(), "BaseLoader")
            models = _named_files(decoder, "models", file)
            vocabularies = _named_files(decoder, "vocabs", file)
            search = _search(decoder)
        if decoder.get("beam-size") == "1":
            decoder.pop("skip-cost", None)  # scores are not compared
        for name, values in _IGNORED_SEARCH.items():
            if (value := decoder.get(name, values[0])) not in values:
                warn(
                    f"{file} has {name} {value!r}, which the search of this package lacks. "
                    "Translations can differ from those of Marian."
                )
    elif lexicons := sorted(directory.glob("lex*.bin")):
        warn(
            f"The run ignores the shortlist {lexicons[0]}: its search considers the whole "
            "vocabulary. Exports can have it, with --shortlist=FILE."
        )
    if len(vocabularies) not in (0, 2):
        raise InputError(
            f"decoder.yml has {len(vocabularies)} vocabularies. Only models with two, of one "
            "source and one target, can be converted."
        )
    remedy = (
        "Name the files in decoder.yml. Convert models of an ensemble one by one: give the file."
    )
    if path.is_dir():
        what = f"{path} must contain one file *.npz or model*.bin"
        path = source.only_one(models or candidates, what, remedy)
    return path, vocabularies or _find_vocabularies(directory, remedy), search


def _find_vocabularies(directory: Path, remedy: str) -> list[Path]:
    """Returns the vocabularies of source and target that no configuration names."""
    sides = [[*directory.glob(f"{side}vocab*.spm")] for side in ("src", "trg")]
    shared = [*directory.glob("*vocab.yml"), *directory.glob("vocab*.spm")]
    what = f"{directory} must contain one file *vocab.yml or vocab*.spm"
    if any(sides) and not shared:
        what = f"{directory} must contain one file srcvocab*.spm and one file trgvocab*.spm"
        return [source.only_one(found, what, remedy) for found in sides]
    return [source.only_one(shared, what, remedy)] * 2


def _named_files(decoder: Mapping[str, Any], name: str, file: Path) -> list[Path]:
    """Returns the files that an entry of decoder.yml names, in the directory of decoder.yml."""
    paths = decoder.get(name, [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"{name} is not a list of files")
    # They may be paths of the machine of the training.
    files = [file.with_name(Path(path).name) for path in paths]
    for named in files:
        require(named.suffix != ".fsv", f"{named} is a factored vocabulary. It is not supported.")
        if not named.is_file():
            raise InputError(
                f"{file} names {named.name} as one of its {name}, but {named} does not exist. Copy "
                f"it there, or correct {file.name}."
            )
    return files


def _read_model(file: Path) -> tuple[dict[str, np.ndarray], Mapping[str, Any]]:
    """Returns the arrays of a model, and its configuration."""
    arrays = read_binary_model(file) if file.suffix == ".bin" else _read_npz(file)
    with reading(file, "a model of Marian"):
        if _CONFIG not in arrays:
            raise ValueError(f"it lacks {_CONFIG}")
        config = source.read_yaml(arrays[_CONFIG].tobytes().rstrip(b"\0"), "BaseLoader")
    return arrays, config


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of NumPy."""
    with reading(file, "a model of Marian"), np.load(file, allow_pickle=False) as archive:
        check_archive(archive.zip, file.stat().st_size)
        return {name: archive[name] for name in archive.files}


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
    marian = {"transformer-decoder-dim-ffn": 0, **marian}
    return {
        **source.COMMON_SETTINGS,
        "model.d_model": source.size(marian, "dim-emb"),
        "model.num_encoder_layers": source.size(marian, "enc-depth"),
        "model.num_decoder_layers": source.size(marian, "dec-depth"),
        "model.num_heads": source.size(marian, "transformer-heads"),
        "model.d_ff": source.size(marian, "transformer-dim-ffn"),
        "model.decoder_d_ff": source.size(marian, "transformer-decoder-dim-ffn", Count) or None,
        "model.activation": _ACTIVATIONS[marian.get("transformer-ffn-activation", "swish")],
        "model.norm_position": position,
        "model.decoder_self_attention": (
            "ssru" if marian.get("transformer-decoder-autoreg") == "rnn" else "attention"
        ),
        "model.final_norm": None if has_final_norm == (position == "pre") else has_final_norm,
        "model.embedding_norm": steps["postprocess-emb"] == "n",
        "model.layer_norm_epsilon": 1e-6,
        "model.tie_embeddings": tying,
    }


def _search(decoder: Mapping[str, Any]) -> Config:
    """Returns the configuration of Marian's search. Missing options have Marian's defaults."""
    normalize = decoder.get("normalize", "0")
    normalize = {"true": 1, "false": 0}.get(normalize, normalize)
    factor = check_scalar("max-length-factor", Weight, decoder.get("max-length-factor", 3), True)
    if factor != math.ceil(factor):
        warn(f"max-length-factor is {factor}. Here it is a whole number: {math.ceil(factor)}.")
    settings = {
        "decoding.max_extra_tokens": 1 - max(math.ceil(factor), 1),
        "decoding.beam_size": check_scalar("beam-size", Size, decoder.get("beam-size", 12), True),
        "decoding.early_stopping": "marian",
        "decoding.length_penalty": check_scalar("normalize", Weight, normalize, True),
        "decoding.length_penalty_formula": "power",
        "decoding.unknown": "allow" if source.flag(decoder, "allow-unk") else "forbid",
    }
    return Config().updated(settings)


# Weights.


def _table(model: ModelConfig) -> source.WeightTable:
    """Returns the table of all weights except the embeddings and the output layer."""
    table: source.WeightTable = {}
    names = {"self_attention": "self", "cross_attention": "context"}
    pre = "_pre" if model.norm_position == "pre" else ""
    is_recurrent = model.decoder_self_attention == "ssru"
    for stack, (side, sublayers) in source.STACKS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            ours, theirs = f"{stack}/layer_{i}", f"{stack}_l{i + 1}"
            for sublayer in sublayers:
                name = f"{theirs}_{names[sublayer]}"
                if (stack, sublayer) == ("decoder", "self_attention") and is_recurrent:
                    table |= _ssru(ours, f"{theirs}_rnn", pre)
                    continue
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


def _ssru(ours: str, theirs: str, pre: str) -> source.WeightTable:
    """Returns the weights of a recurrent unit and its layer norm."""
    norm = f"{theirs}_ln_{{}}_pre" if pre else f"{theirs}_ffn_ln_{{}}"
    return {
        f"{ours}/ssru/input_kernel": (f"{theirs}_W", f"{theirs}_Wf"),
        f"{ours}/ssru/forget_bias": (f"{theirs}_bf",),
        **source.layer_norm(f"{ours}/self_attention_norm", norm, _NORM_KINDS),
    }


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
        sizes = marian.get("dim-vocabs", ["0", "0"])
        if not isinstance(sizes, list) or len(sizes) != 2:
            raise ValueError(f"dim-vocabs is {sizes!r:.60}, and not a list of two sizes")
        limits = [check_scalar("dim-vocabs", Count, size, convert=True) for size in sizes]
    sized = list(zip(vocabularies, limits, strict=True))
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
