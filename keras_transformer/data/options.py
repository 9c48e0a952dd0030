"""The options of a preparation, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, get_type_hints

from keras_transformer.config.schema import Limits, PositiveInt, check_scalar
from keras_transformer.errors import InputError, require
from keras_transformer.text.vocabulary import (
    BYTE_PIECES,
    MAX_LINES,
    SPECIAL_PIECES,
    ModelType,
    Normalization,
    learn_vocabulary,
)

OnBadUtf8 = Literal["fail", "replace", "drop"]

_LEARNING = ("vocab_size", "model_type", "byte_fallback", "character_coverage", "normalization")
# Options that are ignored if a vocabulary is given. Missing symbols are appended to it.
LEARNING_OPTIONS = (*_LEARNING, "vocabulary_lines")
DEFAULT_SHARES = {"spans": 0.05, "tags": 0.02}


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
        vocabulary_lines: largest number of lines that a vocabulary is learned from. A longer text
            is halved at random until it fits.
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
            Language tokens such as ">>deu<< >>eng<<" are added only if a sentence lacks them.
        augment: kinds of changes, with the share of the training pairs that each one changes. For
            `spans` and `tags`, 20 tokens of a new vocabulary are symbols, and a search keeps them.
            The kinds are those of the installed extensions (docs/corpora.md).
    """

    # Four special tokens, and one of text.
    vocab_size: Annotated[int, Limits(least=5, most=1_000_000)] = 8000
    model_type: ModelType = "unigram"
    byte_fallback: bool = False
    separate_vocabularies: bool = False
    character_coverage: Annotated[float, Limits(least=0.98, most=1)] = 1.0
    normalization: Normalization = "nfkc_numbers"
    vocabulary_lines: Annotated[int, Limits(least=2)] = MAX_LINES  # a pair has two lines
    symbols: tuple[str, ...] | None = None
    max_tokens: Annotated[int, Limits(least=2)] = 256
    valid_pairs: PositiveInt | None = None
    seed: int = 1
    max_bytes: PositiveInt = 16_384
    max_length_ratio: Annotated[float, Limits(least=1)] | None = 9.0
    drop_identical: bool = False
    drop_repetitive: bool = False
    drop_duplicates: bool = False
    check_languages: tuple[str, str] | None = None
    on_bad_utf8: OnBadUtf8 = "fail"
    source_tag: str | None = None
    augment: Mapping[str, float] = dataclasses.field(default_factory=lambda: dict(DEFAULT_SHARES))

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            if name not in ("symbols", "check_languages", "augment"):  # not scalars
                check_scalar(name, hint, getattr(self, name))
        message = f"check_languages is {self.check_languages}. Give two languages, as in en,de."
        require(self.check_languages is None or len(self.check_languages) == 2, message)
        is_mapping = isinstance(self.augment, Mapping)
        require(is_mapping, f"augment is {self.augment!r}. Give shares, as in {DEFAULT_SHARES}.")
        for kind, share in self.augment.items():
            check_scalar(f"augment, {kind}", Annotated[float, Limits(least=0, most=1)], share)
        require(sum(self.augment.values()) <= 1, "The sum of the shares in augment is above 1.")
        reserved = {*SPECIAL_PIECES, *(BYTE_PIECES if self.byte_fallback else ())}
        for symbol in self.all_symbols():
            if not symbol or any(map(str.isspace, symbol)) or symbol in reserved:
                raise InputError(
                    f"The symbol {symbol!r} is empty, contains spaces, or is already a token of "
                    "every vocabulary. Use a form such as <2de>."
                )

    def all_symbols(self) -> tuple[str, ...]:
        """The symbols, including the tag. Two languages, ">>deu<< >>eng<<", are two symbols."""
        tag = self.source_tag
        tags = [] if tag is None else tag.split() if tag.startswith(">>") else [tag]
        return tuple(dict.fromkeys([*(self.symbols or ()), *tags]))

    def learn(self, lines: Iterable[bytes], symbols: Sequence[str] = ()) -> bytes:
        """Learns a SentencePiece model from lines with these options, and returns it.

        `vocabulary_lines` and the memory are not limited here: the caller draws the lines.
        """
        values = {name: getattr(self, name) for name in _LEARNING}
        return learn_vocabulary(lines, symbols=(*self.all_symbols(), *symbols), **values)
