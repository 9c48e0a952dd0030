"""What the preparation's report says of the data that a run is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keras_transformer.runs.report.elements import Cell, number, settings, table, text

_SPLITS = {"train": "training", "valid": "validation"}
_BARS = "▁▂▃▄▅▆▇█"


def data_section(path: Path) -> str:
    """Returns a data report as HTML.

    What the file lacks, or has in another form than `prepare` writes, is left out.
    """
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        report = None
    if not isinstance(report, dict):
        return f'<p class="notice">{path.name} could not be read.</p>'
    parts = [
        _vocabulary(report),
        _splits(report),
        _cleaning(report),
        _inputs(report),
        _options(report),
    ]
    return "\n".join(filter(None, parts))


def _at(report: Any, *keys: str) -> Any:
    """Returns what lies under nested keys, or None."""
    for key in keys:
        report = report.get(key) if isinstance(report, dict) else None
    return report


def _count(report: Any, *keys: str) -> float | None:
    value = _at(report, *keys)
    return value if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def _vocabulary(report: dict[str, Any]) -> str:
    vocabulary = _at(report, "vocabulary")
    source, target = _count(vocabulary, "source_size"), _count(vocabulary, "target_size")
    if source is None or target is None:
        return ""
    kind = text(_at(vocabulary, "type"))
    size = f"{number(source)} pieces" if kind == "joint" else (
        f"{number(source)} source and {number(target)} target pieces"
    )  # fmt: skip
    return f"<p>Vocabulary: {kind}, {size}.</p>"


def _splits(report: dict[str, Any]) -> str:
    """Tokens and lengths of both sides of the stores."""
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        for side in ("source", "target"):
            store = _at(report, split, side)
            rate = _count(store, "unknown_rate")
            if isinstance(store, dict):
                rows.append(
                    (
                        f"{name}, {side}",
                        _count(report, split, "pairs"),
                        _count(store, "tokens"),
                        _count(store, "mean_length"),
                        _count(store, "max_length"),
                        "–" if rate is None else f"{100 * rate:.3f} %",
                        _sparkline(_at(store, "length_histogram")),
                    )
                )
    head = ("", "pairs", "tokens", "mean length", "longest", "unknown", "lengths, by 16 tokens")
    return table(head, rows)


def _sparkline(histogram: Any) -> str:
    """Returns a bar for each count of {"1-16": 12, ...}, the 24 shortest lengths at most."""
    if not isinstance(histogram, dict):
        return ""
    counts = [n for n in histogram.values() if isinstance(n, int) and 0 <= n < 10**15][:24]
    top = max(counts, default=0)
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // top)] for n in counts) if top else ""


def _cleaning(report: dict[str, Any]) -> str:
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        cleaning = _at(report, "cleaning", split)
        if not isinstance(cleaning, dict):
            continue
        dropped = _at(cleaning, "dropped")
        reasons = dropped.items() if isinstance(dropped, dict) else ()
        rows.append(
            (
                f"{name} corpus",
                _count(cleaning, "read"),
                _count(cleaning, "kept"),
                _count(cleaning, "control_characters_made_spaces"),
                ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in reasons) or "none",
            )
        )
    held_out = _count(report, "held_out")
    note = (
        f"<p>{number(held_out)} pairs of the training corpus are held out for validation.</p>"
        if held_out
        else ""
    )
    head = ("", "pairs read", "kept", "control characters made spaces", "dropped")
    return f"{table(head, rows)}\n{note}".strip()


def _inputs(report: dict[str, Any]) -> str:
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        inputs = _at(report, "inputs", split)
        for entry in inputs if isinstance(inputs, list) else ():
            sha256 = _at(entry, "sha256")
            # Of each file; before, one of them all.
            hashes = sha256.values() if isinstance(sha256, dict) else [sha256]
            rows.append(
                (
                    name,
                    str(_at(entry, "name")),
                    _count(entry, "pairs"),
                    ", ".join(str(value)[:16] for value in hashes),
                )
            )
    return table(("used for", "corpus", "pairs", "SHA-256 begins with"), rows)


def _options(report: dict[str, Any]) -> str:
    options = _at(report, "options")
    if not isinstance(options, dict):
        return ""
    return f'<p class="muted">Prepared with:</p>\n{settings(options)}'
