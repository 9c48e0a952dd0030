"""Parts that all converters share: the converted model, and help for reading weights and files.

A converter walks over the model from top to bottom, and makes a `WeightTable` with `attention`,
`feed_forward`, `layer_norm` and `linear`. Names of the other toolkit contain `{}` where the kinds
of its weights differ, as in `fc1.{}` for `fc1.weight` and `fc1.bias`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.config.schema import Size, check_scalar
from keras_transformer.errors import InputError, needs_extra, require
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    piece_ids,
    read_sentencepiece,
    word_model,
)
from keras_transformer.extensions.converters.torch_files import (
    MAX_DEPTH,
    check_expanded_size,
    read_torch_file,
)
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.checkpoints import Arrays, reading
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary

# Our path of a weight → the names of the weights of the other toolkit that it consists of.
WeightTable: TypeAlias = dict[str, tuple[str, ...]]

# Our stacks → their side of the vocabulary, and their attention sublayers.
STACKS: dict[str, tuple[str, Sequence[str]]] = {
    "encoder": ("source", ["self_attention"]),
    "decoder": ("target", ["self_attention", "cross_attention"]),
}
_MAX_SCALAR = 10_000  # characters; YAML reads 1:1:1 as a number, which takes quadratic time
PYTORCH = ("weight", "bias")  # the kinds of weights of a projection or a layer norm
# Settings of the models of all toolkits, unless a converter sets others.
COMMON_SETTINGS: dict[str, Any] = {
    "model.attention_bias": True,
    "model.output_bias": True,
    "model.sinusoid_layout": "halves",
    "model.sinusoid_frequencies": "tensor2tensor",
}


@dataclasses.dataclass(frozen=True)
class ConvertedModel:
    """A model of another toolkit in the terms of this package."""

    config: Config  # includes the search that the other toolkit uses
    weights: Arrays  # float32, by the paths of `Transformer.weights_by_path`
    vocabulary: Vocabulary  # its ids are the rows of the embeddings

    def check(self, path: Path) -> None:
        """Raises an error if the weights have another size than the model of the configuration.

        A damaged configuration may describe a model that fits into no memory.
        """
        found = sum(array.size for array in self.weights.values())
        needed = self.config.model.num_parameters()
        if found != needed:
            raise InputError(
                f"The weights have {found:,} values, but a model of this configuration has "
                f"{needed:,}. They belong to another model."
            )
        with reading(path, "SentencePiece models"):
            self.tokenizer()  # TensorFlow refuses some that SentencePiece reads

    def transformer(self, dtype: str | None = None) -> Transformer:
        """Returns the Keras model with the converted weights."""
        transformer = Transformer(self.config.model, dtype=dtype)
        transformer.assign_weights(self.weights)
        return transformer

    def tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of the vocabulary."""
        return Tokenizer(*self.vocabulary.models().values())


def make_model(config: Config, weights: Arrays, vocabulary: Vocabulary) -> ConvertedModel:
    """Returns a model whose configuration has the sizes and special ids of a vocabulary."""
    names = "source_vocab_size target_vocab_size pad_id unknown_id start_id end_id".split()
    of_vocabulary = {f"model.{name}": getattr(vocabulary, name) for name in names}
    return ConvertedModel(config.updated(of_vocabulary), weights, vocabulary)


# Weights.


