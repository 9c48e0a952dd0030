"""Batches as those who pad to the longest sentence make them: sorted by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data.token_store import TokenStore


def sorted_batches(
    store: TokenStore, batch_tokens: int, pad_id: int, start_id: int, seed: int, count: int
) -> dict[str, Any]:
    """Returns the first batches of an epoch as sorting by length makes them, in random order.

    Args:
        store: the corpus.
        batch_tokens: most target positions of a batch.
        pad_id: fills rows up to the longest.
        start_id: of the decoder's input.
        seed: of the order of the batches.
        count: how many batches, at most.

    Returns:
        `source_I`, `target_I` and `labels_I` int32[rows, length] of each batch I.
    """
    source_lengths, target_lengths = store.source_lengths, store.target_lengths
    groups: list[list[int]] = [[]]
    for pair in np.lexsort((source_lengths, target_lengths)):
        if (len(groups[-1]) + 1) * target_lengths[pair] > batch_tokens:
            groups.append([])
        groups[-1].append(int(pair))

    def pad(rows: Sequence[np.ndarray]) -> np.ndarray:
        padded = np.full((len(rows), max(map(len, rows))), pad_id, np.int32)
        for ids, row in zip(rows, padded, strict=True):
            row[: len(ids)] = ids
        return padded

    arrays = {}
    for i, group in enumerate(np.random.default_rng(seed).permutation(len(groups))[:count]):
        pairs = groups[group]
        targets = [store.target_ids(np.array([pair])) for pair in pairs]
        arrays[f"source_{i}"] = pad([store.source_ids(np.array([pair])) for pair in pairs])
        arrays[f"target_{i}"] = pad([np.append(start_id, ids[:-1]) for ids in targets])
        arrays[f"labels_{i}"] = pad(targets)
    return arrays
