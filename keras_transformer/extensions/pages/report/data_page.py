"""The report of prepared data as HTML: what there is to learn from, what was dropped, and why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.report.elements import (
    Cell,
    Markup,
    document,
    facts,
    number,
    percent,
    section,
    settings,
    table,
    text,
    write_page,
)

_SPLITS = {"train": "training", "valid": "validation"}
_SIDES = ("source", "target")

# For each reason its meaning, and the option that is its limit.
REASONS: dict[str, tuple[str, str]] = {
    "bad_utf8": ("a side is not valid UTF-8", ""),
    "too_many_bytes": ("a side has more than {} bytes", "max_bytes"),
    "empty": ("a side is empty, or has only invisible characters", ""),
    "length_ratio": ("a side is more than {} times as long as the other", "max_length_ratio"),
    "identical": ("both sides are identical", ""),
    "repetitive": ("two to eight words are repeated three times in a row", ""),
    "wrong_language": ("a side seems to be in a language other than {}", "check_languages"),
    "duplicate": ("the same pair occurred before", ""),
    "too_many_tokens": ("a side has more than {} tokens", "max_tokens"),
}


def write_data_page(directory: str | Path, defaults: Mapping[str, Any] | None = None) -> Path:
    """Writes report.html into a directory of prepared data, from its report.json.

    The page needs no other file and no network. `defaults` are the default options by name, to
    show which options differ; None for those of `PrepareOptions`.
    """
    if defaults is None:
        defaults = dataclasses.asdict(PrepareOptions())
    directory = Path(directory)
    report = read_data_report(directory / "report.json")
    name = directory.resolve().name
    sections = [f"<header>\n<h1>{text(name)}</h1>\n{data_headline(report)}\n</header>"]
    sections += [section(*part) for part in data_parts(report, defaults).items()]
    return write_page(directory / "report.html", document(f"{name} · prepared data", sections))


def read_data_report(path: Path) -> dict[str, Any]:
    """Reads the report of `prepare`."""
    try:
        report = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}). Give a directory of prepared data."
        ) from error
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not valid JSON. Prepare the data again.") from None
    if not isinstance(report, dict) or "cleaning" not in report:
        raise InputError(f"{path} does not describe prepared data: it has no field cleaning.")
    return report


def data_headline(report: Mapping[str, Any]) -> str:
    """Returns the numbers of pairs and tokens, the dropped share and the vocabulary as HTML."""
    entries = {}
    for split, purpose in (("train", "Training pairs"), ("valid", "Validation pairs")):
        source, target = (number(report[split][side]["tokens"]) for side in _SIDES)
        entries[purpose] = (
            f"<b>{number(report[split]['pairs'])}</b>"
            f"<small>{source} source and<br>{target} target tokens</small>"
        )
    parts = report["cleaning"].values()
    read = sum(part["read"] for part in parts)
    dropped = sum(sum(part["dropped"].values()) for part in parts)
    entries["Dropped"] = (
        f"<b>{percent(dropped / max(read, 1))}</b>"
        f"<small>{number(dropped)} of {number(read)}<br>pairs read</small>"
    )
    vocabulary = report["vocabulary"]
    pieces = f"source and<br>{number(vocabulary['target_size'])} target pieces"
    if vocabulary["type"] == "joint":
        pieces = "pieces for both sides"
    if origin := report["vocab_from"]:
        pieces += f"<br>from {text(origin)}"
    entries["Vocabulary"] = f"<b>{number(vocabulary['source_size'])}</b><small>{pieces}</small>"
    lines = [facts(entries, "scores counts")]
    if report["held_out"]:
        lines.append(
            '<p class="muted">The validation pairs are held out of the training corpus.</p>'
        )
    if known := report["valid_pairs_in_train"]:
        lines.append(
            f'<p class="notice">{number(known)} of the validation pairs are in the training corpus '
            "as well. Validation scores overestimate the quality on new text.</p>"
        )
    return "\n".join(lines)


def data_parts(
    report: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Returns titles with HTML: dropped pairs, changed targets, lengths, inputs, options, time."""
    seconds = report["seconds_of_stages"]
    return {
        "Dropped pairs": "\n".join(_cleaning(report, split) for split in report["cleaning"]),
        "Targets changed by normalization": "\n".join(_rewritten(report, s) for s in _SPLITS),
        "Lengths": _lengths(report),
        "Inputs": _inputs(report),
        "Options": settings(report["options"], defaults),
        "Time": facts({name: f"{number(float(each), 1)} s" for name, each in seconds.items()}),
    }


