"""The page of prepared data: what is there to learn from, and what was dropped, and why."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.runs.report.elements import (
    Cell,
    Markup,
    bar,
    document,
    facts,
    number,
    percent,
    section,
    setting,
    settings,
    table,
    text,
    write_page,
)

_SPLITS = {"train": "training", "valid": "validation"}
_SIDES = ("source", "target")

# What is said of each reason, with the option it goes by; another is shown by its name alone.
REASONS: dict[str, tuple[str, ...]] = {
    "bad_utf8": ("bytes that are no UTF-8",),
    "too_many_bytes": ("a side of more than {} bytes", "max_bytes"),
    "empty": ("nothing on a side",),
    "length_ratio": ("a side more than {} times as long as the other", "max_length_ratio"),
    "identical": ("the same text on both sides",),
    "repetitive": ("the same two to eight words three times in a row on a side",),
    "wrong_language": ("a side seems to be in another language than {}", "check_languages"),
    "duplicate": ("the same pair was there before",),
    "too_many_tokens": ("a side of more than {} tokens", "max_tokens"),
}

_MAX_COUNT = 2**53  # larger integers are not exact in every JSON reader
_MAX_ROWS = 16  # of a histogram; more are put together
# Text without what could not be seen: U+2400 and on are pictures of control characters.
_VISIBLE = {**{code: 0x2400 + code for code in range(0x20)}, 0x7F: 0x2421}


def write_data_page(directory: Path, defaults: Mapping[str, Any] | None = None) -> Path:
    """Writes report.html into a directory of prepared data, from its report.json.

    The page needs no other file and no network. The same report gives the same page.

    Args:
        directory: the `output_dir` of `prepare`.
        defaults: of the options, by name; those that differ are shown apart. None where
            they are not known.

    Returns:
        The file, which is there whole or as it was.

    Raises:
        InputError: where the report cannot be read, lacks a field or holds something odd in
            it, or the page cannot be written.
    """
    report = _Field.read(directory / "report.json")
    name = directory.resolve().name
    sections = [
        f"<header>\n<h1>{text(name)}</h1>\n{_headline(report)}\n</header>",
        section("Dropped", _cleaning(report)),
        section("Lengths", _lengths(report)),
        section("Inputs", _inputs(report["inputs"])),
        section("Options", _options(report["options"], defaults or {})),
        section("Time", _seconds(report)),
    ]
    return write_page(directory / "report.html", document(f"{name} · prepared data", sections))


# The headline.


def _headline(report: _Field) -> str:
    entries = {}
    for split, purpose in (("train", "Pairs to learn from"), ("valid", "Pairs to validate on")):
        source, target = (report[split][side]["tokens"].count() for side in _SIDES)
        entries[purpose] = (
            f"<b>{number(report[split]['pairs'].count())}</b>"
            f"<small>{number(source)} source and<br>{number(target)} target tokens</small>"
        )
    parts = _split_fields(report["cleaning"]).values()
    read = sum(part["read"].count() for part in parts)
    dropped = sum(sum(part["dropped"].counts().values()) for part in parts)
    entries["Dropped"] = (
        f"<b>{percent(dropped / max(read, 1))}</b>"
        f"<small>{number(dropped)} of {number(read)}<br>pairs read</small>"
    )
    entries["Vocabulary"] = _vocabulary(report)
    lines = [facts(entries, "scores counts")]
    if report["held_out"].count():
        lines.append(
            '<p class="muted">The pairs to validate on are held out of the training corpus.</p>'
        )
    known = report.fields().get("valid_pairs_in_train")  # data prepared before do not tell
    if known is not None and known.count():
        lines.append(
            f'<p class="notice">{number(known.count())} of the pairs to validate on stand in the '
            "training text as well; what is measured on them is not of new text.</p>"
        )
    return "\n".join(lines)


def _vocabulary(report: _Field) -> str:
    vocabulary = report["vocabulary"]
    source, target = (number(vocabulary[f"{side}_size"].count()) for side in _SIDES)
    given = report["vocab_from"]
    origin = "" if given.value is None else f"<br>of {text(given.text())}"
    if vocabulary["type"].text() == "joint":
        return f"<b>{source}</b><small>pieces for both sides{origin}</small>"
    return f"<b>{source}</b><small>source and<br>{target} target pieces{origin}</small>"


# What was dropped.


def _cleaning(report: _Field) -> str:
    splits, options = _split_fields(report["cleaning"]), report["options"]
    shares = {split: _shares(part) for split, part in splits.items()}
    # One scale for all bars, so that they can be compared.
    scale = max((share for group in shares.values() for share in group.values()), default=0.0)
    return "\n".join(
        f"<h3>The {_SPLITS[split]} corpus</h3>\n{_dropped(part, shares[split], scale, options)}"
        for split, part in splits.items()
    )


def _shares(part: _Field) -> dict[str, float]:
    """Returns how much of what was read was dropped for each reason, the greatest first."""
    read, counts = part["read"].count(), part["dropped"].counts()
    if sum(counts.values()) > read:
        raise InputError(
            f"{part.path}: {part.name}.dropped counts {sum(counts.values())} pairs; expected at "
            f"most the {read} read"
        )
    reasons = sorted(counts, key=lambda reason: -counts[reason])
    return {reason: counts[reason] / max(read, 1) for reason in reasons}


def _dropped(part: _Field, shares: Mapping[str, float], scale: float, options: _Field) -> str:
    counts = part["dropped"].counts()
    rows: list[tuple[Cell, ...]] = [
        (
            _words(reason),
            counts[reason],
            percent(share),
            bar(share / (scale or 1.0), percent(share), "source"),
            _meaning(reason, options),
        )
        for reason, share in shares.items()
    ]
    read, kept = number(part["read"].count()), number(part["kept"].count())
    dropped = number(sum(counts.values())) if rows else "nothing was"
    said = f"Of {read} pairs read, {kept} were kept and {dropped} dropped."
    parts = [
        f"<p>{said}</p>",
        table(("dropped", "pairs", "of those read", f"0 to {percent(scale)}", "meaning"), rows),
        _mended(part),
        *(_examples(part, reason) for reason in shares),
    ]
    return "\n".join(filter(None, parts))


def _meaning(reason: str, options: _Field) -> str:
    meaning, *names = REASONS.get(reason, ("",))
    return meaning.format(*(setting(options[name].setting()) for name in names))


def _mended(part: _Field) -> str:
    characters = part["control_characters_made_spaces"].count()
    lines = part["bad_utf8_replaced"].count()
    said = []
    if characters:
        said.append(f"Control characters that became spaces: {number(characters)}.")
    if lines:
        said.append(f"Lines with bytes that are no UTF-8, which became U+FFFD: {number(lines)}.")
    return f"<p>{' '.join(said)}</p>" if said else ""


def _examples(part: _Field, reason: str) -> str:
    examples = part["examples"].fields()
    entries = examples[reason].items() if reason in examples else []
    rows: list[tuple[Cell, ...]] = [
        (
            _excerpt(entry["corpus"]),
            entry["line"].count(),
            _excerpt(entry["source"]),
            _excerpt(entry["target"]),
        )
        for entry in entries
    ]
    count = part["dropped"][reason].count()
    which = f"the first {len(rows)} of {number(count)}" if len(rows) < count else "all"
    if not rows:
        return f'<p class="muted">Of {text(_words(reason))} there are no examples.</p>'
    return table(("corpus", "line", "source", "target"), rows, f"{_words(reason)}: {which}")


def _words(reason: str) -> str:
    return reason.replace("_", " ").translate(_VISIBLE)


def _excerpt(field: _Field) -> Markup:
    """Returns text for a cell, in its own direction and with what would not be seen."""
    shown = text(field.text().translate(_VISIBLE))
    return Markup(f'<div class="excerpt" dir="auto">{shown}</div>')


# Lengths, and what the vocabulary does not know.


def _lengths(report: _Field) -> str:
    rows: list[tuple[Cell, ...]] = [
        (
            f"{name}, {side}",
            store["tokens"].count(),
            store["mean_length"].number(),
            store["max_length"].count(),
            store["unknown"].count(),
            percent(store["unknown_rate"].number()),
        )
        for split, name in _SPLITS.items()
        for side in _SIDES
        for store in [report[split][side]]
    ]
    head = ("", "tokens", "mean length", "longest", "unknown tokens", "of all tokens")
    charts = "\n".join(_histogram(report[split], name) for split, name in _SPLITS.items())
    return f'{table(head, rows)}\n<div class="charts">\n{charts}\n</div>'


def _histogram(split: _Field, name: str) -> str:
    """Returns pairs by length of each side, as a table with bars."""
    sides = [_ranges(split[side]["length_histogram"]) for side in _SIDES]
    ranges = sorted({*sides[0], *sides[1]})
    size = max(-(-len(ranges) // _MAX_ROWS), 1)
    groups = [ranges[start : start + size] for start in range(0, len(ranges), size)]
    counts = [[sum(side.get(r, 0) for r in group) for group in groups] for side in sides]
    most = max((max(column) for column in counts if column), default=0) or 1
    rows: list[tuple[Cell, ...]] = []
    for group, *row in zip(groups, *counts, strict=True):
        cells: list[Cell] = [f"{group[0][0]:,}–{group[-1][1]:,}"]
        for side, count in zip(_SIDES, row, strict=True):
            share = percent(count / max(split["pairs"].count(), 1))
            cells += [count, bar(count / most, f"{share} of the pairs", side)]
        rows.append(tuple(cells))
    keys = " ".join(f'<span class="{side}">{side}</span>' for side in _SIDES)
    return (
        f"<figure>\n<figcaption><b>{name.capitalize()}</b> {keys}"
        '<span class="unit">pairs by tokens of a side, the end id counted</span></figcaption>\n'
        f"{table(('tokens', 'source', '', 'target', ''), rows)}\n</figure>"
    )


def _ranges(histogram: _Field) -> dict[tuple[int, int], int]:
    """Returns {"1-16": 12, ...} as {(1, 16): 12, ...}."""
    counts = {}
    for key, count in histogram.counts().items():
        if not re.fullmatch(r"[0-9]{1,15}-[0-9]{1,15}", key):
            raise InputError(
                f"{histogram.path}: {histogram.name} has the lengths {ascii(key)}; expected as 1-16"
            )
        first, last = key.split("-")
        counts[int(first), int(last)] = count
    return counts


# Where it is from.


def _inputs(inputs: _Field) -> str:
    rows: list[tuple[Cell, ...]] = [
        (_SPLITS[split], _excerpt(entry["name"]), entry["pairs"].count(), _hashes(entry["sha256"]))
        for split, group in _split_fields(inputs).items()
        for entry in group.items()
    ]
    return table(("used for", "corpus", "pairs", "SHA-256 begins with"), rows)


def _hashes(files: _Field) -> Markup:
    """Returns the start of each file's hash, with all of it and the file's name as tooltip."""
    return Markup(
        "<br>".join(
            f'<span class="hash" title="{text(f"{name}: {sha256.text()}".translate(_VISIBLE))}">'
            f"{text(sha256.text()[:16].translate(_VISIBLE))}</span>"
            for name, sha256 in files.fields().items()
        )
    )


def _options(options: _Field, defaults: Mapping[str, Any]) -> str:
    values = {name: setting(field.setting()) for name, field in options.fields().items()}
    usual = {name: setting(value) for name, value in defaults.items()}
    changed = [
        (name, value, usual.get(name)) for name, value in values.items() if value != usual.get(name)
    ]
    parts = []
    if usual:
        parts.append(
            table(("differs from the default", "value", "default"), changed)
            or "<p>None differs from its default.</p>"
        )
    parts.append(f"<details>\n<summary>All options</summary>\n{settings(values)}\n</details>")
    return "\n".join(parts)


def _seconds(report: _Field) -> str:
    if "seconds_of_stages" not in report.fields():
        return ""
    stages = {name: field.number() for name, field in report["seconds_of_stages"].fields().items()}
    stages["in all"] = sum(stages.values())
    note = '<p class="muted"><small>Without calls that were stopped.</small></p>'
    return facts({name: f"{number(value, 1)} s" for name, value in stages.items()}) + f"\n{note}"


def _split_fields(parts: _Field) -> dict[str, _Field]:
    """Returns those of the splits that were given: there is always one to train on."""
    fields = {"train": parts["train"]} | parts.fields()
    return {split: fields[split] for split in _SPLITS if split in fields}


# Fields of the report, checked while they are read.


@dataclasses.dataclass(frozen=True)
class _Field:
    """A value of a JSON file, and where it stands in it.

    Every method but `read` raises `InputError`, naming file and field, where the value is
    none of its kind.
    """

    path: Path
    name: str  # as "train.source.tokens"; "" for the whole file
    value: Any

    @classmethod
    def read(cls, path: Path) -> _Field:
        """Reads a whole file.

        Raises:
            InputError: where it is missing, unreadable or no JSON.
        """
        try:
            return cls(path, "", json.loads(path.read_bytes()))
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}); expected a directory of prepared data"
            ) from error
        except (ValueError, RecursionError):
            raise InputError(f"{path} is no JSON; expected what bin/prepare.py has left") from None

    def __getitem__(self, key: str) -> _Field:
        """Returns a field of an object, which must have it."""
        fields = self.fields()
        if key not in fields:
            raise InputError(
                f"{self.path} has no field {self._child(key)}; expected a report of this version "
                "of bin/prepare.py"
            )
        return fields[key]

    def fields(self) -> dict[str, _Field]:
        """Returns all fields of an object, by name."""
        if not isinstance(self.value, dict):
            raise self._error("an object")
        return {
            key: _Field(self.path, self._child(key), value) for key, value in self.value.items()
        }

    def items(self) -> list[_Field]:
        """Returns the items of a list."""
        if not isinstance(self.value, list):
            raise self._error("a list")
        return [
            _Field(self.path, f"{self.name}[{number}]", value)
            for number, value in enumerate(self.value)
        ]

    def counts(self) -> dict[str, int]:
        """Returns an object of counts."""
        return {key: field.count() for key, field in self.fields().items()}

    def count(self) -> int:
        """Returns an integer of 0 or more."""
        if type(self.value) is not int or not 0 <= self.value <= _MAX_COUNT:
            raise self._error("a count")
        return self.value

    def number(self) -> float:
        """Returns a number of 0 or more."""
        if type(self.value) is float and math.isfinite(self.value) and self.value >= 0:
            return self.value
        if type(self.value) is not int or not 0 <= self.value <= _MAX_COUNT:
            raise self._error("a number of 0 or more")
        return float(self.value)

    def text(self) -> str:
        """Returns a string."""
        if not isinstance(self.value, str):
            raise self._error("a text")
        return self.value

    def setting(self) -> Any:
        """Returns a value of an option: null, a boolean, a number, a string, or a list of those."""
        values = self.value if isinstance(self.value, list) else [self.value]
        if not all(isinstance(value, str | int | float | None) for value in values):
            raise self._error("a value of an option")
        return self.value

    def _child(self, key: str) -> str:
        shown = key if key.isprintable() else ascii(key)
        return f"{self.name}.{shown}" if self.name else shown

    def _error(self, expected: str) -> InputError:
        shown = reprlib.repr(self.value)  # which is short
        return InputError(f"{self.path}: {self.name or 'all'} is {shown}; expected {expected}")
