"""Finds sentences in the wrong language, with the language identifier `lingua`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras_transformer.errors import InputError, needs_extra

# A side is in a third language if the identifier is sure of it: above the first number, with less
# than the second one for the expected language.
_SURE, _UNLIKELY = 0.9, 0.003
# A side is in the language of the other side if this is at least so likely, and so many times as
# likely as the expected language.
_LEAST, _TIMES = 0.05, 30
_SHORT = 20  # bytes: "Wait!" and "Hello!" are words in many languages


class LanguageCheck:
    """Detects pairs with a side in the wrong language.

    Names and numbers make single sentences unclear. So the identifier must be sure of another
    language, or prefer the language of the other side. Sides of less than 20 bytes count as right.

    Of three samples of 2,000 English and German pairs of Tatoeba, this drops 3 to 6 pairs. It finds
    93 % of pairs with exchanged sides, 73 % with two English sides, 90 % with two German sides, and
    97 % with French captions for German.

    Example:
    >>> check = LanguageCheck("en", "de")
    >>> line = b"Two young men are playing football in the park behind the house."
    >>> check([line], [line])
    [False]
    """

    def __init__(self, source: str, target: str) -> None:
        """Creates an identifier of all languages that `lingua` knows.

        Args:
            source: ISO 639-1 code of the expected source language, such as "de".
            target: the same for the target.

        Raises:
            InputError: if the package is missing, or does not know a language.
        """
        with needs_extra("languages", "checking languages"):
            import lingua
        known = {
            language.iso_code_639_1.name.lower(): language for language in lingua.Language.all()
        }
        for code in (source, target):
            if code not in known:
                raise InputError(
                    f"lingua does not know the language {code!r}. Choose one of "
                    f"{', '.join(sorted(known))}."
                )
        self._sides = (known[source], known[target])
        # The small models. The large ones need a gigabyte and take four times as long.
        builder = lingua.LanguageDetectorBuilder.from_all_languages()
        self._detector: Any = builder.with_low_accuracy_mode().build()

    @classmethod
    @functools.cache
    def of(cls, languages: tuple[str, str]) -> LanguageCheck:
        """Returns the identifier for two languages. A process creates it only once."""
        return cls(*languages)

    def __call__(self, sources: Sequence[bytes], targets: Sequence[bytes]) -> list[bool]:
        """Returns True for each pair whose sides are in the expected languages."""
        source, target = self._sides
        return [
            self._fits(one, source, target) and self._fits(other, target, source)
            for one, other in zip(sources, targets, strict=True)
        ]

    def _fits(self, line: bytes, expected: Any, other: Any) -> bool:
        if len(line) < _SHORT:
            return True
        found = self._detector.compute_language_confidence_values(line.decode())
        probabilities = {each.language: each.value for each in found}
        own = probabilities.get(expected, 0.0)
        is_third = max(probabilities.values(), default=0.0) > _SURE and own < _UNLIKELY
        of_other = probabilities.get(other, 0.0)
        return not (is_third or (of_other >= _LEAST and of_other >= _TIMES * own))
