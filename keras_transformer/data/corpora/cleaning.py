"""Which pairs are learned from, and the count of those that are not."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from keras_transformer.data.corpora.corpus import Block, split_columns
from keras_transformer.data.corpora.languages import LanguageCheck
from keras_transformer.data.corpora.reading import BOM, check_line
from keras_transformer.errors import InputError

DropReason = Literal[
    "bad_utf8",
    "too_many_bytes",
    "empty",
    "length_ratio",
    "identical",
    "repetitive",
    "wrong_language",
    "duplicate",
    "too_many_tokens",
]
OnBadUtf8 = Literal["fail", "replace", "drop"]
Mask: TypeAlias = npt.NDArray[np.bool_]

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 80
_SHORT = 20  # bytes that a side counts as in a ratio, if it has fewer
# A model that goes round in circles writes the same few words until it is stopped. People do not:
# of 200,000 pairs of Multi30k, Tatoeba and newstest none is dropped.
_REPEATED_WORDS = range(2, 9)  # how many; one alone stands three times in "no, no, no" and ". . ."
_REPETITIONS = 3
# Control characters and the line and paragraph separators: in UTF-8 U+0000-001F, U+007F,
# U+0080-009F, U+2028 and U+2029. Text readers break lines at several of them.
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")
# All of ASCII but LF, and what the rest of those of two bytes look like.
_CONTROL_ASCII = bytes((*range(0x0A), *range(0x0B, 0x20), 0x7F))
_CONTROL_LATIN = re.compile(rb"\xc2[\x80-\x9f]")


@dataclasses.dataclass(frozen=True)
class CleaningOptions:
    """What is dropped, or mended.

    Attributes:
        max_bytes: a pair with a longer side is dropped.
        max_length_ratio: so is one with a side of more than so many times the bytes of the
            other, which counts as at least 20; None for any.
        drop_identical: whether pairs are dropped whose sides are the same.
        drop_repetitive: whether pairs are dropped with a side in which the same two to eight
            words stand three times in a row (or one six times), as where the model that wrote
            it goes round in circles. Words are what spaces part.
        drop_duplicates: whether of equal pairs all but the first are dropped.
        check_languages: codes (ISO 639-1) of source and target language; a pair with a side
            that a language identifier takes for another language is dropped. None for no check.
        on_bad_utf8: whether bytes that are no UTF-8 end the preparation, become U+FFFD, or
            have their pair dropped.
        source_tag: a piece that begins every source sentence, as "<2de>": which language to
            translate into, for a model of several (Johnson et al., 2017). None for none.
    """

    max_bytes: int = 16_384
    max_length_ratio: float | None = 9.0
    drop_identical: bool = False
    drop_repetitive: bool = False
    drop_duplicates: bool = False
    check_languages: tuple[str, str] | None = None
    on_bad_utf8: OnBadUtf8 = "fail"
    source_tag: str | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise InputError(f"max_bytes is {self.max_bytes}; expected 1 or more")
        if self.max_length_ratio is not None and not 1 <= self.max_length_ratio < math.inf:
            raise InputError(f"max_length_ratio is {self.max_length_ratio}; expected 1 or more")
        if self.check_languages is not None and len(self.check_languages) != 2:
            raise InputError(
                f"check_languages is {','.join(self.check_languages)}; expected two, as in en,de"
            )
        if self.on_bad_utf8 not in get_args(OnBadUtf8):
            raise InputError(
                f"on_bad_utf8 is {self.on_bad_utf8!r}; expected one of "
                f"{', '.join(get_args(OnBadUtf8))}"
            )


class Place(NamedTuple):
    """Where a pair stands in its corpus; lines count from 1."""

    corpus: str
    line: int


@dataclasses.dataclass
class CleaningReport:
    """Counts of pairs read and dropped, by reason, with the first examples of each."""

    read: int = 0
    control_characters: int = 0
    bad_utf8_replaced: int = 0
    dropped: collections.Counter[DropReason] = dataclasses.field(
        default_factory=collections.Counter
    )
    examples: dict[DropReason, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Pairs read and not dropped."""
        return self.read - self.dropped.total()

    def drop(self, reason: DropReason, place: Place, source: bytes, target: bytes) -> None:
        """Counts a pair that is dropped."""
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            texts = {"source": _excerpt(source), "target": _excerpt(target)}
            examples.append({**place._asdict(), **texts})

    def add(self, other: CleaningReport) -> None:
        """Adds the counts of pairs that come after these."""
        self.read += other.read
        self.control_characters += other.control_characters
        self.bad_utf8_replaced += other.bad_utf8_replaced
        self.dropped += other.dropped
        for reason, examples in other.examples.items():
            known = self.examples.setdefault(reason, [])
            known += examples[: _EXAMPLES - len(known)]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "examples": self.examples,
            "control_characters_made_spaces": self.control_characters,
            "bad_utf8_replaced": self.bad_utf8_replaced,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CleaningReport:
        """Returns the report that `as_dict` told of."""
        return cls(
            values["read"],
            values["control_characters_made_spaces"],
            values["bad_utf8_replaced"],
            collections.Counter(values["dropped"]),
            values["examples"],
        )


