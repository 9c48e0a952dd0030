"""Sentences in the wrong language, told by the language identifier `lingua`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras_transformer.errors import InputError, needs_extra

# What a side has to be its own language's by: of English and German captions 1 in 1,000 has less,
# of those of the other language 97 to 99.9 in 100.
_LEAST = 0.01
_SHORT = 20  # bytes: "Wait!" and "Hello!" are words in many languages


class LanguageCheck:
    """Tells of pairs whether a side is in another language than it should be.

    A side is in another one where it has at least 20 bytes and the identifier gives its own
    language less than 1 %.
    """

    def __init__(self, source: str, target: str) -> None:
        """Makes the identifier, for all the languages that it knows.

        Args:
            source, target: codes of ISO 639-1, as "de".

        Raises:
            InputError: where the package is missing, or for a language that it does not know.
        """
        with needs_extra("languages", "checking languages"):
            import lingua
        known = {
            language.iso_code_639_1.name.lower(): language for language in lingua.Language.all()
        }
        for code in (source, target):
            if code not in known:
                raise InputError(
                    f"the language {code!r} is not known to lingua; expected one of "
                    f"{', '.join(sorted(known))}"
                )
        self._sides = (known[source], known[target])
        # The small models: the large ones take a gigabyte and four times as long.
        builder = lingua.LanguageDetectorBuilder.from_all_languages()
        self._detector: Any = builder.with_low_accuracy_mode().build()

    @classmethod
    @functools.cache
    def of(cls, languages: tuple[str, str]) -> LanguageCheck:
        """Returns the identifier for these languages, which is made once in a process."""
        return cls(*languages)

    def __call__(self, sources: Sequence[bytes], targets: Sequence[bytes]) -> list[bool]:
        """Returns of each pair whether neither side is in another language."""
        fitting = (
            [self._fits(line, language) for line in lines]
            for lines, language in zip((sources, targets), self._sides, strict=True)
        )
        return [source and target for source, target in zip(*fitting, strict=True)]

    def _fits(self, line: bytes, language: Any) -> bool:
        if len(line) < _SHORT:
            return True
        text = line.decode()
        if self._detector.compute_language_confidence(text, language) >= _LEAST:
            return True
        return self._detector.detect_language_of(text) is None  # no letters
