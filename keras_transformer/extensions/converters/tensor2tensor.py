"""Tensor2Tensor: a directory with a checkpoint of TensorFlow 1, `hparams.json` and subwords.

Files of the directory, which `t2t-trainer` wrote as --output_dir, and of its --data_dir:

    checkpoint, model.ckpt-N.*    weights; the embeddings have up to 16 parts
    hparams.json                  sizes and variants of the model
    *.subwords                    the vocabulary

Tensor2Tensor lacks a start token: the decoder begins with a vector of zeros. A learned vector of
the target space is added to the source embeddings. The converter adds it to the matrix.

Tensor2Tensor splits a text between letters and other characters, and each part greedily into the
longest subwords. SentencePiece cannot express this, so `SubwordText` does it outside of the graph.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.errors import InputError, require
from keras_transformer.extensions.converters import ConvertOptions, source
from keras_transformer.extensions.converters.opennmt_tf import TFCheckpoint
from keras_transformer.extensions.converters.pieces import PieceOrder
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.checkpoints import Arrays, reading

_TARGET_SPACE = "body/target_space_embedding/kernel"
_SPACE = "\u2423"  # how a space inside a subword is written
_QUOTED = re.compile(r"""^(['"])(.*)\1$""")
_ESCAPED = re.compile(r"\\u|\\\\|\\([0-9]+);")
_ESCAPE_CHARACTERS = set("\\_u;0123456789")
_UNDEFINED = "\u3013"  # stands for a character that does not exist


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
# Sizes → the field that they have the value of, unless they are given.
_DEFAULTS = {
    **dict.fromkeys(["num_encoder_layers", "num_decoder_layers"], "num_hidden_layers"),
    **dict.fromkeys(["attention_key_channels", "attention_value_channels"], "hidden_size"),
}
# layer_preprocess_sequence and layer_postprocess_sequence without dropout ("d").
_NORM_POSITIONS = {("none", "an"): "post", ("n", "a"): "pre"}


def read(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads a Transformer of Tensor2Tensor."""
    checkpoint = TFCheckpoint(path)
    file = checkpoint.directory / "hparams.json"
    hparams = source.read_json(file)
    source.check_supported(hparams, _SUPPORTED, file)
    with reading(file, "hyperparameters of Tensor2Tensor"):
        config = Config().updated(_settings(hparams, file))
    weights = source.SourceWeights(checkpoint.variables("transformer/"), str(checkpoint.path))
    is_shared = config.model.tie_embeddings != "none"
    vocabularies = source.find_vocabularies(checkpoint.directory, options, ["", ""], "*.subwords")
    order = source.order_tokens(
        # The unknown token gets the third position.
        [["<pad>", "</s>", "<unk>", *SubwordText.load(v).written()[2:]] for v in vocabularies],
        None,
        joint=is_shared,
        pad_piece="<pad>",
        start_row=-1,
    )
    if is_shared and _TARGET_SPACE in weights:
        config = config.updated(model__tie_embeddings="target")
    arrays = _embeddings(weights, config.model, order, options.target_space)
    arrays |= weights.read_rest(_table, config.model)
    return source.make_model(config, arrays, order.vocabulary)


# The configuration.


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
    sizes = {name: hparams.get(name) or hparams.get(default) for name, default in _DEFAULTS.items()}
    heads = source.size(hparams, "num_heads")
    return {
        **source.COMMON_SETTINGS,
        "model.d_model": source.size(hparams, "hidden_size"),
        "model.num_encoder_layers": source.size(sizes, "num_encoder_layers"),
        "model.num_decoder_layers": source.size(sizes, "num_decoder_layers"),
        "model.num_heads": heads,
        "model.key_dim": source.size(sizes, "attention_key_channels") // heads,
        "model.value_dim": source.size(sizes, "attention_value_channels") // heads,
        "model.d_ff": source.size(hparams, "filter_size"),
        "model.norm_position": norm_position,
        "model.layer_norm_epsilon": hparams["norm_epsilon"],
        "model.tie_embeddings": (
            "all" if source.flag(hparams, "shared_embedding_and_softmax_weights") else "none"
        ),
        "model.attention_bias": False,
        "decoding.max_extra_tokens": 100,  # the default of t2t-decoder
        "model.embedding_dropout": hparams["layer_prepostprocess_dropout"],
        "model.residual_dropout": hparams["layer_prepostprocess_dropout"],
        "model.attention_dropout": hparams["attention_dropout"],
        "model.activation_dropout": hparams["relu_dropout"],
    }


# Weights.


def _table(model: ModelConfig) -> source.WeightTable:
    """Returns the table of the stacks."""
    table: source.WeightTable = {}
    names = {"self_attention": "self_attention", "cross_attention": "encdec_attention"}
    norm_kinds = ("layer_norm_scale", "layer_norm_bias")
    is_pre = model.norm_position == "pre"
    norm = f"layer_{'prepost' if is_pre else 'post'}process/layer_norm/{{}}"
    for stack, (_, sublayers) in source.STACKS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            ours, theirs = f"{stack}/layer_{i}", f"body/{stack}/layer_{i}"
            for sublayer in sublayers:
                name = f"{theirs}/{names[sublayer]}"
                parts = ("q", "k", "v", "output_transform")
                projections = [f"{name}/multihead_attention/{part}/{{}}" for part in parts]
                table |= source.attention(f"{ours}/{sublayer}", projections, ["kernel"])
                table |= source.layer_norm(f"{ours}/{sublayer}_norm", f"{name}/{norm}", norm_kinds)
            inner, outer = f"{theirs}/ffn/conv1/{{}}", f"{theirs}/ffn/conv2/{{}}"
            table |= source.feed_forward(f"{ours}/feed_forward", inner, outer, ("kernel", "bias"))
            name = f"{theirs}/ffn/{norm}"
            table |= source.layer_norm(f"{ours}/feed_forward_norm", name, norm_kinds)
        if is_pre:
            table |= source.layer_norm(f"{stack}/norm", f"body/{stack}/{norm}", norm_kinds)
    return table


def _embeddings(
    weights: source.SourceWeights, model: ModelConfig, order: PieceOrder, target_space: int
) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""
    bias = np.zeros(order.num_targets, np.float32)
    bias[order.vocabulary.unknown_id] = EXCLUDED_TOKEN_BIAS  # it is not in Tensor2Tensor
    if model.tie_embeddings == "all":
        return order.weights(_matrix(weights, "shared"), bias=bias)
    if model.tie_embeddings == "none":
        names = ("input_emb", "target_emb", "softmax")
        inputs, target, output = (_matrix(weights, name) for name in names)
    else:
        inputs = target = _matrix(weights, "shared")
        output = None
    if _TARGET_SPACE in weights:
        spaces = weights.take(_TARGET_SPACE)
        size = len(spaces)
        require(target_space < size, f"target_space is {target_space}. Choose one below {size}.")
        # Embeddings are multiplied by √d_model, but this vector is not.
        inputs = inputs + spaces[target_space] / model.d_model**0.5
    return order.weights(inputs, target, output, bias)


def _matrix(weights: source.SourceWeights, scope: str) -> np.ndarray:
    """Joins the parts of a matrix, `symbol_modality_V_d/SCOPE/weights_0` and so on.

    A row for the unknown token is added after the first two tokens.
    """
    names = [name for name in weights.names() if name.split("/")[1:2] == [scope]]
    parts = [name for i in range(len(names)) for name in names if name.endswith(f"/weights_{i}")]
    if not parts or len({name.rpartition("/")[0] for name in parts}) > 1:
        raise InputError(
            f"{weights.label} must have one matrix {scope}/weights_0. It is damaged, or "
            "hparams.json belongs to another model."
        )
    matrix = np.concatenate([weights.take(name) for name in parts])
    return np.insert(matrix, 2, 0.0, axis=0)


# Subwords.


class SubwordText:
    """Converts text to subwords and back, like `SubwordTextEncoder` of Tensor2Tensor.

    `encode` makes the texts that a converted model reads: subwords between spaces. `decode` makes
    text of its translations. `subwords` are in the order of their ids, with the two reserved ones.
    docs/convert.md has an example.
    """

    def __init__(self, subwords: Sequence[str]):
        self.subwords = tuple(subwords)
        spaced = next((subword for subword in subwords if _SPACE in subword), None)
        if spaced is not None:
            raise InputError(
                f"The vocabulary has the subword {spaced!r}. U+2423 is reserved: it stands for a "
                "space. Such a vocabulary cannot be converted."
            )
        self._known = set(subwords)
        self._longest = max(map(len, subwords), default=0)
        self._alphabet = {c for subword in subwords for c in subword} | _ESCAPE_CHARACTERS

    @classmethod
    def load(cls, path: str | Path) -> SubwordText:
        """Reads a vocabulary of Tensor2Tensor, such as "vocab.translate_ende_wmt32k.subwords"."""
        lines = source.read_tokens(Path(path))
        subwords = [_QUOTED.sub(r"\2", line.rstrip()) for line in lines]
        if [subword.rstrip("_") for subword in subwords[:2]] != ["<pad>", "<EOS>"]:
            raise InputError(
                f"{path} begins with {' '.join(subwords[:2])!r:.60}, but a subword vocabulary of "
                "Tensor2Tensor begins with '<pad>' and '<EOS>'."
            )
        return cls(subwords)

    def encode(self, text: str) -> str:
        """Returns the subwords of a text, joined by spaces."""
        found = []
        for token in _tokens(text):
            escaped = token.replace("\\", "\\\\").replace("_", "\\u")
            escaped = "".join(
                c if c in self._alphabet and c != "\n" else f"\\{ord(c)};" for c in escaped
            )
            rest = f"{escaped}_"
            while rest:
                sizes = range(min(len(rest), self._longest), 0, -1)
                size = next((size for size in sizes if rest[:size] in self._known), None)
                if size is None:
                    raise InputError(
                        f"The vocabulary lacks the character {rest[0]!r}, which every subword "
                        "vocabulary of Tensor2Tensor has."
                    )
                found.append(rest[:size].replace(" ", _SPACE))
                rest = rest[size:]
        return " ".join(found)

    def decode(self, line: str) -> str:
        """Returns the text of subwords that are joined by spaces."""
        escaped = "".join(line.split(" ")).replace(_SPACE, " ").split("_")
        tokens = [token for token in map(_unescaped, escaped) if token]
        text = ""
        for i, token in enumerate(tokens):
            if i > 0 and _is_letter(tokens[i - 1][0]) and _is_letter(token[0]):
                text += " "
            text += token
        return text

    def written(self) -> list[str]:
        """Returns all subwords as `encode` writes them, in the order of their ids."""
        return [subword.replace(" ", _SPACE) for subword in self.subwords]


def _tokens(text: str) -> list[str]:
    """Splits between letters (or numbers) and other characters; drops single spaces between."""
    parts = ["".join(part) for _, part in itertools.groupby(text, _is_letter)]
    last = len(parts) - 1
    return [part for i, part in enumerate(parts) if part != " " or i in (0, last)]


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN"


def _unescaped(token: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "_" if match.group(0) == "\\u" else "\\"
        number = int(match.group(1)[:8])
        exists = number < 0x110000 and not 0xD800 <= number < 0xE000  # halves of characters
        return chr(number) if exists else _UNDEFINED

    return _ESCAPED.sub(character, token)
