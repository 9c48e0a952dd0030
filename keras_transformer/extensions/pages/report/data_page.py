"""The report of prepared data as HTML: what there is to learn from, what was dropped, and why."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.report.elements import (
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
from keras_transformer.schema import nested

_SPLITS = {"train": "training", "valid": "validation"}
_SIDES = ("source", "target")
_MAX_COUNT = 2**53  # larger integers are not exact in every JSON reader
_MAX_ROWS = 16  # of a histogram

# For each reason its meaning, and the option that is its limit.
REASONS: dict[str, tuple[str, str | None]] = {
    "bad_utf8": ("a side is not valid UTF-8", None),
    "too_many_bytes": ("a side has more than {} bytes", "max_bytes"),
    "empty": ("a side is empty, or has only invisible characters", None),
    "length_ratio": ("a side is more than {} times as long as the other", "max_length_ratio"),
    "identical": ("both sides are identical", None),
    "repetitive": ("two to eight words are repeated three times in a row", None),
    "wrong_language": ("a side seems to be in a language other than {}", "check_languages"),
    "duplicate": ("the same pair occurred before", None),
    "too_many_tokens": ("a side has more than {} tokens", "max_tokens"),
}


def write_data_page(directory: Path, defaults: Mapping[str, Any] | None = None) -> Path:
    """Writes report.html into a directory of prepared data, from its report.json.

    The page needs no other file and no network. The same report gives the same page. Missing and
    malformed numbers become dashes.

    Args:
        directory: the `output_dir` of `prepare`.
        defaults: the default options by name, to show which options differ; None for those of
            `PrepareOptions`.

    Returns:
        The path of the page.

    Raises:
        InputError: if the report cannot be read, or the page cannot be written.
    """
    if defaults is None:
        defaults = dataclasses.asdict(PrepareOptions())
    report = read_data_report(directory / "report.json")
    name = directory.resolve().name
    sections = [f"<header>\n<h1>{text(name)}</h1>\n{data_headline(report)}\n</header>"]
    sections += [section(*part) for part in data_parts(report, defaults).items()]
    return write_page(directory / "report.html", document(f"{name} · prepared data", sections))


def read_data_report(path: Path) -> dict[str, Any]:
    """Reads the report of `prepare`.

    Raises:
        InputError: if it cannot be read, or is the report of something else.
    """
    try:
        report = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}). Give a directory of prepared data."
        ) from error
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not valid JSON. Prepare the data again.") from None
    if not isinstance(nested(report, "train"), dict):
        raise InputError(f"{path} does not describe prepared data: it has no field train.")
    return dict(report)


def data_headline(report: Any) -> str:
    """Returns the numbers of pairs and tokens, the dropped share and the vocabulary as HTML."""
    entries = {}
    for split, purpose in (("train", "Training pairs"), ("valid", "Validation pairs")):
        source, target = (_number(report, split, side, "tokens") for side in _SIDES)
        entries[purpose] = (
            f"<b>{number(_number(report, split, 'pairs'))}</b>"
            f"<small>{number(source)} source and<br>{number(target)} target tokens</small>"
        )
    read = sum(_number(report, "cleaning", split, "read") or 0 for split in _SPLITS)
    dropped = sum(sum(_counts(report, "cleaning", split, "dropped").values()) for split in _SPLITS)
    entries["Dropped"] = (
        f"<b>{percent(dropped / max(read, 1))}</b>"
        f"<small>{number(dropped)} of {number(read)}<br>pairs read</small>"
    )
    source, target = (_number(report, "vocabulary", f"{side}_size") for side in _SIDES)
    pieces = f"source and<br>{number(target)} target pieces"
    if nested(report, "vocabulary", "type") == "joint":
        pieces = "pieces for both sides"
    if origin := nested(report, "vocab_from"):
        pieces += f"<br>from {text(origin)}"
    entries["Vocabulary"] = f"<b>{number(source)}</b><small>{pieces}</small>"
    lines = [facts(entries, "scores counts")]
    if _number(report, "held_out"):
        lines.append(
            '<p class="muted">The validation pairs are held out of the training corpus.</p>'
        )
    if known := _number(report, "valid_pairs_in_train"):
        lines.append(
            f'<p class="notice">{number(known)} of the validation pairs are in the training corpus '
            "as well. Validation scores overestimate the quality on new text.</p>"
        )
    return "\n".join(lines)


def data_parts(report: Any, defaults: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns titles with HTML: dropped pairs, changed targets, lengths, inputs, options, time."""
    seconds = _counts(report, "seconds_of_stages")
    stages = {name: f"{number(float(each), 1)} s" for name, each in seconds.items()}
    options = _dict(report, "options")
    return {
        "Dropped pairs": "\n".join(_cleaning(report, split) for split in _SPLITS),
        "Targets changed by normalization": _rewritten(report),
        "Lengths": _lengths(report),
        "Inputs": _inputs(report),
        "Options": settings(options, defaults) if options else "",
        "Time": facts(stages) if stages else "",
    }


