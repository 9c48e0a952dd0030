"""Learns the lexical shortlist of a run from its training data.

Counts expected alignments with IBM model 1 (Brown et al., 1993), on token ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from keras_transformer.data.token_store import TokenStore
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.extensions.alignment.ibm_model_1 import (
    Sentences,
    translation_probabilities,
)
from keras_transformer.inference.loading import members
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary

_MAX_LINKS = 100_000_000
_MIN_PROBABILITY = 1e-3  # drops words that only occur in the same sentences


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
    source, target = (
        Sentences(side.ids(pairs), side.lengths.astype(np.int64)) for side in store.sides
    )
    counts = np.bincount(target.ids, minlength=vocabulary.target_vocab_size)
    special = [vocabulary.end_id, vocabulary.unknown_id]
    counts[special] = 0
    order = np.argsort(-counts, kind="stable")[:size]
    frequent = np.concatenate([special, order[counts[order] > 0]]).astype(np.int32)
    # Frequent tokens are candidates anyway. Without them there are half as many links.
    is_rare = np.ones(len(counts), bool)
    is_rare[frequent] = False
    sources, tokens, probs = translation_probabilities(
        source, target, is_rare, _MAX_LINKS, "learning the shortlist", seed
    )
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
