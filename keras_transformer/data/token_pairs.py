"""The protocol of a corpus for batches. A token store implements it."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
TokenArray: TypeAlias = npt.NDArray[np.int32]
Lengths: TypeAlias = npt.NDArray[np.integer[Any]]


class TokenPairs(Protocol):
    """Encoded pairs of sentences, numbered from 0, and their text.

    The ids of some pairs lie one after another; each sentence ends with the end
    id and has neither start id nor padding.

    Example:
    >>> from keras_transformer.data.token_store import TokenStore
    >>> store: TokenPairs = TokenStore("build/data/train")
    >>> len(store), store.source_ids(np.array([0])).dtype
    (2, dtype('int32'))
    """

    @property
    def source_lengths(self) -> Lengths:
        """int[pairs], ids of each source sentence, its end id counted."""
        ...

    @property
    def target_lengths(self) -> Lengths:
        """int[pairs], ids of each target sentence, its end id counted."""
        ...

    def source_ids(self, pairs: IntArray) -> TokenArray:
        """Returns int32[their tokens], the source ids of pairs."""
        ...

    def target_ids(self, pairs: IntArray) -> TokenArray:
        """Returns int32[their tokens], the target ids of pairs."""
        ...

    def source_lines(self, pairs: IntArray) -> list[bytes]:
        """Returns the source text of pairs."""
        ...

    def target_lines(self, pairs: IntArray) -> list[bytes]:
        """Returns the target text of pairs."""
        ...

    def __len__(self) -> int: ...