class CleanPairs(NamedTuple):
    """Pairs that are kept so far: each side one stripped line of text, and where it stood.

    Attributes:
        corpus: what the lines' numbers count in.
        lines: uint32 or wider `[pairs]`, from 1.
        sources, targets: UTF-8.
    """

    corpus: str
    lines: npt.NDArray[np.int64]
    sources: Sequence[bytes]
    targets: Sequence[bytes]

    def keep(self, mask: Mask, reason: DropReason, report: CleaningReport) -> CleanPairs:
        """Returns the pairs of the mask, bool `[pairs]`; the others are counted."""
        if mask.all():
            return self
        for i in np.flatnonzero(~mask).tolist():
            place = Place(self.corpus, int(self.lines[i]))
            report.drop(reason, place, self.sources[i], self.targets[i])
        return self.where(mask)

    def where(self, mask: Mask) -> CleanPairs:
        """Returns the pairs of the mask, bool `[pairs]`."""
        kept = np.flatnonzero(mask)
        return CleanPairs(
            self.corpus,
            self.lines[kept],
            [self.sources[i] for i in kept.tolist()],
            [self.targets[i] for i in kept.tolist()],
        )


def clean(block: Block, options: CleaningOptions, report: CleaningReport) -> CleanPairs:
    """Returns the pairs of a block that are worth encoding, all but the duplicates dropped.

    Control characters and line separators become spaces.

    Args:
        block: what was read.
        options: what to drop.
        report: takes the counts.

    Raises:
        InputError: for NUL, a line that is no pair, and bytes that are no UTF-8, unless
            they are to be mended or dropped.
    """
    sources, targets, well_formed = _read(block, options, report)
    report.read += len(sources)
    name = " + ".join(dict.fromkeys(block.names))
    lines = np.arange(block.line, block.line + len(sources))
    pairs = CleanPairs(name, lines, sources, targets).keep(well_formed, "bad_utf8", report)
    # Before anything slow looks at them: a line may have megabytes.
    lengths = _lengths(pairs)
    pairs = pairs.keep(lengths.max(axis=0) <= options.max_bytes, "too_many_bytes", report)
    pairs = pairs._replace(
        sources=_stripped(pairs.sources, report), targets=_stripped(pairs.targets, report)
    )
    pairs = pairs.keep(_lengths(pairs).min(axis=0) > 0, "empty", report)
    if options.max_length_ratio is not None:
        lengths = np.maximum(_lengths(pairs), _SHORT)
        fitting = lengths.max(axis=0) <= options.max_length_ratio * lengths.min(axis=0)
        pairs = pairs.keep(fitting, "length_ratio", report)
    if options.drop_identical:
        differ = (s != t for s, t in zip(pairs.sources, pairs.targets, strict=True))
        pairs = pairs.keep(_mask(differ, pairs), "identical", report)
    if options.drop_repetitive:
        varied = (
            not (is_repetitive(s) or is_repetitive(t))
            for s, t in zip(pairs.sources, pairs.targets, strict=True)
        )
        pairs = pairs.keep(_mask(varied, pairs), "repetitive", report)
    if options.check_languages is not None:
        check = LanguageCheck.of(options.check_languages)
        right = check(pairs.sources, pairs.targets)
        pairs = pairs.keep(np.array(right, np.bool_), "wrong_language", report)
    if options.source_tag is not None:
        tag = options.source_tag.encode()
        pairs = pairs._replace(sources=[b"%b %b" % (tag, source) for source in pairs.sources])
    return pairs


