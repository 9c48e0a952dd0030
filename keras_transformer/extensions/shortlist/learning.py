"""Learns the lexical shortlist of a run from its training data.

Counts expected alignments with IBM model 1 (Brown et al., 1993), on token ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_transformer.console import progress_bar
from keras_transformer.data.token_store import TokenStore
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.inference.loading import members
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary

_ITERATIONS = 5  # expectation maximization; more change the ranks only a little
_MIN_PROBABILITY = 1e-3  # drops words that only occur in the same sentences
# A link is a pair of a target token and a source token in the same sentence pair. It takes 4 bytes.
_MAX_LINKS = 100_000_000
_LINKS_AT_ONCE = 2_000_000


def learn_shortlist(
    run: str | Path | RunDirectory, data_dir: str | Path | None, size: int
) -> Shortlist:
    """Learns the candidates of each source token. Progress is shown on a terminal.

    Args:
        run: a run, or several with the same vocabulary, as `export` accepts them.
        data_dir: the prepared data that the run was trained on.
        size: number of frequent tokens, and of translations of each source token.

    Example:
    >>> from keras_transformer.data.corpus import parallel_files
    >>> from keras_transformer.data.prepare import PrepareOptions, prepare
    >>> corpora, options = parallel_files(["train.en"], ["train.de"]), PrepareOptions(valid_pairs=1)
    >>> _ = prepare(corpora, "data", options, vocab_from="build/run/tokenizer")
    >>> learn_shortlist("build/run", "data", 8).describe()
    {'frequent': 10, 'translations': 8}
    """
    if data_dir is None:
        raise InputError(
            "A shortlist is learned from the training data. Give its directory as data_dir."
        )
    data_dir = Path(data_dir)
    vocabulary = Vocabulary.load(data_dir)
    first, _ = members(run)[0]
    if vocabulary.fingerprint != first.tokenizer().fingerprint:
        raise InputError(
            f"{data_dir} and {first.path} have different vocabularies. Give the data that the run "
            "was trained on."
        )
    return shortlist_of(TokenStore(data_dir / "train"), vocabulary, size)


def shortlist_of(
    store: TokenStore, vocabulary: Vocabulary, size: int, *, seed: int = 1
) -> Shortlist:
    """Learns a shortlist from pairs of token ids.

    The frequent tokens are the end and the unknown token, then the most frequent target tokens.
    With a joint vocabulary, each token is its own first translation, because names are copied. Very
    large corpora are sampled with `seed`.
    """
    if not 1 <= size <= vocabulary.target_vocab_size:
        raise InputError(
            f"The size of the shortlist is {size:,}, but it must be from 1 to the number of target "
            f"tokens, {vocabulary.target_vocab_size:,}."
        )
    if not len(store):
        raise InputError(f"{store.directory} has no pairs, so there is nothing to learn from.")
    pairs = np.arange(len(store))
    source, target = store.source.ids(pairs), store.target.ids(pairs)
    counts = np.bincount(target, minlength=vocabulary.target_vocab_size)
    special = [vocabulary.end_id, vocabulary.unknown_id]
    counts[special] = 0
    order = np.argsort(-counts, kind="stable")[:size]
    frequent = np.concatenate([special, order[counts[order] > 0]]).astype(np.int32)
    # Frequent tokens are candidates anyway. Without them there are half as many links.
    is_rare = np.ones(len(counts), bool)
    is_rare[frequent] = False
    sources, tokens, probs = _translations(source, target, store, is_rare, seed)
    kept = probs >= _MIN_PROBABILITY
    sources, tokens, probs = sources[kept], tokens[kept], probs[kept]
    order = np.lexsort((-probs, sources))
    sources, tokens = sources[order], tokens[order]
    rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
    # Rows with fewer translations end with end tokens.
    translations = np.full((vocabulary.source_vocab_size, size), vocabulary.end_id, np.int32)
    first = int(vocabulary.joint)
    if vocabulary.joint:
        translations[:, 0] = np.arange(len(translations))
        # Padding must not change the candidates of a sentence.
        translations[[vocabulary.pad_id, vocabulary.start_id], 0] = vocabulary.end_id
    kept = rank < size - first
    translations[sources[kept], rank[kept] + first] = tokens[kept]
    return Shortlist(frequent, translations)


def _translations(
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
    store: TokenStore,
    is_rare: npt.NDArray[np.bool_],
    seed: int,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns source tokens, rare target tokens, and the probabilities of these translations."""
    vocab_size = len(is_rare)
    pair_of = np.repeat(np.arange(len(store)), store.target.lengths.astype(np.int64))
    source_lengths = store.source.lengths.astype(np.int64)
    source_starts = np.cumsum(source_lengths) - source_lengths
    rare_tokens = np.bincount(pair_of, is_rare[target], len(store)).astype(np.int64)
    links_of_pair = source_lengths * rare_tokens
    kept = np.ones(len(store), bool)
    if links_of_pair.sum() > _MAX_LINKS:
        shuffled = np.random.default_rng(seed).permutation(len(store))
        kept[shuffled] = np.cumsum(links_of_pair[shuffled]) <= _MAX_LINKS
    is_used = is_rare[target] & kept[pair_of]
    # The target tokens that are aligned, their pairs, and their numbers of links.
    target, pair_of = target[is_used], pair_of[is_used]
    sizes = source_lengths[pair_of]
    ends = np.cumsum(sizes)
    cut_links = np.arange(0, ends[-1] if len(ends) else 0, _LINKS_AT_ONCE)[1:]
    cuts = np.unique([0, *np.searchsorted(ends, cut_links, side="right"), len(sizes)])
    blocks = [slice(*cut) for cut in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]

    def keys_of(block: slice) -> npt.NDArray[np.int64]:
        """Returns source token * V + target token of the links of some target tokens."""
        count = sizes[block]
        offsets = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        tokens = source[np.repeat(source_starts[pair_of[block]], count) + offsets]
        return tokens.astype(np.int64) * vocab_size + np.repeat(target[block], count)

    steps = len(blocks) * (1 + _ITERATIONS)
    with progress_bar(steps, "blocks", "learning the shortlist") as bar:
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
