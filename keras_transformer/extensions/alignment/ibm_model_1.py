"""IBM model 1 (Brown et al., 1993): which tokens translate each other."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.console import progress_bar

# Words at different positions are less likely to be aligned: this distance, as a share of the
# sentence, divides a score by e.
SPREAD = 0.3
_ITERATIONS = 5  # expectation maximization; more change the ranks only a little
_LINKS_AT_ONCE = 2_000_000

Mask: TypeAlias = npt.NDArray[np.bool_]
Translations: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


class Sentences(NamedTuple):
    """The ids of all sentences of a language, int32 `[N]`, and the length of each, int64."""

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]


def translation_probabilities(
    source: Sentences,
    target: Sentences,
    is_aligned: Mask,
    max_links: int,
    title: str,
    seed: int = 1,
) -> Translations:
    """Returns source ids, target ids, and the probability of each such translation.

    Only target ids with True in `is_aligned`, bool `[V]`, are translations. A link is a pair of a
    source id and such a target id in the same sentence pair. It takes 4 bytes. A corpus with more
    than `max_links` is sampled with `seed`. `title` is shown next to the progress.
    """
    vocab_size, pairs = len(is_aligned), len(target.lengths)
    pair_of = np.repeat(np.arange(pairs), target.lengths)
    source_starts = np.cumsum(source.lengths) - source.lengths
    aligned_tokens = np.bincount(pair_of, is_aligned[target.ids], pairs).astype(np.int64)
    links_of_pair = source.lengths * aligned_tokens
    kept = np.ones(pairs, bool)
    if links_of_pair.sum() > max_links:
        shuffled = np.random.default_rng(seed).permutation(pairs)
        kept[shuffled] = np.cumsum(links_of_pair[shuffled]) <= max_links
    is_used = is_aligned[target.ids] & kept[pair_of]
    # The target tokens that are aligned, their pairs, and their numbers of links.
    tokens, pair_of = target.ids[is_used], pair_of[is_used]
    sizes = source.lengths[pair_of]
    ends = np.cumsum(sizes)
    cut_links = np.arange(0, ends[-1] if len(ends) else 0, _LINKS_AT_ONCE)[1:]
    cuts = np.unique([0, *np.searchsorted(ends, cut_links, side="right"), len(sizes)])
    blocks = [slice(*cut) for cut in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]

    def keys_of(block: slice) -> npt.NDArray[np.int64]:
        """Returns source token * V + target token of the links of some target tokens."""
        count = sizes[block]
        offsets = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        linked = source.ids[np.repeat(source_starts[pair_of[block]], count) + offsets]
        return linked.astype(np.int64) * vocab_size + np.repeat(tokens[block], count)

    steps = len(blocks) * (1 + _ITERATIONS)
    with progress_bar(steps, "blocks", title) as bar:
        found = []
        for block in blocks:
            own, inverse = np.unique(keys_of(block), return_inverse=True)
            found.append((own, inverse.astype(np.int32)))
            bar.update()
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *(own for own, _ in found)]))
        # The index of each link in `keys`
        links = [np.searchsorted(keys, own)[inverse].astype(np.int32) for own, inverse in found]
        del found
        sources, targets = keys // vocab_size, keys % vocab_size
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


def mutual_probabilities(
    source: Sentences, target: Sentences, is_word: Mask, max_links: int, title: str
) -> Translations:
    """Returns source ids, target ids, and the product of the probabilities of both directions.

    Only ids with True in `is_word`, bool `[V]`, are translations. Other arguments are as in
    `translation_probabilities`.
    """
    forward = translation_probabilities(source, target, is_word, max_links, title)
    backward = translation_probabilities(target, source, is_word, max_links, title)
    keys = forward[0] * len(is_word) + forward[1], backward[1] * len(is_word) + backward[0]
    both, first, second = np.intersect1d(*keys, assume_unique=True, return_indices=True)
    scores = forward[2][first] * backward[2][second]
    return both // len(is_word), both % len(is_word), scores