def is_repetitive(line: bytes) -> bool:
    """Returns whether the same two to eight words stand three times in a row in a line."""
    words = line.split()
    again = _REPETITIONS - 1
    if len(words) - len(set(words)) < again * _REPEATED_WORDS[0]:
        return False  # as nearly all, at once
    for period in _REPEATED_WORDS:
        run = 0  # of words that are the one a period before
        for before, word in zip(words, words[period:], strict=False):
            run = run + 1 if word == before else 0
            if run == again * period:
                return True
    return False


def _mask(values: Iterable[bool], pairs: CleanPairs) -> Mask:
    return np.fromiter(values, np.bool_, len(pairs.lines))


def _lengths(pairs: CleanPairs) -> npt.NDArray[np.int64]:
    """Returns the bytes of the sides, `[2, pairs]`."""
    count = len(pairs.lines)
    return np.stack(
        [np.fromiter(map(len, side), np.int64, count) for side in (pairs.sources, pairs.targets)]
    )


def _read(
    block: Block, options: CleaningOptions, report: CleaningReport
) -> tuple[list[bytes], list[bytes], Mask]:
    """Returns the lines of both sides, without their ends, and in which all is UTF-8."""
    sides: list[list[bytes]] = []
    well_formed = np.ones(block.texts[0].count(b"\n"), np.bool_)
    for name, offset, text in zip(block.names, block.offsets, block.texts, strict=True):
        lines = text.split(b"\n")
        lines.pop()
        if b"\0" in text or not _is_utf8(text):
            well_formed &= _mend(lines, name, block.line, offset, options.on_bad_utf8, report)
        if block.line == 1:
            lines[0] = lines[0].removeprefix(BOM)
        if b"\r" in text:
            lines = [line.removesuffix(b"\r") for line in lines]
        sides.append(lines)
    if len(sides) == 1:
        numbered = enumerate(sides[0], start=block.line)
        rows = [split_columns(block.names[0], number, line) for number, line in numbered]
        sides = [[source for source, _ in rows], [target for _, target in rows]]
    return sides[0], sides[1], well_formed


def _mend(
    lines: list[bytes],
    name: str,
    first: int,
    offset: int,
    on_bad_utf8: OnBadUtf8,
    report: CleaningReport,
) -> Mask:
    """Mends lines in place that are no UTF-8, and returns which of them are."""
    well_formed = np.ones(len(lines), np.bool_)
    for i, line in enumerate(lines):
        if b"\0" in line or (on_bad_utf8 == "fail" and not line.isascii()):
            check_line(name, first + i, offset, line)
        elif not _is_utf8(line) and on_bad_utf8 == "replace":
            lines[i] = line.decode(errors="replace").encode()
            report.bad_utf8_replaced += 1
        elif not _is_utf8(line):
            well_formed[i] = False
        offset += len(line) + 1
    return well_formed


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _stripped(lines: Sequence[bytes], report: CleaningReport) -> list[bytes]:
    """Returns the lines without control characters and without spaces at their ends."""
    text = b"\n".join(lines)
    # A block without any, as most are, is spared the search in each line.
    if (
        len(text.translate(None, _CONTROL_ASCII)) != len(text)
        or _CONTROL_LATIN.search(text)
        or b"\xe2\x80\xa8" in text
        or b"\xe2\x80\xa9" in text
    ):
        cleaned, counts = zip(*(_CONTROL.subn(b" ", line) for line in lines), strict=True)
        report.control_characters += sum(counts)
        lines = cleaned
    return [line.strip() for line in lines]


def _excerpt(text: bytes) -> str:
    # Cut first: the line may be a megabyte long.
    start = text[: 4 * _EXAMPLE_CHARACTERS].decode(errors="replace")
    is_whole = len(text) <= 4 * _EXAMPLE_CHARACTERS and len(start) <= _EXAMPLE_CHARACTERS
    return start if is_whole else start[:_EXAMPLE_CHARACTERS] + "…"
