"""Words that translate each other, learned from training pairs with IBM model 1."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import regex

from keras_transformer.extensions.alignment import ibm_model_1
from keras_transformer.extensions.documents.spans import LETTER, UNSPACED, Range, outside

# For each source word, its translations with a score from 0 to 1.
Lexicon: TypeAlias = Mapping[str, Mapping[str, float]]
Link: TypeAlias = tuple[int, int]  # a source word and a target word that translate each other
Phrase: TypeAlias = tuple[Range, Range]  # source words, and the target words that translate them

_MAX_LINKS = 3_000_000  # learning from them takes seconds
_LEAST_SCORE = 0.01
_MOST_WORDS = 4  # of a phrase, on both sides

_OPENING, _CLOSING = r"\s(\[\"'“”„‚‘«»¿¡", r".,;:!?…)\]\"'“”‘’»«।،؛؟。、，！？；："
# Words between spaces and punctuation, not the parts of addresses or markup.
_WORD = regex.compile(
    rf"{UNSPACED}|(?<=^|[{_OPENING}]|{UNSPACED}){LETTER}+(?:['’.,:/-]{LETTER}+)*"
    rf"(?=[{_CLOSING}]*(?:\s|{UNSPACED}|$))"
)


def word_ranges(text: str, spans: Sequence[Range] = ()) -> list[Range]:
    """Returns the words of a text that are outside of spans."""
    return outside((match.span() for match in _WORD.finditer(text)), spans)


def learn_lexicon(pairs: Sequence[tuple[str, str]]) -> Lexicon:
    """Learns which words translate each other from pairs of texts.

    The score of two words is the product of both translation probabilities.
    """
    ids = {"": 0}  # id 0 begins each sentence, and explains words without a translation
    sides = []
    for side in (0, 1):
        rows = [
            [0, *(ids.setdefault(word, len(ids)) for word in _WORD.findall(pair[side].lower()))]
            for pair in pairs
        ]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
        sides.append(ibm_model_1.Sentences(flat, lengths))
    source, target = sides
    is_word = np.arange(len(ids)) > 0
    title = "learning word alignments"
    found = ibm_model_1.mutual_probabilities(source, target, is_word, _MAX_LINKS, title)
    words = [*ids]
    lexicon: dict[str, dict[str, float]] = {}
    for word, translation, score in zip(*(column.tolist() for column in found), strict=True):
        if score >= _LEAST_SCORE:
            lexicon.setdefault(words[word], {})[words[translation]] = round(score, 3)
    return lexicon


def aligned_words(source: Sequence[str], target: Sequence[str], lexicon: Lexicon) -> list[Link]:
    """Returns the indices of the words that are each other's best translation, in source order.

    Of equal words, those at similar positions in their sentences translate each other.
    """
    positions: dict[str, list[int]] = {}
    for j, word in enumerate(target):
        positions.setdefault(word.lower(), []).append(j)
    scores = np.zeros((len(source) + 1, len(target) + 1))  # one more, so that none is empty
    for i, word in enumerate(source):
        translations = lexicon.get(word.lower(), {word.lower(): 1.0})  # names are copied
        for other in translations.keys() & positions.keys():
            for j in positions[other]:
                distance = abs(i / len(source) - j / len(target))
                scores[i, j] = translations[other] * np.exp(-distance / ibm_model_1.SPREAD)
    best = scores.argmax(axis=1).tolist()
    of_target = scores.argmax(axis=0)
    return [(i, j) for i, j in enumerate(best) if scores[i, j] and of_target[j] == i]


def phrases_of(links: Sequence[Link]) -> list[Phrase]:
    """Returns the phrases whose words have all their translations in the phrase."""
    linked = dict(links)
    phrases = []
    for first in linked:
        for last in range(first + 1, first + _MOST_WORDS + 1):
            inside = [linked[i] for i in range(first, last) if i in linked]
            low, high = min(inside), max(inside) + 1
            closed = all(first <= i < last for i, j in links if low <= j < high)
            if last - 1 in linked and closed and high - low <= _MOST_WORDS:
                phrases.append(((first, last), (low, high)))
    return phrases