def _cleaning(report: Any, split: str) -> str:
    """Returns the counts of dropped pairs of a split, with examples."""
    part = _dict(report, "cleaning", split)
    if not part:
        return ""
    counts = _counts(part, "dropped")
    read, kept = _number(part, "read"), _number(part, "kept")
    most = max([*counts.values(), 1])
    reasons = sorted(counts, key=lambda reason: -counts[reason])
    rows: list[tuple[Cell, ...]] = []
    for reason in reasons:
        share = percent(counts[reason] / max(read or 0, counts[reason], 1))
        meaning, option = REASONS.get(reason, ("", None))
        limit = setting(nested(report, "options", option)) if option else ""
        width = bar(counts[reason] / most, share, "source")
        rows.append((_words(reason), counts[reason], share, width, meaning.format(limit)))
    repaired = ""
    if characters := _number(part, "control_characters_made_spaces"):
        repaired += f" {number(characters)} control characters became spaces."
    if lines := _number(part, "bad_utf8_replaced"):
        repaired += f" {number(lines)} lines with invalid UTF-8 were repaired with U+FFFD."
    parts = [
        f"<h3>{_SPLITS[split].capitalize()} corpus</h3>",
        f"<p>{number(read)} pairs read, {number(kept)} kept.{repaired}</p>",
        table(("dropped", "pairs", "of those read", "", "meaning"), rows),
        *(_examples(part, reason, counts[reason]) for reason in reasons),
    ]
    return "\n".join(filter(None, parts))


def _examples(part: Any, reason: str, count: float) -> str:
    rows: list[tuple[Cell, ...]] = [
        (
            _excerpt(nested(entry, "corpus")),
            _number(entry, "line"),
            _excerpt(nested(entry, "source")),
            _excerpt(nested(entry, "target")),
        )
        for entry in _list(part, "examples", reason)
    ]
    which = f"the first {len(rows)} of {number(count)}" if len(rows) < count else "all"
    return table(("corpus", "line", "source", "target"), rows, f"{_words(reason)}: {which}")


def _rewritten(report: Any) -> str:
    """Returns how many targets normalization changes, with examples, or "" if there are none."""
    parts = []
    for split, name in _SPLITS.items():
        count, pairs = (
            _number(report, split, "target", "rewritten"),
            _number(report, split, "pairs"),
        )
        if not count:
            continue
        rows: list[tuple[Cell, ...]] = [
            (
                _excerpt(nested(entry, "corpus")),
                _number(entry, "line"),
                _excerpt(nested(entry, "before")),
                _excerpt(nested(entry, "after")),
            )
            for entry in _list(report, split, "target", "rewritten_examples")
        ]
        share = percent(count / max(pairs or 0, count))
        parts.append(
            f"<p>{name.capitalize()}: {number(count)} targets ({share}). The model learns and "
            "writes the changed text. To keep the text as it is, prepare it with "
            "<code>--normalization=identity</code>.</p>"
        )
        parts.append(table(("corpus", "line", "text", "becomes"), rows, "examples"))
    return "\n".join(parts)


