"""The result of reading a model of another toolkit, and help for reading its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary

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

    def transformer(self, dtype: str | None = None) -> Transformer:
        """Returns the Keras model with the converted weights."""
        # First, because a damaged configuration may describe a model that fits into no memory.
        found = sum(array.size for array in self.weights.values())
        needed = self.config.model.num_parameters()
        if found != needed:
            raise InputError(
                f"The weights have {found:,} values, but a model of this configuration has "
                f"{needed:,}. They belong to another model."
            )
        transformer = Transformer(self.config.model, dtype=dtype)
        transformer.assign_weights(self.weights)
        return transformer

    def tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of the vocabulary."""
        return Tokenizer(*self.vocabulary.models().values())


class SourceWeights:
    """The weights of another toolkit. It remembers which of them were used.

    A weight that nobody used is a part of the model that the converter does not know. Its
    translations would be wrong, so `check_all_used` raises an error.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], place: str):
        self._arrays = arrays
        self.place = place
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def names(self) -> list[str]:
        """Returns the names of all weights."""
        return list(self._arrays)

    def take(self, name: str) -> np.ndarray:
        """Returns a weight as float32, and marks it as used."""
        if name not in self._arrays:
            raise InputError(
                f"{self.place} lacks the weight {name}. It is damaged, or its configuration "
                "belongs to another model."
            )
        self._used.add(name)
        array = np.asarray(self._arrays[name])
        # To NumPy, bfloat16 is not a floating type.
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise InputError(
                f"{self.place}: the weight {name} has the type {array.dtype}. Only models with "
                "floating-point weights can be converted, not quantized ones."
            )
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise InputError(f"{self.place}: the weight {name} contains NaN or infinite values.")
        return array

    def take_one_of(self, *names: str) -> np.ndarray:
        """Returns the first weight that exists, and marks all of them as used.

        For tied weights: a file contains one of the names, or several with the same values.
        """
        found = [name for name in names if name in self]
        array = self.take(found[0] if found else names[0])
        for name in found[1:]:
            if not np.array_equal(self.take(name), array):
                raise InputError(
                    f"{self.place}: {found[0]} and {name} differ, but the configuration ties them."
                )
        return array

    def ignore(self, *names: str) -> None:
        """Marks weights as used that have no part in a translation."""
        self._used.update(names)

    def read(self, table: WeightTable, *, transpose: bool = False) -> Arrays:
        """Returns the weights of a table by our paths.

        Several weights are joined along their last axis: this package has one fused kernel for
        queries, keys and values.
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
                    f"{self.place}: {', '.join(names)} have the shapes {shapes}, which cannot be "
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
                f"{self.place} has the weight {unused[0]}{more}, which this converter does not "
                "know. The model is of another architecture."
            )


def make_model(config: Config, weights: Arrays, vocabulary: Vocabulary) -> ConvertedModel:
    """Returns a model whose configuration has the sizes and special ids of a vocabulary."""
    names = "source_vocab_size target_vocab_size pad_id unknown_id start_id end_id".split()
    of_vocabulary = {f"model.{name}": getattr(vocabulary, name) for name in names}
    return ConvertedModel(config.updated(of_vocabulary), weights, vocabulary)