class SourceWeights:
    """The weights of another toolkit. It remembers which of them were read.

    A weight that was not read belongs to a part of the model that the converter does not support.
    Without it, translations would be wrong, so `read_rest` raises an error.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], label: str):
        self._arrays = arrays
        self._unused = {*arrays}
        self.label = label

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def names(self) -> list[str]:
        """Returns the names of all weights."""
        return list(self._arrays)

    def ignore(self, *names: str) -> None:
        """Marks weights as read that a translation does not use."""
        self._unused.difference_update(names)

    def num_rows(self, *names: str) -> int:
        """Returns the number of rows of a matrix that may have several names."""
        shapes = [np.shape(self._arrays[name]) for name in names if name in self]
        return shapes[0][0] if shapes and shapes[0] else 0

    def take(self, *names: str) -> np.ndarray:
        """Returns a weight as float32.

        A tied weight may have several names. A file contains at least one of them, and all with
        the same values.
        """
        found = [name for name in names if name in self]
        if not found:
            raise InputError(
                f"{self.label} lacks the weight {names[0]}. It is damaged, or its configuration "
                "belongs to another model."
            )
        self.ignore(*found)
        array = self._read(found[0])
        for name in found[1:]:
            if not np.array_equal(self._read(name), array):
                raise InputError(
                    f"{self.label}: {found[0]} and {name} differ, but the configuration ties them."
                )
        return array

    def _read(self, name: str) -> np.ndarray:
        """Returns a weight as float32, without a copy if possible: it may have gigabytes."""
        array = np.asarray(self._arrays[name])
        require(array.ndim > 0, f"{self.label}: the weight {name} is a single number.")
        # To NumPy, bfloat16 is not a floating type.
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise InputError(
                f"{self.label}: the weight {name} has the type {array.dtype}. Only models with "
                "floating-point weights can be converted, not quantized ones."
            )
        array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise InputError(f"{self.label}: the weight {name} has NaN or infinite values.")
        return array

    def read_rest(
        self,
        table: Callable[[ModelConfig], WeightTable],
        model: ModelConfig,
        *,
        transpose: bool = False,
    ) -> Arrays:
        """Returns the weights of a table by our paths. All others must have been read before.

        Several weights are joined along their last axis: this package has one fused kernel for
        queries, keys and values.
        """
        layers = model.num_encoder_layers + model.num_decoder_layers
        if layers > len(self._arrays):  # the table would need too much memory
            raise InputError(
                f"{self.label} has {len(self._arrays):,} weights, but its configuration has "
                f"{layers:,} layers. They belong to different models."
            )
        arrays = {}
        for path, names in table(model).items():
            parts = [self.take(name) for name in names]
            if path.endswith("_kernel"):
                parts = [part.T if transpose else part for part in parts]
            else:  # Marian stores vectors as [1, n]
                parts = [part.reshape(-1) for part in parts]
            if len({(part.ndim, part.shape[:-1]) for part in parts}) > 1:
                shapes = ", ".join(str(part.shape) for part in parts)
                raise InputError(
                    f"{self.label}: {', '.join(names)} have the shapes {shapes}, which cannot be "
                    "joined to one matrix."
                )
            arrays[path] = np.concatenate(parts, axis=-1)
        if self._unused:
            more = f" and {len(self._unused) - 1} more" if len(self._unused) > 1 else ""
            raise InputError(
                f"{self.label} has the weight {min(self._unused)}{more}, which this converter does "
                "not know. The model is of another architecture."
            )
        return arrays


def linear(ours: str, *theirs: str, kinds: Sequence[str] = PYTORCH) -> WeightTable:
    """Returns the kernel, and the bias if `kinds` has two, of one or several joined projections."""
    return {
        f"{ours}_{kind}": tuple(name.format(suffix) for name in theirs)
        for kind, suffix in zip(("kernel", "bias"), kinds, strict=False)
    }


def layer_norm(ours: str, theirs: str, kinds: Sequence[str] = PYTORCH) -> WeightTable:
    """Returns the scale and the shift of a layer norm."""
    return {
        f"{ours}/{kind}": (theirs.format(suffix),)
        for kind, suffix in zip(("gamma", "beta"), kinds, strict=True)
    }


def attention(ours: str, theirs: Sequence[str], kinds: Sequence[str] = PYTORCH) -> WeightTable:
    """Returns the projections of queries, keys, values and of the output, in this order."""
    queries, keys, values, output = theirs
    if ours.endswith("cross_attention"):
        table = linear(f"{ours}/query", queries, kinds=kinds)
        table |= linear(f"{ours}/key_value", keys, values, kinds=kinds)
    else:
        table = linear(f"{ours}/qkv", queries, keys, values, kinds=kinds)
    return table | linear(f"{ours}/output", output, kinds=kinds)


def feed_forward(ours: str, inner: str, outer: str, kinds: Sequence[str] = PYTORCH) -> WeightTable:
    """Returns the two projections of a feed-forward network."""
    table = linear(f"{ours}/inner", inner, kinds=kinds)
    return table | linear(f"{ours}/outer", outer, kinds=kinds)


def fairseq_table(model: ModelConfig, prefix: str = "") -> WeightTable:
    """Returns the table of the stacks with the names of fairseq, which transformers uses, too."""
    table: WeightTable = {}
    names = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
    for stack, (side, sublayers) in STACKS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            ours, theirs = f"{stack}/layer_{i}", f"{prefix}{stack}.layers.{i}"
            for sublayer in sublayers:
                name = f"{theirs}.{names[sublayer]}"
                projections = [f"{name}.{part}_proj.{{}}" for part in ("q", "k", "v", "out")]
                table |= attention(f"{ours}/{sublayer}", projections)
                table |= layer_norm(f"{ours}/{sublayer}_norm", f"{name}_layer_norm.{{}}")
            table |= feed_forward(
                f"{ours}/feed_forward", f"{theirs}.fc1.{{}}", f"{theirs}.fc2.{{}}"
            )
            table |= layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm.{{}}")
        if model.has_final_norm:
            table |= layer_norm(f"{stack}/norm", f"{prefix}{stack}.layer_norm.{{}}")
        if model.other_toolkits.embedding_norm:
            table |= layer_norm(f"{side}_norm", f"{prefix}{stack}.layernorm_embedding.{{}}")
    return table


def embeddings(
    weights: SourceWeights,
    tying: str,
    order: PieceOrder,
    names: Sequence[str],
    bias: np.ndarray | None = None,
) -> Arrays:
    """Returns the weights of matrices with these names: source, target, and all of the output."""
    source, target, *output = names
    if tying == "all":
        return order.weights(weights.take(*names), bias=bias)
    if tying == "target":
        return order.weights(weights.take(source), weights.take(target, *output), bias=bias)
    return order.weights(weights.take(source), weights.take(target), weights.take(*output), bias)


# Settings.


def fairseq_sizes(config: Mapping[str, Any], d_ff: str) -> dict[str, Any]:
    """Returns the sizes of layers from settings with the names of fairseq, as in transformers."""
    heads, decoder_heads, width, decoder_width = (
        size(config, f"{stack}_{name}") for name in ("attention_heads", d_ff) for stack in STACKS
    )
    return {
        "model.num_encoder_layers": size(config, "encoder_layers"),
        "model.num_decoder_layers": size(config, "decoder_layers"),
        "model.num_heads": heads,
        "model.decoder_num_heads": None if decoder_heads == heads else decoder_heads,
        "model.d_ff": width,
        "model.decoder_d_ff": None if decoder_width == width else decoder_width,
    }


def flag(settings: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Returns a setting that is true or false, possibly as a text. None is false."""
    value = settings.get(name, default)
    return value is not None and bool(check_scalar(name, bool, value, convert=True))