def _cleaning(report: Mapping[str, Any], split: str) -> str:
    """Returns the counts of dropped pairs of a split, with examples."""
    part = report["cleaning"][split]
    rows: list[tuple[Cell, ...]] = []
    examples = []
    for reason, count in sorted(part["dropped"].items(), key=lambda item: -item[1]):
        meaning, option = REASONS[reason]
        share = percent(count / max(part["read"], 1))
        rows.append((_words(reason), count, share, meaning.format(report["options"].get(option))))
        found = [
            (_excerpt(entry["corpus"]), entry["line"], *map(_excerpt, _sides(entry)))
            for entry in part["examples"].get(reason, ())
        ]
        which = f"the first {len(found)} of {number(count)}" if len(found) < count else "all"
        head = ("corpus", "line", "source", "target")
        examples.append(table(head, found, f"{_words(reason)}: {which}"))
    repaired = ""
    if characters := part["control_characters_made_spaces"]:
        repaired += f" {number(characters)} control characters became spaces."
    if lines := part["bad_utf8_replaced"]:
        repaired += f" {number(lines)} lines with invalid UTF-8 were repaired with U+FFFD."
    parts = [
        f"<h3>{_SPLITS[split].capitalize()} corpus</h3>",
        f"<p>{number(part['read'])} pairs read, {number(part['kept'])} kept.{repaired}</p>",
        table(("dropped", "pairs", "of those read", "meaning"), rows),
        *examples,
    ]
    return "\n".join(filter(None, parts))


def _sides(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["source"], entry["target"]


def _rewritten(report: Mapping[str, Any], split: str) -> str:
    """Returns how many targets normalization changes, with examples, or "" if there are none."""
    target = report[split]["target"]
    count = target.get("rewritten", 0)
    if not count:
        return ""
    rows = [
        tuple(_excerpt(entry[name]) for name in ("before", "after"))
        for entry in target["rewritten_examples"]
    ]
    compared = number(target["compared"])
    return (
        f"<p>{_SPLITS[split].capitalize()}: {number(count)} targets of {compared}. The model "
        "learns and writes the changed text. To keep the text as it is, prepare it with "
        f"<code>--normalization=identity</code>.</p>\n"
        f"{table(('text', 'becomes'), rows, 'examples')}"
    )


def _lengths(report: Mapping[str, Any]) -> str:
    """Returns the numbers of tokens of each side, and the distribution of its lengths."""
    names = ("tokens", "mean_length", "max_length", "unknown")
    sides = [(f"{name}, {side}", report[s][side]) for s, name in _SPLITS.items() for side in _SIDES]
    rows = [
        (title, *(part[name] for name in names), percent(part["unknown_rate"]))
        for title, part in sides
    ]
    head = ("", "tokens", "mean length", "longest", "unknown tokens", "of all tokens")
    histograms = [part["length_histogram"] for _, part in sides]
    ranges = sorted({r for each in histograms for r in each}, key=lambda r: int(r.split("-")[0]))
    counts = [(length, *(each.get(length, 0) for each in histograms)) for length in ranges]
    title = "pairs by number of tokens, with the end token"
    return table(head, rows) + table(("tokens", *(name for name, _ in sides)), counts, title)


def _inputs(report: Mapping[str, Any]) -> str:
    rows = [
        (name, _excerpt(entry["name"]), entry["pairs"], Markup("<br>".join(_hashes(entry))))
        for split, name in _SPLITS.items()
        for entry in report["inputs"].get(split, ())
    ]
    return table(("used for", "corpus", "pairs", "SHA-256 begins with"), rows)


def _hashes(entry: Mapping[str, Any]) -> list[str]:
    return [
        f'<span class="hash" title="{text(file)}: {text(sha256)}">{text(sha256[:16])}</span>'
        for file, sha256 in entry["sha256"].items()
    ]


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _excerpt(value: Any) -> Markup:
    """Returns text of the corpus for a cell, in the direction of its script."""
    return Markup(f'<div class="excerpt" dir="auto">{text(value)}</div>')
