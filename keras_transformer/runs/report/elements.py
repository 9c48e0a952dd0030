"""The few elements that pages are made of; whatever text comes in is escaped here."""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path


class Markup(str):
    """HTML, to be taken as it is where text would be escaped."""

    __slots__ = ()


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


def percent(share: float) -> str:
    """Returns a share for a person, unbroken; a small one is told from none.

    >>> percent(0.12345).split(), percent(0.0).split(), percent(1e-9).split()
    (['12.35', '%'], ['0', '%'], ['<', '0.001', '%'])
    """
    digits = f"{100 * share:.{2 if share >= 1e-3 else 3}f} %" if share else "0 %"
    return ("< 0.001 %" if 0 < share < 1e-5 else digits).replace(" ", "\N{NO-BREAK SPACE}")


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "") -> str:
    """Returns a table; a column is aligned as the cells of its first row are."""
    rows = list(rows)
    if not rows:
        return ""
    lines = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    names = "".join(
        f'<th scope="col"{_alignment(cell)}>{text(name)}</th>'
        for name, cell in zip(head, rows[0], strict=True)
    )
    title = f"<caption>{text(caption)}</caption>\n" if caption else ""
    return (
        f'<div class="wide"><table>\n{title}<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    content = cell if isinstance(cell, Markup) else _plain(cell)
    return f"<td{_alignment(cell)}>{content}</td>"


def _plain(cell: Cell) -> str:
    return text(cell) if isinstance(cell, str) else number(cell)


def _alignment(cell: Cell) -> str:
    return "" if isinstance(cell, str) else ' class="number"'


def bar(share: float, label: str, style: str) -> Markup:
    """Returns a bar for a cell, `share` of whose width is filled; any but 0 can be seen."""
    width = max(100 * min(share, 1.0), 0.7) if share > 0 else 0.0
    return Markup(
        f'<svg class="bar {style}" viewBox="0 0 100 10" preserveAspectRatio="none" role="img">'
        f'<title>{text(label)}</title><rect width="{width:.2f}" height="10"/></svg>'
    )


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
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def section(title: str, content: str) -> str:
    """Returns a section of the page; "" where there is nothing to show."""
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>" if content else ""


def document(title: str, sections: Iterable[str], head: str = "") -> str:
    """Returns the whole page; `head` is markup that follows the style in its head."""
    style = importlib.resources.files(__package__).joinpath("style.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n{head}</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body>\n</html>\n"
    )


def write_page(path: Path, page: str) -> Path:
    """Writes a page and returns its path; the file is there whole or as it was.

    Raises:
        InputError: where it cannot be written.
    """
    try:
        with atomic_path(path) as partial:
            partial.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); expected room and permission"
        ) from error
    return path
