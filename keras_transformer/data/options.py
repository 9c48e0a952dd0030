"""The options of a preparation, and their checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, get_args

from keras_transformer.errors import InputError, require
from keras_transformer.text.vocabulary import (
    BYTE_PIECES,
    MAX_LINES,
    SPECIAL_PIECES,
    ModelType,
    Normalization,
    learn_vocabulary,
    sample_lines,
)

OnBadUtf8 = Literal["fail", "replace", "drop"]

# Options that are ignored if a vocabulary is given. Missing symbols are appended to it.
LEARNING_OPTIONS = (
    "vocab_size", "model_type", "byte_fallback", "character_coverage", "normalization",
    "vocabulary_lines",
)  # fmt: skip
_CHOICES = {"model_type": ModelType, "normalization": Normalization, "on_bad_utf8": OnBadUtf8}
# The smallest and the largest value of each number.
_RANGES = {
    "vocab_size": (5, 1_000_000),  # four special tokens, and one of text
    "character_coverage": (0.98, 1),
    "vocabulary_lines": (1, math.inf),
    "max_tokens": (2, math.inf),
    "valid_pairs": (1, math.inf),
    "max_bytes": (1, math.inf),
    "max_length_ratio": (1, math.inf),
}


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """Options of a preparation: its vocabulary, and the rules that drop or repair pairs.

    If a vocabulary is given, the options for learning one are ignored. A vocabulary from a
    directory gets the symbols that it lacks, and must be separate if `separate_vocabularies` is
    True.

    Attributes:
        vocab_size, model_type, byte_fallback, character_coverage, normalization, symbols: see
            `learn_vocabulary`.
        separate_vocabularies: learns a vocabulary for each language, instead of a joint one.
        vocabulary_lines: largest number of lines that a vocabulary is learned from.
        max_tokens: drops pairs if a side has more tokens, including the end token.
        valid_pairs: number of pairs to hold out of the training corpora if there are no validation
            corpora. None for 2 %, but at least 1 and at most 1000.
        seed: seed of the held-out pairs, and of the lines that a vocabulary is learned from.
        max_bytes: drops pairs with a longer side.
        max_length_ratio: drops pairs with a side of more than this number of times the bytes of the
            other, which counts as at least 20. None for no limit.
        drop_identical: drops pairs with equal sides.
        drop_repetitive: drops pairs if a side repeats a phrase of two to eight words three times in
            a row (or one word six times), as bad machine translations do. Words are separated by
            spaces.
        drop_duplicates: drops all but the first of equal pairs.
        check_languages: codes (ISO 639) of the source and target language, as in "pt-BR". Drops
            pairs with a side in another language, as detected by a language identifier. None for no
            check.
        on_bad_utf8: "fail" to stop at invalid UTF-8, "replace" to replace it by U+FFFD, or "drop"
            to drop the pair.
        source_tag: a piece at the start of every source sentence, such as "<2de>", which selects
            the target language of a multilingual model (Johnson et al., 2017). None for no tag.
    """

    vocab_size: int = 8000
    model_type: ModelType = "unigram"
    byte_fallback: bool = False
    separate_vocabularies: bool = False
    character_coverage: float = 1.0
    normalization: Normalization = "nfkc_numbers"
    vocabulary_lines: int = MAX_LINES
    symbols: tuple[str, ...] | None = None
    max_tokens: int = 256
    valid_pairs: int | None = None
    seed: int = 1
    max_bytes: int = 16_384
    max_length_ratio: float | None = 9.0
    drop_identical: bool = False
    drop_repetitive: bool = False
    drop_duplicates: bool = False
    check_languages: tuple[str, str] | None = None
    on_bad_utf8: OnBadUtf8 = "fail"
    source_tag: str | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not (value is None or (isinstance(value, int | float) and least <= value <= most)):
                limit = "" if most == math.inf else f" and at most {most:,}"
                raise InputError(f"{name} is {value}, but it must be at least {least}{limit}.")
        for name, choices in _CHOICES.items():
            value, known = getattr(self, name), get_args(choices)
            require(value in known, f"{name} is {value!r}. Choose one of {', '.join(known)}.")
        languages = ("", "") if self.check_languages is None else self.check_languages
        message = f"check_languages is {','.join(languages)}. Give two languages, as in en,de."
        require(len(languages) == 2, message)
        reserved = {*SPECIAL_PIECES, *(BYTE_PIECES if self.byte_fallback else ())}
        for symbol in self.all_symbols():
            if not symbol or any(map(str.isspace, symbol)) or symbol in reserved:
                raise InputError(
                    f"The symbol {symbol!r} is empty, contains spaces, or is already a token of "
                    "every vocabulary. Use a form such as <2de>."
                )

    def all_symbols(self) -> tuple[str, ...]:
        """The symbols, including the tag."""
        tags = [] if self.source_tag is None else [self.source_tag]
        return tuple(dict.fromkeys([*(self.symbols or ()), *tags]))

    def learn(self, lines: Iterable[bytes]) -> bytes:
        """Learns a SentencePiece model from lines with these options, and returns it."""
        return learn_vocabulary(
            sample_lines(lines, self.vocabulary_lines, self.seed),
            self.vocab_size,
            model_type=self.model_type,
            byte_fallback=self.byte_fallback,
            character_coverage=self.character_coverage,
            normalization=self.normalization,
            symbols=self.all_symbols(),
        )
