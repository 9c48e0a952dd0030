"""Terms in training pairs, so that a model learns to use the translations of a glossary.

The source has the wanted translation instead of a word or a phrase (Dinu et al., 2019, "replace").
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import regex

from keras_transformer.data.augmentation import Pair
from keras_transformer.extensions.augmentation import alignment
from keras_transformer.extensions.augmentation.alignment import Link
from keras_transformer.extensions.augmentation.symbols import Changes, Side, SymbolAugmentation
from keras_transformer.extensions.documents.glossary import annotated
from keras_transformer.extensions.documents.spans import LETTER, UNSPACED, Range, outside
from keras_transformer.text.symbols import TERM_SYMBOLS

_MOST_TERMS = 3
_MOST_WORDS = 3  # of a term, and of its translation
_REPLACED = 0.25  # share of the terms with another translation
_INVENTED = 0.15  # share of the terms with an invented translation
# Function words are rarely terms, and most of them are short.
_CONTENT = regex.compile(rf"{UNSPACED}|{LETTER}{{4}}")


class TermAugmentation(SymbolAugmentation):
    """Adds the translations of terms to training sources: an `Augmentation` of the preparation.

    Some terms get a word of the next pair as translation, in the source and in the target, and some
    get random letters. So the model learns to use translations that it would not choose.
    """

    kinds = ("terms",)
    symbols = TERM_SYMBOLS

    def _changes(
        self, kind: str, sides: Sequence[Side], links: Sequence[Link], following: Pair,
        random_: Random,
    ) -> list[Changes]:  # fmt: skip
        """Returns the changes of up to three terms and their translations."""
        others = [following[1][slice(*word)] for word in alignment.word_ranges(following[1])]
        terms = _terms(sides, links)
        changes, taken = list[Changes](), list[Range]()
        for ranges in random_.sample(terms, min(len(terms), random_.randint(1, _MOST_TERMS))):
            if outside(ranges[:1], sorted(taken)):
                translation = sides[1].text[slice(*ranges[1])]
                similar = [word for word in others if _are_similar(word, translation)]
                draw = random_.random()
                if similar and draw < _REPLACED:
                    translation = random_.choice(similar)
                elif others and draw > 1 - _INVENTED:
                    translation = _invented(translation, "".join(others), random_)
                taken.append(ranges[0])
                texts = annotated(translation), translation
                changes.append([(*r, text) for r, text in zip(ranges, texts, strict=True)])
        return changes


def _are_similar(word: str, translation: str) -> bool:
    """Returns whether a word may stand instead of a translation, such as a noun for a noun."""
    is_alike = word[0].isupper() == translation[0].isupper()
    return is_alike and bool(_CONTENT.match(word)) and " " not in translation


def _invented(translation: str, letters: str, random_: Random) -> str:
    """Returns random ones of some letters, in the case of a translation."""
    word = "".join(random_.choices(letters.lower(), k=random_.randint(4, 9)))
    return word.capitalize() if translation[0].isupper() else word


def _terms(sides: Sequence[Side], links: Sequence[Link]) -> list[list[Range]]:
    """Returns the ranges of phrases between content words, without spans, on both sides."""
    terms = []
    for phrase in alignment.phrases_of(links):
        words = [side.words[slice(*part)] for side, part in zip(sides, phrase, strict=True)]
        ranges = [(part[0][0], part[-1][1]) for part in words]
        if (
            max(map(len, words)) <= _MOST_WORDS
            and all(_CONTENT.match(sides[0].text, *words[0][i]) for i in (0, -1))
            and all(outside([r], side.spans) for r, side in zip(ranges, sides, strict=True))
        ):
            terms.append(ranges)
    return terms
