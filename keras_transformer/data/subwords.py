"""Subword regularization (Kudo, 2018): segmentations drawn from a unigram model.

Each word of a sentence takes one of its best segmentations, with a probability proportional to
P(segmentation)^alpha (section 3.3). Pieces do not cross word boundaries, so the product is a
distribution over many more segmentations of the sentence than the n best of the whole sentence.

The choice depends only on a key, so it is the same in every process. The library therefore only
lists the segmentations. Its sampling is seeded differently in each process. The shapes of batches
are planned before, so each sentence then gets a row that is long enough.
"""

from __future__ import annotations

import array
import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import sentencepiece

from keras_transformer.data.token_store import IntArray, StoredSide, TokenStore
from keras_transformer.errors import InputError, require
from keras_transformer.text.model_proto import MODEL_TYPES, UNIGRAM, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import Vocabulary

TokenArray: TypeAlias = npt.NDArray[np.int32]
Lengths: TypeAlias = npt.NDArray[np.integer[Any]]

_BEST = 32  # segmentations of a word that are considered; a word of 6 letters has no more
_WORDS_KEPT = 2**16
_SPACE = "\u2581".encode()  # this character begins each word

_DRAWS = 4  # draws for pairs that do not fit into their batch
_SAMPLED_PAIRS = 2000
_SIMILAR_PAIRS = 25  # pairs in either direction that count as similar in length

Begins: TypeAlias = "array.array[int]"
Keys: TypeAlias = npt.NDArray[np.uint64]
Samplers: TypeAlias = tuple["SubwordSampler", "SubwordSampler"]


def key_of(*numbers: int) -> Keys:
    """Returns a key, uint64[1], that is a function of the numbers, each at least 0."""
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64).astype(np.uint64)


def hashed(key: Keys, numbers: IntArray) -> Keys:
    """Hashes numbers with a key to pseudo-random uint64 values. Both arguments are broadcast."""
    return _mixed(key ^ _mixed(numbers.astype(np.uint64)))


def _mixed(values: Keys) -> Keys:
    for odd in (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)):
        values = values * odd
        values = values ^ (values >> np.uint64(32))
    return values


class SubwordSampler:
    """Draws the segmentations of sentences of one side of a corpus."""

    def __init__(self, side: str, model: bytes, alpha: float) -> None:
        """Creates a sampler for the "source" or the "target" from its SentencePiece model."""
        message = f"The alpha of subword sampling is {alpha}, but it must be above 0."
        require(0 < alpha < math.inf, message)
        proto = ModelProto.FromString(model)
        _check(side, proto)
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._end = np.int32(self._model.eos_id()).tobytes()
        self._alpha = alpha
        # Both sides of a pair have the same key, but their choices are independent.
        self._salt = np.uint64(0 if side == "source" else 2**64 - 1)
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
        self, stored: StoredSide, pairs: IntArray, keys: Keys, longest: Lengths | None = None
    ) -> list[TokenArray]:
        """Returns the ids of pairs, int64[N], drawn with a random key for each, uint64[N].

        A sentence keeps its best segmentation if a few samples are all longer than `longest`,
        int[N], including the end id.
        """
        keys = keys ^ self._salt
        lines = stored.lines(pairs)
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
            drawn[i] = stored.ids(pairs[i : i + 1]).tobytes()
        return [np.frombuffer(ids, np.int32) for ids in drawn]

    def _draw_once(
        self, words: list[list[bytes]], todo: list[int], keys: Keys, drawn: list[bytes]
    ) -> None:
        """Writes the ids of the sentences `todo` into `drawn`: int32 with the end id last."""
        counts = [len(words[i]) for i in todo]
        positions = np.concatenate([np.arange(0), *map(np.arange, counts)])
        numbers = hashed(np.repeat(keys[todo], counts), positions) >> np.uint64(11)
        chance = iter((numbers * 2.0**-53).tolist())
        for i in todo:
            ids = []
            for word in words[i]:
                cumulative, begins, flat = self._segmentations(word)
                chosen = bisect.bisect_right(cumulative, next(chance))
                ids.append(flat[begins[chosen] : begins[chosen + 1]])
            drawn[i] = b"".join([*ids, self._end])


