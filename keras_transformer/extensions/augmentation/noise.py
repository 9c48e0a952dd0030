"""Careless writing: changes of pairs of texts, from which a model learns, or that test it.

Protected spans, such as {name} and URLs, do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

import regex

from keras_transformer.data.augmentation import Pair
from keras_transformer.extensions.documents import spans
from keras_transformer.inference.tags import add_tag, split_tags
from keras_transformer.text.vocabulary import Vocabulary

Noise: TypeAlias = Callable[[Pair, Pair, Random], Pair]  # of a pair and the following one
Symbols: TypeAlias = Sequence[str] | None  # of a vocabulary, if they are known

_WORD = regex.compile(rf"{spans.LETTER}+(?:['’]{spans.LETTER}+)*")
_FINAL = regex.compile(r"\s*[\p{Sentence_Terminal}…]+$")
_SHORTEST_WITH_TYPO = 4  # letters
_WORDS_PER_TYPO = 8


def _words(text: str) -> list[spans.Range]:
    """Returns the words of a text that are outside of spans."""
    return spans.outside((match.span() for match in _WORD.finditer(text)), spans.find_spans(text))


def _with_words(text: str, words: Sequence[spans.Range], change: Callable[[str], str]) -> str:
    """Returns a text in which some words are changed."""
    return spans.spliced(text, [(*word, change(text[slice(*word)])) for word in words])


def upper(pair: Pair, following: Pair, random_: Random) -> Pair:
    """WRITES BOTH TEXTS IN CAPITALS."""
    source, target = (_with_words(text, _words(text), str.upper) for text in pair)
    return source, target


def title(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Begins Each Word Of Both Texts With A Capital."""
    source, target = (_with_words(text, _words(text), _capitalized) for text in pair)
    return source, target


def _capitalized(word: str) -> str:
    return word[:1].upper() + word[1:]


def typos(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Makes a typing error in every eighth long word of the source, and in at least one."""
    source, target = pair
    words = [
        word
        for word in _words(source)
        if source[slice(*word)].isalpha() and word[1] - word[0] >= _SHORTEST_WITH_TYPO
    ]
    count = min(len(words), max(1, len(words) // _WORDS_PER_TYPO))
    chosen = random_.sample(words, count)
    return _with_words(source, chosen, lambda word: _misspelled(word, random_)), target


def _misspelled(word: str, random_: Random) -> str:
    """Swaps two letters of a word, or drops or doubles one of them."""
    i = random_.randrange(1, len(word) - 1)
    first, second = word[i], word[i + 1]
    errors = [second, first + first + second, second + first]
    return word[:i] + random_.choice(errors[: 2 + (first != second)]) + word[i + 2 :]


def punctuation(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Removes the full stop, or the mark instead of it, from the end of both texts."""
    return _FINAL.sub("", pair[0]), _FINAL.sub("", pair[1])


def spaces(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Doubles the spaces of the source."""
    return pair[0].replace(" ", "  "), pair[1]


def merge(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Appends the following pair, as in a line with two sentences."""
    source, target = (
        text + ("" if regex.match(spans.UNSPACED, other) else " ") + other
        for text, other in zip(pair, following, strict=True)
    )
    return source, target


def lower(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Writes the source without capitals."""
    return _with_words(pair[0], _words(pair[0]), str.lower), pair[1]


_KINDS: dict[str, Noise] = {
    noise.__name__: noise for noise in (upper, title, typos, punctuation, spaces, merge)
}
# Training never has `lower`, so that a test set has noise that is new to every model.
_TEST_KINDS = {**_KINDS, "lower": lower}


def _changed(kind: str, pair: Pair, following: Pair, symbols: Symbols, random_: Random) -> Pair:
    """Changes a pair without its tags. Pairs of different languages are not merged."""
    tag, source = split_tags(pair[0], symbols)
    other_tag, after = split_tags(following[0], symbols)
    if kind == "merge" and tag != other_tag:
        return pair
    source, target = _TEST_KINDS[kind]((source, pair[1]), (after, following[1]), random_)
    return add_tag(source, tag), target


class NoiseAugmentation:
    """Makes training pairs careless: an `Augmentation` of the preparation."""

    kinds, test_kinds, symbols = _KINDS, _TEST_KINDS, ()

    def __init__(self, learned: None, vocabulary: Vocabulary) -> None:
        self._known = sorted(vocabulary.source_symbols)

    @staticmethod
    def learn(pairs: Sequence[Pair]) -> None:
        """Returns None: noise is not learned."""

    def __call__(self, kind: str, pair: Pair, following: Pair, random_: Random) -> Pair | None:
        """Returns the changed pair, or None if the change has no effect."""
        changed = _changed(kind, pair, following, self._known, random_)
        return None if changed == pair else changed

    @staticmethod
    def test_set(
        kind: str, sources: Sequence[str], references: Sequence[Sequence[str]], symbols: Symbols
    ) -> tuple[list[str], list[list[str]]]:
        """Returns the sources and references of a test set with one kind of noise.

        The change of a line depends only on its number. Tags, given as symbols, stay in front.
        """
        noisy, texts = list[str](), list[list[str]]()
        for reference in references:
            pairs = [*zip(sources, reference, strict=True)]
            rows = enumerate(zip(pairs, [*pairs[1:], *pairs[:1]], strict=True))
            changed = [_changed(kind, *both, symbols, Random(f"{kind} {i}")) for i, both in rows]
            noisy = [source for source, _ in changed]
            texts.append([target for _, target in changed])
        return noisy, texts
