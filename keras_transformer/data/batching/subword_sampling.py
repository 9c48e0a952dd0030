"""Subword regularization (Kudo 2018): segmentations drawn from a unigram model.

Each word of a sentence takes one of its best segmentations, with probability
P(segmentation)^alpha among them (the paper's section 3.3). No piece goes beyond a word,
so their product is a distribution over segmentations of the sentence, far more than the
best of the sentence as a whole would be.

Which one is drawn follows from a key alone, in any process. That is why the library only
lists the segmentations: its own sampling is seeded with a salt that each process draws
for itself.
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

from keras_transformer.data.batching.token_pairs import IntArray, Lengths, TokenArray, TokenPairs
from keras_transformer.errors import InputError
from keras_transformer.text.model_proto import MODEL_TYPES, UNIGRAM, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import Vocabulary

_BEST = 32  # segmentations of a word; one of up to 6 letters has no more
_WORDS_KEPT = 2**16
_SPACE = "\u2581".encode()  # begins each word

_DRAWS = 4  # of what finds no room in its batch
_PAIRS_TO_LOOK_AT = 2000
_LIKE = 25  # so many of these, in either direction, are taken to be of like length

Begins: TypeAlias = "array.array[int]"
Keys: TypeAlias = npt.NDArray[np.uint64]


def key_of(*numbers: int) -> Keys:
    """Returns uint64[1], a key made of numbers of at least 0."""
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64).astype(np.uint64)


def hashed(key: Keys, numbers: IntArray) -> Keys:
    """Returns uint64 pseudo-random values of the numbers under the key, broadcast together."""
    return _mixed(key ^ _mixed(numbers.astype(np.uint64)))


def _mixed(values: Keys) -> Keys:
    for odd in (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)):
        values = values * odd
        values = values ^ (values >> np.uint64(32))
    return values


class Room(NamedTuple):
    """The lengths that batches have to have room for, and what they will hold.

    `source` and `target` are int[pairs]; `tokens` is how many an epoch has of both
    sides: where segmentations are drawn, about.
    """

    source: Lengths
    target: Lengths
    tokens: int


class SubwordSampler:
    """Draws the segmentations of sentences."""

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        """Makes a sampler.

        Args:
            vocabulary: unigram models.
            alpha: above 0; the smaller, the more alike are the segmentations' chances.
                Kudo has 0.1 to 0.5.

        Raises:
            InputError: for a vocabulary that is not unigram, or an alpha that is no number above 0.
        """
        if not 0 < alpha < math.inf:
            raise InputError(f"the alpha of subword sampling is {alpha}; expected a number above 0")
        end = np.int32(vocabulary.end_id).tobytes()
        self._source = _Side("source", vocabulary.source_model, end, alpha)
        self._target = _Side("target", vocabulary.target_model, end, alpha)

    def source_ids(
        self, store: TokenPairs, pairs: IntArray, keys: Keys, longest: Lengths | None = None
    ) -> tuple[TokenArray, IntArray]:
        """Draws source segmentations.

        Args:
            store: holds the pairs, in the vocabulary's best segmentation.
            pairs: int64[N], which ones.
            keys: uint64[N], what decides of each.
            longest: int[N], tokens that each sentence may have, its end id counted; one
                that is not drawn so short in a few attempts keeps its best segmentation.

        Returns:
            int32[tokens], the ids, sentence after sentence, and int64[N], their lengths.
        """
        lines = store.source_lines(pairs)
        return self._source.draw(lines, pairs, keys, longest, store.source_ids)

    def target_ids(
        self, store: TokenPairs, pairs: IntArray, keys: Keys, longest: Lengths | None = None
    ) -> tuple[TokenArray, IntArray]:
        """Draws target segmentations, as `source_ids` does."""
        lines = store.target_lines(pairs)
        return self._target.draw(lines, pairs, ~keys, longest, store.target_ids)

    def room(self, store: TokenPairs, most: int) -> Room:
        """Returns the room that a corpus needs, judged by some of its pairs.

        Each pair gets the room that drawn segmentations of a pair of about its length need,
        so that an epoch has as many rows for long and for short sentences as are drawn.

        Args:
            store: the corpus.
            most: target tokens that a sentence may have, unless its best segmentation
                has more.
        """
        looked_at = np.unique(np.linspace(0, len(store) - 1, _PAIRS_TO_LOOK_AT).astype(np.int64))
        keys = hashed(key_of(0), looked_at)
        best = store.source_lengths + store.target_lengths
        looked_at = looked_at[np.argsort(best[looked_at], kind="stable")]
        places = np.searchsorted(best[looked_at], best)
        some = hashed(key_of(1), np.arange(len(store))) % np.uint64(2 * _LIKE + 1)
        places = np.clip(places + some.astype(np.int64) - _LIKE, 0, len(looked_at) - 1)
        sides = []
        for lengths, draw in (
            (store.source_lengths, self.source_ids),
            (store.target_lengths, self.target_ids),
        ):
            growth = draw(store, looked_at, keys)[1] / lengths[looked_at]
            sides.append(np.rint(lengths * np.maximum(growth, 1.0)[places]).astype(np.int32))
        source, target = sides
        target = np.maximum(np.minimum(target, most), store.target_lengths)
        return Room(source, target, int(source.sum(dtype=np.int64) + target.sum(dtype=np.int64)))


class _Side:
    """The segmentations of one language."""

    def __init__(self, side: str, model: bytes, end: bytes, alpha: float) -> None:
        proto = ModelProto.FromString(model)
        _check(side, proto)
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._end = end
        self._alpha = alpha
        self._scores = np.array([piece.score for piece in proto.pieces])
        # Tags of direction or language, which have a meaning of their own.
        self._whole = {i for i, p in enumerate(proto.pieces) if p.type == USER_DEFINED}
        self._segmentations = functools.lru_cache(_WORDS_KEPT)(self._list_segmentations)

    def _list_segmentations(self, word: bytes) -> tuple[array.array[float], Begins, bytes]:
        """Returns of a word's best segmentations their cumulative probabilities, where the ids
        of each begin, in bytes, and all ids, int32.
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
        """Puts the ids of the sentences `todo`, int32, end id last, into `drawn`."""
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
    """Raises `InputError` for a model whose words have no segmentations of their own."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type != UNIGRAM:
        kind = MODEL_TYPES.get(trainer.model_type, trainer.model_type)
        raise InputError(
            f"the {side} vocabulary is of type {kind}, which gives segmentations no probabilities "
            "to draw them by; expected unigram, or no training.subword_alpha"
        )
    if not (
        trainer.split_by_whitespace
        and not trainer.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    ):
        raise InputError(
            f"the {side} vocabulary does not have SentencePiece's own treatment of white space, "
            "by which words are told apart; expected that, or no training.subword_alpha"
        )