def _check(side: str, proto: Any) -> None:
    """Raises `InputError` for a model whose words cannot be found, or have no probabilities."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if not (
        trainer.model_type == UNIGRAM
        and trainer.split_by_whitespace
        and not trainer.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    ):
        kind = MODEL_TYPES.get(trainer.model_type)
        raise InputError(
            f"Subwords of the {side} vocabulary (type {kind}) cannot be sampled. This needs a "
            "unigram vocabulary that marks spaces as SentencePiece does by default: remove "
            "training.subword_alpha, or prepare the data again."
        )


def samplers_of(vocabulary: Vocabulary, alpha: float) -> Samplers:
    """Returns the samplers of the source and the target."""
    require(
        vocabulary.languages is None,
        "Subwords cannot be sampled (training.subword_alpha) with a vocabulary whose texts begin "
        "with languages. Remove this setting.",
    )
    return (
        SubwordSampler("source", vocabulary.source_model, alpha),
        SubwordSampler("target", vocabulary.target_model, alpha),
    )


def planned_lengths(samplers: Samplers, store: TokenStore, most: int) -> tuple[Lengths, Lengths]:
    """Returns the source and target lengths to plan batches for, estimated from some pairs.

    The segmentations of some pairs are sampled. Each pair is planned with the relative growth of a
    sampled pair of similar length, so that there are enough rows for long sentences.
    """
    sampled = np.unique(np.linspace(0, len(store) - 1, _SAMPLED_PAIRS).astype(np.int64))
    keys = hashed(key_of(0), sampled)
    best = store.source.lengths + store.target.lengths
    sampled = sampled[np.argsort(best[sampled], kind="stable")]
    similar = np.searchsorted(best[sampled], best)
    some = hashed(key_of(1), np.arange(len(store))) % np.uint64(2 * _SIMILAR_PAIRS + 1)
    similar = np.clip(similar + some.astype(np.int64) - _SIMILAR_PAIRS, 0, len(sampled) - 1)
    planned = []
    for sampler, side in zip(samplers, store.sides, strict=True):
        drawn = sampler.draw(side, sampled, keys)
        growth = np.array([len(ids) for ids in drawn]) / side.lengths[sampled]
        planned.append(np.rint(side.lengths * np.maximum(growth, 1.0)[similar]).astype(np.int32))
    source, target = planned
    return source, np.maximum(np.minimum(target, most), store.target.lengths)


def draw(
    samplers: Samplers, store: TokenStore, pairs: IntArray, keys: Keys, bounds: IntArray
) -> tuple[IntArray, list[list[TokenArray]]]:
    """Draws segmentations of N pairs, and assigns each pair to one of N rows that is long enough.

    `bounds`, int64[N, 2], are the S and T of each row. The best segmentation of pair i fits into
    row i. Returns the row of each pair, int64[N], and for each side the ids of each pair. A pair
    that is too long for every free row is drawn again, shorter.
    """
    sides = list(zip(samplers, store.sides, strict=True))
    drawn = [sampler.draw(side, pairs, keys) for sampler, side in sides]
    lengths = np.array([[len(ids) for ids in side] for side in drawn]).T
    best = np.stack([side.lengths[pairs] for side in store.sides], axis=1)
    row_of, too_long = regroup(bounds, lengths, best.astype(np.int64))
    for i, (sampler, side) in enumerate(sides):
        longest = bounds[row_of, i]
        again = np.flatnonzero(too_long & (lengths[:, i] > longest))
        if len(again):
            shorter = sampler.draw(side, pairs[again], keys[again], longest[again])
            for pair, ids in zip(again.tolist(), shorter, strict=True):
                drawn[i][pair] = ids
    return row_of, drawn


def regroup(
    bounds: IntArray, lengths: IntArray, least: IntArray
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Assigns each of N pairs to one of N rows: int64[N], and bool[N], True if it is too long.

    The smallest rows take the longest pairs that they hold, then the next larger rows. A pair
    without a row takes the largest free row that holds it with a shorter segmentation. If there is
    none, it takes the row with its number, and the pair in that row moves in the same way.

    All arguments are int64[N, 2], for source and target: `bounds` the sizes of each row, `lengths`
    those of each pair, and `least` those of its shortest segmentation. Pair i fits into row i with
    the shortest one.
    """
    pairs = np.argsort(-lengths.sum(axis=1), kind="stable")  # the longest pairs come first
    shapes, shape_of_row = np.unique(bounds, axis=0, return_inverse=True)
    shape_of_row = shape_of_row.reshape(-1)
    row_of = np.full(len(bounds), -1)
    left_over = []
    for i in np.argsort(shapes.sum(axis=1), kind="stable").tolist():
        rows = np.flatnonzero(shape_of_row == i)
        chosen = np.flatnonzero((lengths[pairs] <= shapes[i]).all(axis=1))[: len(rows)]
        row_of[pairs[chosen]] = rows[: len(chosen)]
        pairs = np.delete(pairs, chosen)
        left_over += rows[len(chosen) :].tolist()
    if len(pairs):
        _insert_pairs(pairs.tolist(), left_over, bounds, least, row_of)
    return row_of, (lengths > bounds[row_of]).any(axis=1)


def _insert_pairs(
    pairs: list[int], rows: list[int], bounds: IntArray, least: IntArray, row_of: IntArray
) -> None:
    """Puts `pairs` into `rows`, a list of the same size with the largest row last. Moves other
    pairs if necessary.
    """
    pair_in = {row: pair for pair, row in enumerate(row_of.tolist()) if row >= 0}
    for pair in pairs:
        # The loop ends, because no pair leaves the row with its own number.
        while True:
            fits = np.flatnonzero((least[pair] <= bounds[rows]).all(axis=1))
            row = rows.pop(int(fits[-1])) if len(fits) else pair
            sent_away = pair_in.pop(row, None)
            row_of[pair], pair_in[row] = row, pair
            if sent_away is None:
                break
            pair = sent_away
        if row in rows:
            rows.remove(row)


def joined(sentences: Sequence[TokenArray]) -> tuple[TokenArray, Lengths]:
    """Returns the ids of all sentences, and the length of each."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.concatenate([np.zeros(0, np.int32), *sentences]), lengths
