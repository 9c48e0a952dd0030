"""Learns which target tokens translate each source token, for lexical shortlists.

Counts expected alignments in the training data with IBM model 1 (Brown et al., 1993), on token ids.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.console import progress_bar
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary

_ITERATIONS = 5  # of expectation maximization; more change the ranks only a little
_MIN_PROBABILITY = 1e-3  # of a translation; drops words that only occur in the same sentences
# A link is a pair of a target token and a source token in the same sentence pair. It takes 4 bytes.
_MAX_LINKS = 100_000_000
_LINKS_AT_ONCE = 2_000_000


class Lexicon(NamedTuple):
    """The frequent tokens and the most probable translations of a corpus.

    Attributes:
        frequent: int32 `[F]`, the end and the unknown token, then the most frequent target tokens.
        translations: int32 `[source vocabulary, N]`, the most probable translations of each source
            token without the frequent tokens, best first. Rows end with end tokens if there are
            fewer.
    """

    frequent: npt.NDArray[np.int32]
    translations: npt.NDArray[np.int32]


def learn_lexicon(store: TokenStore, vocabulary: Vocabulary, size: int, seed: int = 1) -> Lexicon:
    """Learns a lexicon from pairs of token ids.

    With a joint vocabulary, each token is its own first translation, because names are copied.
    Very large corpora are sampled. A progress bar shows the time left.

    Args:
        store: the training pairs.
        vocabulary: their vocabulary.
        size: number of frequent tokens, and of translations of each source token.
        seed: seed of the sample.

    Raises:
        InputError: for a size below 1 or above the vocabulary, a store without pairs, or a store
            with ids that are not in the vocabulary.
    """
    if not 1 <= size <= vocabulary.target_vocab_size:
        raise InputError(
            f"The size of the shortlist is {size:,}, but it must be from 1 to the number of target "
            f"tokens, {vocabulary.target_vocab_size:,}."
        )
    if not len(store):
        raise InputError(f"{store.directory} has no pairs, so there is nothing to learn from.")
    pairs = np.arange(len(store))
    source, target = store.source_ids(pairs), store.target_ids(pairs)
    for name, ids, vocab_size in (
        ("source", source, vocabulary.source_vocab_size),
        ("target", target, vocabulary.target_vocab_size),
    ):
        if not 0 <= ids.min(initial=0) <= ids.max(initial=0) < vocab_size:
            raise InputError(
                f"{store.directory} has {name} ids up to {ids.max()}, but the vocabulary has only "
                f"{vocab_size:,} tokens. Use the data that the run was trained on."
            )
    counts = np.bincount(target, minlength=vocabulary.target_vocab_size)
    special = [vocabulary.end_id, vocabulary.unknown_id]
    counts[special] = 0
    order = np.argsort(-counts, kind="stable")[:size]
    frequent = np.concatenate([special, order[counts[order] > 0]]).astype(np.int32)
    # Frequent tokens are candidates anyway. Without them there are half as many links.
    is_rare = np.ones(len(counts), bool)
    is_rare[frequent] = False
    links = _Links(source, target, store, is_rare, vocabulary.target_vocab_size, seed)
    translations = np.full((vocabulary.source_vocab_size, size), vocabulary.end_id, np.int32)
    best, tokens, probs = links.learn()
    kept = probs >= _MIN_PROBABILITY
    best, tokens, probs = best[kept], tokens[kept], probs[kept]
    order = np.lexsort((-probs, best))
    best, tokens = best[order], tokens[order]
    rank = np.arange(len(best)) - np.searchsorted(best, best)
    first = int(vocabulary.joint)
    if vocabulary.joint:
        translations[:, 0] = np.arange(len(translations))
        # Padding must not change the candidates of a sentence.
        translations[[vocabulary.pad_id, vocabulary.start_id], 0] = vocabulary.end_id
    kept = rank < size - first
    translations[best[kept], rank[kept] + first] = tokens[kept]
    return Lexicon(frequent, translations)


class _Links:
    """All links of a corpus."""

    def __init__(
        self,
        source: npt.NDArray[np.int32],
        target: npt.NDArray[np.int32],
        store: TokenStore,
        is_rare: npt.NDArray[np.bool_],
        vocab_size: int,
        seed: int,
    ) -> None:
        lengths = store.target_lengths.astype(np.int64)
        pair_of = np.repeat(np.arange(len(store)), lengths)
        self._source_lengths = store.source_lengths.astype(np.int64)
        self._source_starts = np.cumsum(self._source_lengths) - self._source_lengths
        links_of_pair = self._source_lengths * np.bincount(
            pair_of, is_rare[target], len(store)
        ).astype(np.int64)
        kept = np.ones(len(store), bool)
        if links_of_pair.sum() > _MAX_LINKS:
            shuffled = np.random.default_rng(seed).permutation(len(store))
            kept[shuffled] = np.cumsum(links_of_pair[shuffled]) <= _MAX_LINKS
        is_used = is_rare[target] & kept[pair_of]
        self._source, self._vocab_size = source, vocab_size
        # The target tokens that are aligned, and their pairs
        self._target, self._pair_of = target[is_used], pair_of[is_used]

    def learn(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns source tokens, target tokens, and the probabilities of these translations."""
        sizes = self._source_lengths[self._pair_of]
        ends = np.cumsum(sizes)
        places = np.arange(0, ends[-1] if len(ends) else 0, _LINKS_AT_ONCE)[1:]
        cuts = np.unique([0, *np.searchsorted(ends, places, side="right"), len(sizes)])
        blocks = [slice(*cut) for cut in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]
        with progress_bar(
            len(blocks) * (1 + _ITERATIONS), "blocks", "learning the shortlist"
        ) as bar:
            found = []
            for block in blocks:
                own, inverse = np.unique(self._keys(block), return_inverse=True)
                found.append((own, inverse.astype(np.int32)))
                bar.update()
            keys = np.unique(np.concatenate([np.zeros(0, np.int64), *(each for each, _ in found)]))
            # The index of each link in `keys`
            links = [np.searchsorted(keys, own)[inverse].astype(np.int32) for own, inverse in found]
            del found
            sources, targets = keys // self._vocab_size, keys % self._vocab_size
            probs = np.ones(len(keys))
            for _ in range(_ITERATIONS):
                counts = np.zeros(len(keys))
                for block, link in zip(blocks, links, strict=True):
                    firsts = np.cumsum(sizes[block]) - sizes[block]
                    weights = probs[link]
                    weights /= np.repeat(np.add.reduceat(weights, firsts), sizes[block])
                    counts += np.bincount(link, weights, len(keys))
                    bar.update()
                probs = counts / np.maximum(np.bincount(sources, counts)[sources], 1e-300)
        return sources, targets, probs

    def _keys(self, block: slice) -> npt.NDArray[np.int64]:
        """Returns source token * V + target token of the links of some target tokens."""
        pairs = self._pair_of[block]
        sizes = self._source_lengths[pairs]
        offsets = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        source = self._source[np.repeat(self._source_starts[pairs], sizes) + offsets]
        return source.astype(np.int64) * self._vocab_size + np.repeat(self._target[block], sizes)
