"""Subword regularization (Kudo, 2018): segmentations drawn from a unigram model.

Each word of a sentence takes one of its best segmentations, with a probability proportional to
P(segmentation)^alpha (section 3.3). Pieces do not cross word boundaries, so the product is a
distribution over many more segmentations of the sentence than the n best of the whole sentence.

The choice depends only on a key, so it is the same in every process. The library therefore only
lists the segmentations. Its sampling is seeded differently in each process.
"""

from __future__ import annotations

import array
import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import sentencepiece

from keras_transformer.data.token_pairs import (
    IntArray,
    Lengths,
    TokenArray,
    TokenPairs,
)
from keras_transformer.errors import InputError
from keras_transformer.text.model_proto import MODEL_TYPES, UNIGRAM, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import Vocabulary

_BEST = 32  # segmentations of a word that are considered; a word of 6 letters has no more
_WORDS_KEPT = 2**16
_SPACE = "\u2581".encode()  # begins each word

_DRAWS = 4  # draws for pairs that do not fit into their batch
_SAMPLED_PAIRS = 2000
_SIMILAR_PAIRS = 25  # pairs in either direction that count as similar in length

Begins: TypeAlias = "array.array[int]"
Keys: TypeAlias = npt.NDArray[np.uint64]


def key_of(*numbers: int) -> Keys:
    """Returns a key, uint64[1], that is a function of the numbers, each at least 0.

    Example:
    >>> key_of(1, 2).shape
    (1,)
    """
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64).astype(np.uint64)


def hashed(key: Keys, numbers: IntArray) -> Keys:
    """Hashes numbers with a key to pseudo-random uint64 values. Both arguments are broadcast.

    Example:
    >>> values = hashed(key_of(1), np.arange(3))
    >>> values.dtype, len(set(values.tolist()))
    (dtype('uint64'), 3)
    """
    return _mixed(key ^ _mixed(numbers.astype(np.uint64)))


def _mixed(values: Keys) -> Keys:
    for odd in (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)):
        values = values * odd
        values = values ^ (values >> np.uint64(32))
    return values


class PlannedLengths(NamedTuple):
    """The lengths that batches are planned for.

    Attributes:
        source: int[pairs], source lengths.
        target: int[pairs], target lengths.
        tokens: approximate number of tokens of an epoch, of both sides.

    Example:
    >>> PlannedLengths(np.array([5]), np.array([6]), tokens=11).tokens
    11
    """

    source: Lengths
    target: Lengths
    tokens: int


class SubwordSampler:
    """Draws the segmentations of sentences.

    Example:
    >>> from keras_transformer.data.token_store import TokenStore
    >>> sampler = SubwordSampler(Vocabulary.load("build/data"), alpha=0.1)
    >>> ids, lengths = sampler.source_ids(TokenStore("build/data/train"), np.array([0]), key_of(1))
    >>> len(ids) == int(lengths[0])
    True
    """

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        """Creates a sampler.

        Args:
            vocabulary: unigram models.
            alpha: above 0. A smaller alpha makes the probabilities more uniform. Kudo uses 0.1
                to 0.5.

        Raises:
            InputError: for a vocabulary that is not unigram, or an alpha that is not above 0.
        """
        if not 0 < alpha < math.inf:
            raise InputError(f"The alpha of subword sampling is {alpha}, but it must be above 0.")
        end = np.int32(vocabulary.end_id).tobytes()
        self._source = _Side("source", vocabulary.source_model, end, alpha)
        self._target = _Side("target", vocabulary.target_model, end, alpha)

    def source_ids(
        self, store: TokenPairs, pairs: IntArray, keys: Keys, longest: Lengths | None = None
    ) -> tuple[TokenArray, IntArray]:
        """Draws source segmentations.

        Args:
            store: contains the pairs in their best segmentations.
            pairs: int64[N], numbers of the pairs.
            keys: uint64[N], the random key of each pair.
            longest: int[N], maximum tokens of each sentence, including the end id. A sentence
                keeps its best segmentation if a few samples are all longer than this.

        Returns:
            The ids of all sentences, int32[tokens], and the length of each, int64[N].
        """
        lines = store.source_lines(pairs)
        return self._source.draw(lines, pairs, keys, longest, store.source_ids)

    def target_ids(
        self, store: TokenPairs, pairs: IntArray, keys: Keys, longest: Lengths | None = None
    ) -> tuple[TokenArray, IntArray]:
        """Draws target segmentations. See `source_ids` for the arguments."""
        lines = store.target_lines(pairs)
        return self._target.draw(lines, pairs, ~keys, longest, store.target_ids)

    def planned_lengths(self, store: TokenPairs, most: int) -> PlannedLengths:
        """Returns the lengths that a corpus needs, estimated from some of its pairs.

        The segmentations of some pairs are sampled. Each pair is planned with the relative growth
        of a sampled pair of similar length, so that there are enough rows for long sentences.

        Args:
            store: the corpus.
            most: maximum target tokens of a sentence, unless its best segmentation has more.
        """
        sampled = np.unique(np.linspace(0, len(store) - 1, _SAMPLED_PAIRS).astype(np.int64))
        keys = hashed(key_of(0), sampled)
        best = store.source_lengths + store.target_lengths
        sampled = sampled[np.argsort(best[sampled], kind="stable")]
        places = np.searchsorted(best[sampled], best)
        some = hashed(key_of(1), np.arange(len(store))) % np.uint64(2 * _SIMILAR_PAIRS + 1)
        places = np.clip(places + some.astype(np.int64) - _SIMILAR_PAIRS, 0, len(sampled) - 1)
        sides = []
        for lengths, draw in (
            (store.source_lengths, self.source_ids),
            (store.target_lengths, self.target_ids),
        ):
            growth = draw(store, sampled, keys)[1] / lengths[sampled]
            sides.append(np.rint(lengths * np.maximum(growth, 1.0)[places]).astype(np.int32))
        source, target = sides
        target = np.maximum(np.minimum(target, most), store.target_lengths)
        return PlannedLengths(
            source, target, int(source.sum(dtype=np.int64) + target.sum(dtype=np.int64))
        )


