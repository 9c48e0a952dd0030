"""Careless writing: changes of pairs of texts, from which a model learns, or that test it.

Protected spans, such as {name} and URLs, do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeAlias

import regex

from keras_transformer.data.augmentation import Pair
from keras_transformer.extensions.documents import casing, spans
from keras_transformer.inference.tags import add_tag, split_tags
from keras_transformer.text.vocabulary import Vocabulary

Languages: TypeAlias = Sequence[str | None]  # "tr" for each side with a dotless i
Noise: TypeAlias = Callable[[Pair, Pair, Random], Pair]  # of a pair and the following one
Symbols: TypeAlias = Sequence[str] | None  # of a vocabulary, if they are known

_WORD = regex.compile(rf"{spans.LETTER}+(?:['’]{spans.LETTER}+)*")
_FINAL = regex.compile(r"\s*[\p{Sentence_Terminal}…]+$")
_LETTER = r"\p{L}\p{M}*"
_LONG_WORD = regex.compile(rf"(?=.{{4}})(?:{_LETTER}){{3,}}")  # four characters, also marks
_WORDS_PER_TYPO = 8
_CASES: dict[str, Callable[[str, str | None], str]] = {
    "upper": lambda word, language: casing.dotted(word, language).upper(),
    "title": lambda word, language: casing.dotted(word[:1], language).title() + word[1:],
    "lower": casing.to_lower,
}


def _words(text: str) -> list[spans.Range]:
    """Returns the words of a text that are outside of spans."""
    return spans.outside((match.span() for match in _WORD.finditer(text)), spans.find_spans(text))


def _with_words(text: str, words: Sequence[spans.Range], change: Callable[[str], str]) -> str:
    """Returns a text in which some words are changed."""
    return spans.spliced(text, [(*word, change(text[slice(*word)])) for word in words])


def _in_case(kind: str, text: str, language: str | None) -> str:
    """Returns a text whose words have the capitals of a kind."""
    return _with_words(text, _words(text), lambda word: _CASES[kind](word, language))


def typos(pair: Pair, following: Pair, random_: Random) -> Pair:
    """Makes a typing error in every eighth long word of the source, and in at least one."""
    source, target = pair
    words = [word for word in _words(source) if _LONG_WORD.fullmatch(source, *word)]
    count = min(len(words), max(1, len(words) // _WORDS_PER_TYPO))
    chosen = random_.sample(words, count)
    return _with_words(source, chosen, lambda word: _misspelled(word, random_)), target


def _misspelled(word: str, random_: Random) -> str:
    """Swaps two letters of a word, or drops or doubles one of them. Marks stay on their letters."""
    letters = regex.findall(_LETTER, word)
    i = random_.randrange(1, len(letters) - 1)
    first, second = letters[i : i + 2]
    errors = [second, first + first + second, second + first]
    error = random_.choice(errors[: 2 + (first != second)])
    return "".join([*letters[:i], error, *letters[i + 2 :]])


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


_NOISES: dict[str, Noise] = {noise.__name__: noise for noise in (typos, punctuation, spaces, merge)}


def _changed(
    kind: str, pair: Pair, following: Pair, symbols: Symbols, random_: Random, languages: Languages
) -> Pair | None:
    """Changes a pair without its tags, or returns None if its source stays as it is."""
    tag, source = split_tags(pair[0], symbols)
    other_tag, after = split_tags(following[0], symbols)
    new, target = source, pair[1]
    if kind not in _CASES:
        new, target = _NOISES[kind]((source, target), (after, following[1]), random_)
    elif not regex.search(r"\p{Lo}", source):  # all letters have a case
        new = _in_case(kind, source, languages[0])
        target = target if kind == "lower" else _in_case(kind, target, languages[1])
    is_kept = new == source or (kind == "merge" and tag != other_tag)  # another language
    return None if is_kept else (add_tag(new, tag), target)


def _languages(pairs: Iterable[Pair]) -> Languages:
    """Returns "tr" for each side of which half of the texts have the letter ı, and else None."""
    sides = zip(*pairs, strict=True)
    return ["tr" if 2 * sum("ı" in text for text in side) >= len(side) else None for side in sides]


class NoiseAugmentation:
    """Makes training pairs careless: an `Augmentation` of the preparation."""

    kinds = ("upper", "title", *_NOISES)
    # Training never has `lower`, so that a test set has noise that is new to every model.
    test_kinds = (*kinds, "lower")
    symbols = ()
    learn = staticmethod(_languages)

    def __init__(self, learned: Languages, vocabulary: Vocabulary) -> None:
        self._languages, self._known = learned, sorted(vocabulary.source_symbols)

    def __call__(self, kind: str, pair: Pair, following: Pair, random_: Random) -> Pair | None:
        """Returns the changed pair, or None if its source does not change."""
        return _changed(kind, pair, following, self._known, random_, self._languages)

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
            languages = _languages(pairs)
            changed = [
                _changed(kind, *both, symbols, Random(f"{kind} {i}"), languages) or both[0]
                for i, both in rows
            ]
            noisy = [source for source, _ in changed]
            texts.append([target for _, target in changed])
        return noisy, texts