def _lengths(report: Any) -> str:
    """Returns the numbers of tokens of each side, and the distribution of its lengths."""
    names = ("tokens", "mean_length", "max_length", "unknown")
    rows: list[tuple[Cell, ...]] = [
        (
            f"{name}, {side}",
            *(_number(report, split, side, field) for field in names),
            percent(_number(report, split, side, "unknown_rate")),
        )
        for split, name in _SPLITS.items()
        for side in _SIDES
    ]
    head = ("", "tokens", "mean length", "longest", "unknown tokens", "of all tokens")
    charts = "\n".join(_histogram(report, split, name) for split, name in _SPLITS.items())
    return f'{table(head, rows)}\n<div class="charts">\n{charts}\n</div>'


def _histogram(report: Any, split: str, name: str) -> str:
    """Returns the pairs by the length of each side, as a table with bars."""
    # {"1-16": 12, ...} as {(1, 16): 12, ...}
    sides = [
        {
            (int(key.split("-")[0]), int(key.split("-")[1])): count
            for key, count in _counts(report, split, side, "length_histogram").items()
            if re.fullmatch(r"[0-9]{1,15}-[0-9]{1,15}", key)
        }
        for side in _SIDES
    ]
    ranges = sorted({*sides[0], *sides[1]})
    if not ranges:
        return ""
    size = -(-len(ranges) // _MAX_ROWS)
    groups = [ranges[start : start + size] for start in range(0, len(ranges), size)]
    columns = [[sum(side.get(r, 0) for r in group) for group in groups] for side in sides]
    most = max(map(max, columns)) or 1
    rows: list[tuple[Cell, ...]] = []
    for group, *counts in zip(groups, *columns, strict=True):
        cells: list[Cell] = [f"{group[0][0]:,}–{group[-1][1]:,}"]
        for side, count in zip(_SIDES, counts, strict=True):
            cells += [count, bar(count / most, f"{number(count)} pairs", side)]
        rows.append(tuple(cells))
    keys = " ".join(f'<span class="{side}">{side}</span>' for side in _SIDES)
    return (
        f"<figure>\n<figcaption><b>{name.capitalize()}</b> {keys}"
        '<span class="unit">pairs by number of tokens, with the end token</span></figcaption>\n'
        f"{table(('tokens', 'source', '', 'target', ''), rows)}\n</figure>"
    )


def _inputs(report: Any) -> str:
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        for entry in _list(report, "inputs", split):
            # Reports of version 0.1.0 have one hash for all files of a corpus.
            hashes = _dict(entry, "sha256") or {"": nested(entry, "sha256")}
            spans = [_hash(file, str(each)) for file, each in hashes.items()]
            corpus = _excerpt(nested(entry, "name"))
            rows.append((name, corpus, _number(entry, "pairs"), Markup("<br>".join(spans))))
    return table(("used for", "corpus", "pairs", "SHA-256 begins with"), rows)


def _hash(file: str, sha256: str) -> str:
    return f'<span class="hash" title="{text(file)}: {text(sha256)}">{text(sha256[:16])}</span>'


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _excerpt(value: Any) -> Markup:
    """Returns text of the corpus for a cell, in the direction of its script."""
    return Markup(f'<div class="excerpt" dir="auto">{text(value)}</div>')


# Parts of a report, which may be missing or malformed.


def _number(report: Any, *keys: str) -> float | None:
    value = nested(report, *keys)
    return value if type(value) in (int, float) and 0 <= value <= _MAX_COUNT else None


def _dict(report: Any, *keys: str) -> dict[str, Any]:
    value = nested(report, *keys)
    return value if isinstance(value, dict) else {}


def _counts(report: Any, *keys: str) -> dict[str, float]:
    values = _dict(report, *keys)
    return {key: count for key in values if (count := _number(values, key)) is not None}


def _list(report: Any, *keys: str) -> list[Any]:
    value = nested(report, *keys)
    return value if isinstance(value, list) else []