class _Side:
    """The segmentations of one language."""

    def __init__(self, side: str, model: bytes, end: bytes, alpha: float) -> None:
        proto = ModelProto.FromString(model)
        _check(side, proto)
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._end = end
        self._alpha = alpha
        self._scores = np.array([piece.score for piece in proto.pieces])
        # Symbols, such as language tags, must not be split.
        self._whole = {i for i, p in enumerate(proto.pieces) if p.type == USER_DEFINED}
        self._segmentations = functools.lru_cache(_WORDS_KEPT)(self._list_segmentations)

    def _list_segmentations(self, word: bytes) -> tuple[array.array[float], Begins, bytes]:
        """Returns the best segmentations of a word: their cumulative probabilities, the byte
        offsets of their ids, and all ids as int32.
        """
        found = self._model.nbest_encode(word, nbest_size=_BEST, out_type=int)
        if not self._whole.isdisjoint(found[0]):
            found = found[:1]
        ids = np.fromiter(itertools.chain.from_iterable(found), np.int32)
        begins = np.cumsum([0, *map(len, found)])
        scores = np.add.reduceat(self._scores[ids], begins[:-1])
        chances = np.cumsum(np.exp(self._alpha * (scores - scores.max())))
        chances /= chances[-1]
        return array.array("d", chances), array.array("l", 4 * begins), ids.tobytes()

    def draw(
        self,
        lines: Sequence[bytes],
        pairs: IntArray,
        keys: Keys,
        longest: Lengths | None,
        best_ids: Callable[[IntArray], TokenArray],
    ) -> tuple[TokenArray, IntArray]:
        """Draws segmentations of lines; see `SubwordSampler.source_ids`."""
        normalize = self._model.normalize
        words = [[word for word in normalize(line).split(_SPACE) if word] for line in lines]
        drawn = [b""] * len(lines)
        todo = list(range(len(lines)))
        for attempt in range(_DRAWS):
            self._draw_once(words, todo, hashed(keys, np.full_like(pairs, attempt)), drawn)
            todo = [] if longest is None else [i for i in todo if len(drawn[i]) > 4 * longest[i]]
            if not todo:
                break
        for i in todo:
            drawn[i] = best_ids(pairs[i : i + 1]).astype(np.int32).tobytes()
        lengths = np.fromiter(map(len, drawn), np.int64, len(drawn)) // 4
        return np.frombuffer(b"".join(drawn), np.int32), lengths

    def _draw_once(
        self, words: list[list[bytes]], todo: list[int], keys: Keys, drawn: list[bytes]
    ) -> None:
        """Writes the ids of the sentences `todo` into `drawn`: int32 with the end id last."""
        counts = [len(words[i]) for i in todo]
        places = np.concatenate([np.arange(0), *map(np.arange, counts)])
        numbers = hashed(np.repeat(keys[todo], counts), places) >> np.uint64(11)
        chance = iter((numbers * 2.0**-53).tolist())
        for i in todo:
            ids = []
            for word in words[i]:
                cumulative, begins, flat = self._segmentations(word)
                chosen = bisect.bisect_right(cumulative, next(chance))
                ids.append(flat[begins[chosen] : begins[chosen + 1]])
            drawn[i] = b"".join([*ids, self._end])


def _check(side: str, proto: Any) -> None:
    """Raises `InputError` for a model without segmentation probabilities."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type != UNIGRAM:
        kind = MODEL_TYPES.get(trainer.model_type, trainer.model_type)
        raise InputError(
            f"The {side} vocabulary is of type {kind}, which lacks probabilities for sampling.  "
            "Subword sampling needs a unigram vocabulary: remove training.subword_alpha, or "
            "prepare the data again."
        )
    if not (
        trainer.split_by_whitespace
        and not trainer.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    ):
        raise InputError(
            f"The {side} vocabulary does not mark spaces as SentencePiece does by default, so "
            "words cannot be found. Remove training.subword_alpha."
        )
