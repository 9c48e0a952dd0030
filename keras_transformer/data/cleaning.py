"""Which pairs are learned from, and the count of those that are not."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

DropReason = Literal["empty", "too_many_bytes", "too_many_tokens"]

_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 80
# Control characters and the line and paragraph separators: in UTF-8 U+0000-001F, U+007F,
# U+0080-009F, U+2028 and U+2029. Text readers break lines at several of them.
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")
# Bytes one of which begins each of them: a line without any is spared the search.
_CONTROL_FIRST_BYTES = bytes((*range(0x20), 0x7F, 0xC2, 0xE2))


class CleanPair(NamedTuple):
    """A pair that is kept so far, and where it comes from (lines count from 1)."""

    corpus: str
    line: int
    source: bytes
    target: bytes


@dataclasses.dataclass
class CleaningReport:
    """Counts of pairs read and dropped, by reason, with the first examples of each."""

    read: int = 0
    control_characters: int = 0
    dropped: collections.Counter[DropReason] = dataclasses.field(
        default_factory=collections.Counter
    )
    examples: dict[DropReason, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Pairs read and not dropped."""
        return self.read - self.dropped.total()

    def drop(self, reason: DropReason, pair: CleanPair) -> None:
        """Counts a pair that is dropped."""
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(
                {
                    "corpus": pair.corpus,
                    "line": pair.line,
                    "source": _excerpt(pair.source),
                    "target": _excerpt(pair.target),
                }
            )

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "examples": self.examples,
            "control_characters_made_spaces": self.control_characters,
        }


def clean(
    corpus: str, pairs: Iterable[tuple[bytes, bytes]], max_bytes: int, report: CleaningReport
) -> Iterator[CleanPair]:
    """Yields the pairs worth encoding, each side one stripped line of text.

    Drops pairs with a side longer than `max_bytes` (before anything slow looks
    at it) or an empty one; control characters and line separators become spaces.

    Args:
        corpus: name of the corpus, for the report's examples.
        pairs: (source, target), UTF-8.
        max_bytes: limit of each side.
        report: takes the counts.
    """
    for line, (source, target) in enumerate(pairs, start=1):
        report.read += 1
        if len(source) > max_bytes or len(target) > max_bytes:
            report.drop("too_many_bytes", CleanPair(corpus, line, source, target))
            continue
        source, source_controls = _one_line(source)
        target, target_controls = _one_line(target)
        report.control_characters += source_controls + target_controls
        pair = CleanPair(corpus, line, source, target)
        if source and target:
            yield pair
        else:
            report.drop("empty", pair)


def _one_line(text: bytes) -> tuple[bytes, int]:
    """Returns the text without control characters, and how many it had."""
    count = 0
    if len(text.translate(None, _CONTROL_FIRST_BYTES)) != len(text):
        text, count = _CONTROL.subn(b" ", text)
    return text.strip(), count


def _excerpt(text: bytes) -> str:
    # Cut first: the line may be a megabyte long.
    start = text[: 4 * _EXAMPLE_CHARACTERS].decode(errors="ignore")[:_EXAMPLE_CHARACTERS]
    return start if len(start.encode()) == len(text) else start + "…"