def size(settings: Mapping[str, Any], name: str, hint: Any = Size) -> int:
    """Returns a setting that is a size or a number of parts."""
    return int(check_scalar(name, hint, settings.get(name), convert=True))


def check_supported(
    settings: Mapping[str, Any], supported: Mapping[str, Sequence[Any]], file: Path
) -> None:
    """Raises an error for a value that is not supported. The first values are the defaults."""
    for name, values in supported.items():
        value = settings.get(name, values[0])
        if value not in values:
            raise InputError(
                f"{file} has {name} {value!r:.60}. Only models with {' or '.join(map(str, values))}"
                " can be converted."
            )


# Files.


def only_one(files: Iterable[Path], what: str, remedy: str) -> Path:
    """Returns the only file of several candidates."""
    found = sorted(files)
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise InputError(f"{what}, but there are: {names}. {remedy}")
    return found[0]


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    require(file.is_file(), f"{file} does not exist. The model needs it.")
    with reading(file, "JSON"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object with names and values")
        json.dumps(content, ensure_ascii=False).encode()  # fails for one half of a surrogate pair
    return content


def read_ids(file: Path) -> dict[str, int]:
    """Reads a JSON object of pieces and their ids."""
    ids = read_json(file)
    with reading(file, "a vocabulary"):
        for piece, i in ids.items():
            if type(i) is not int or i < 0:  # True is an int, too
                raise ValueError(f"the id of {piece!r:.60} is {i!r:.60}")
    return ids


def read_yaml(content: bytes, loader: str) -> dict[str, Any]:
    """Reads a YAML mapping with a loader of PyYAML, such as "SafeLoader"."""
    with needs_extra("convert", "reading a YAML configuration"):
        import yaml
    make_reader = getattr(yaml, f"C{loader}", getattr(yaml, loader))  # those in C are faster
    text, depth = content.decode("utf-8"), 0
    for event in yaml.parse(text, make_reader):  # the rest is recursive
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or len(getattr(event, "value", "")) > _MAX_SCALAR:
            raise ValueError("it has too many levels, or a value that is too long")
    reader = make_reader(text)
    node = reader.get_single_node()
    check_expanded_size(node, len(content))  # aliases and merged mappings are not resolved yet
    mapping = None if node is None else reader.construct_document(node)
    if not isinstance(mapping, dict):
        raise ValueError("it is not a mapping")
    return mapping


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Reads the weights of a directory of transformers: .safetensors, or else .bin."""
    file = path / "model.safetensors"
    if file.is_file():
        with needs_extra("huggingface", "reading .safetensors files"):
            import safetensors.numpy
        with reading(file, "weights"):
            return dict(safetensors.numpy.load_file(file))
    pickled = path / "pytorch_model.bin"
    if not pickled.is_file():
        raise InputError(
            f"{path} contains neither {file.name} nor {pickled.name}. If the model has several "
            "files of weights, load it with transformers and save it again with save_pretrained "
            "and a max_shard_size above its size."
        )
    state = read_torch_file(pickled)
    with reading(pickled, "weights"):
        return {str(name): np.asarray(array) for name, array in state.items()}


def read_tokens(path: Path) -> list[str]:
    """Returns the lines of a vocabulary file."""
    with reading(path, "a vocabulary"):
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def find_vocabularies(
    directory: Path, options: ConvertOptions, names: Sequence[str], shared: str | None
) -> list[Path]:
    """Returns the files of both sides: options, usual names, or the only file like `shared`."""
    paths = []
    given = (options.source_vocabulary, options.target_vocabulary)
    for side, name, path in zip(("source", "target"), names, given, strict=True):
        file = directory / name if path is None else Path(path)
        if path is None and not os.path.isfile(file):  # `is_file` fails for long names
            what = f"{directory} must contain {name or shared}, the vocabulary of the {side}"
            remedy = f"Copy it there, or give it as {side}_vocabulary."
            file = only_one(directory.glob(shared) if shared else [], what, remedy)
        paths.append(file)
    return paths


def order_tokens(
    tokens: Sequence[Sequence[str]],
    sentencepiece: Sequence[str] | None,
    *,
    joint: bool,
    pad_piece: str,
    start_row: int,
) -> PieceOrder:
    """Returns the vocabulary of the tokens of source and target, with their ids."""
    if joint and list(tokens[0]) != list(tokens[1]):
        raise InputError(
            "The model shares its embeddings between source and target, but the two vocabularies "
            "differ. Give the vocabulary of this model."
        )
    if sentencepiece is not None:
        models = [read_sentencepiece(Path(path)) for path in sentencepiece]
        tables = [piece_ids(side) for side in tokens]
    else:
        models, tables = map(list, zip(*map(word_model, tokens), strict=True))
    if joint:
        tables[1] = tables[0]
    return order_pieces(models, *tables, pad_piece=pad_piece, start_row=start_row)
