"""The few elements that the page is made of; whatever text comes in is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

# A cell is a number, right-aligned, or text; None is a dash.
Cell: TypeAlias = "float | str | None"


def text(value: Any) -> str:
    """Returns `str(value)` as HTML text."""
    return escape(str(value))


def number(value: float | None, decimals: int | None = None) -> str:
    """Returns a number for a person: 12,345 or 2.713; a dash for None, decimals as they fit.

    >>> number(12345), number(2.71345), number(43.21345), number(0.5, 1), number(None)
    ('12,345', '2.713', '43.21', '0.5', '–')
    """
    if value is None:
        return "–"
    if not math.isfinite(value) or abs(value) >= 1e15:
        return f"{value:.3g}"
    if isinstance(value, int) or (decimals is None and abs(value) >= 1000):
        return f"{value:,.0f}"
    if decimals is None:
        decimals = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{decimals}f}"


def facts(entries: Mapping[str, str], style: str = "facts") -> str:
    """Returns a list of names with their values."""
    items = "\n".join(
        f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in entries.items()
    )
    return f'<dl class="{style}">\n{items}\n</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Returns a table; a column is aligned as the cells of its first row are."""
    rows = list(rows)
    if not rows:
        return ""
    lines = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    names = "".join(
        f'<th scope="col"{_alignment(cell)}>{text(name)}</th>'
        for name, cell in zip(head, rows[0], strict=True)
    )
    return (
        f'<div class="wide"><table>\n<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    content = text(cell) if isinstance(cell, str) else number(cell)
    return f"<td{_alignment(cell)}>{content}</td>"


def _alignment(cell: Cell) -> str:
    return "" if isinstance(cell, str) else ' class="number"'


def settings(entries: Mapping[str, Any]) -> str:
    """Returns many names with their values, one after the other."""
    items = "\n".join(
        f"<li><b>{text(name)}</b> {text(setting(value))}</li>" for name, value in entries.items()
    )
    return f'<ul class="settings">\n{items}\n</ul>'


def setting(value: Any) -> str:
    """Returns a value of a configuration as flags give it."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
