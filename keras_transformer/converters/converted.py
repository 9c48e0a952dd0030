"""The result of reading a model of another toolkit, and help for reading its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.text.vocabulary import Vocabulary

# Bias of tokens that a model cannot generate. Their probability is 0 in float32, and a float16 can
# represent it. Label smoothing is finite, so that the model can be trained further.
NEVER = -1_000.0

# Our path of a weight → the names of the weights of the other toolkit that it consists of.
WeightTable = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class ConvertedModel:
    """A model of another toolkit in the terms of this package.

    Attributes:
        config: sizes and variants of the model, and the search that the other toolkit uses.
        weights: float32 arrays by the paths of `Transformer.weights_by_path`.
        vocabulary: the vocabulary, whose ids are the rows of the embeddings.
    """

    config: Config
    weights: Arrays
    vocabulary: Vocabulary

    def transformer(self) -> Transformer:
        """Returns the Keras model with the converted weights.

        Raises:
            InputError: if the weights do not fit the configuration.
        """
        transformer = Transformer(self.config.model)
        transformer.assign_weights(self.weights)
        return transformer


class SourceWeights:
    """The weights of another toolkit. It remembers which of them were used.

    A weight that nobody used is a part of the model that the converter does not know. Its
    translations would be wrong, so `check_all_used` raises an error.

    Args:
        arrays: the weights by their name in the other toolkit.
        place: the name of the file for errors.

    Example:
    >>> source = SourceWeights({"Wemb": np.ones((4, 2))}, "model.npz")
    >>> source.take("Wemb").shape
    (4, 2)
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], place: str):
        self._arrays = arrays
        self._place = place
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def take(self, name: str) -> np.ndarray:
        """Returns a weight as float32, and marks it as used.

        Raises:
            InputError: if it is missing, or is not a finite array of numbers.
        """
        if name not in self._arrays:
            raise InputError(
                f"{self._place} lacks the weight {name}. It is damaged, or its configuration "
                "belongs to another model."
            )
        self._used.add(name)
        array = np.asarray(self._arrays[name], np.float32)
        if not np.isfinite(array).all():
            raise InputError(f"{self._place}: the weight {name} contains NaN or infinite values.")
        return array

    def ignore(self, *names: str) -> None:
        """Marks weights as used that have no part in a translation."""
        self._used.update(names)

    def read(self, table: WeightTable, *, transpose: bool = False) -> Arrays:
        """Returns the weights of a table by our paths.

        Several weights are joined along their last axis: this package has one fused kernel for
        queries, keys and values.

        Args:
            table: our path → the names of its parts.
            transpose: True if the kernels of the other toolkit are `[outputs, inputs]`, as in
                PyTorch.

        Raises:
            InputError: if a weight is missing, or if the shapes of parts do not fit.
        """
        arrays = {}
        for path, names in table.items():
            parts = [self.take(name) for name in names]
            if path.endswith("_kernel"):
                parts = [part.T if transpose else part for part in parts]
            else:  # Marian stores vectors as [1, n]
                parts = [part.reshape(-1) for part in parts]
            if len({(part.ndim, part.shape[:-1]) for part in parts}) > 1:
                shapes = ", ".join(str(part.shape) for part in parts)
                raise InputError(
                    f"{self._place}: {', '.join(names)} have the shapes {shapes}, which cannot be "
                    "joined to one matrix."
                )
            arrays[path] = np.concatenate(parts, axis=-1)
        return arrays

    def check_all_used(self) -> None:
        """Raises an `InputError` for a weight that was not used."""
        unused = sorted(self._arrays.keys() - self._used)
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise InputError(
                f"{self._place} has the weight {unused[0]}{more}, which this converter does not "
                "know. The model is of another architecture."
            )


def check_shapes(model: ConvertedModel, place: str) -> None:
    """Raises an `InputError` if weights and vocabulary do not fit the configuration.

    Args:
        model: the converted model.
        place: the name of the file for errors.
    """
    config, vocabulary = model.config.model, model.vocabulary
    sizes = (config.source_vocab_size, config.target_vocab_size)
    found = (vocabulary.source_vocab_size, vocabulary.target_vocab_size)
    if sizes != found:
        raise InputError(
            f"{place}: the embeddings have {sizes[0]:,} and {sizes[1]:,} rows, but the vocabulary "
            f"has {found[0]:,} and {found[1]:,} tokens. Give the vocabulary of this model."
        )


def select_rows(matrix: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Returns rows of an embedding matrix `[V, d]` by the ids of a new vocabulary.

    Args:
        matrix: the original matrix.
        rows: the row of each new id; -1 for a row of zeros.

    Example:
    >>> select_rows(np.array([[1.0], [2.0]]), [1, -1]).tolist()
    [[2.0], [0.0]]
    """
    zeros = np.zeros((1, matrix.shape[1]), matrix.dtype)
    return np.concatenate([matrix, zeros])[list(rows)]


def select_bias(
    bias: np.ndarray, rows: Sequence[int], can_be_generated: Sequence[bool]
) -> np.ndarray:
    """Returns the output bias `[V]` by the ids of a new vocabulary.

    Tokens that the original model cannot generate get a bias that makes their probability 0.

    Args:
        bias: the original bias.
        rows: the row of each new id; -1 for 0.
        can_be_generated: for each new id whether the original model can generate it.
    """
    selected = select_rows(bias.reshape(-1, 1), rows)[:, 0]
    return np.where(can_be_generated, selected, NEVER).astype(np.float32)
