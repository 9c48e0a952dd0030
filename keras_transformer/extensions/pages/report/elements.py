"""HTML elements of the pages. They escape all text that they are given."""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path

# Control characters become visible: U+2400 and the following are pictures of them.
_PICTURES = {**{code: 0x2400 + code for code in range(0x20)}, 0x7F: 0x2421}


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


# The content of a table cell: a number (right-aligned), text, or None (a dash).
Cell: TypeAlias = "float | str | None"


def text(value: Any) -> str:
    """Returns `str(value)` as HTML text, with visible control characters.

    Example:
    >>> text("a < b")
    'a &lt; b'
    """
    return escape(str(value).translate(_PICTURES))


def number(value: float | None, decimals: int | None = None) -> str:
    """Formats a number for reading, with as many decimals as fit; None is a dash.

    Example:
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


def percent(share: float | None) -> str:
    """Formats a share without a line break. A small share differs from 0.

    Example:
    >>> percent(0.12345).split(), percent(0.0).split(), percent(1e-9).split()
    (['12.35', '%'], ['0', '%'], ['<', '0.001', '%'])
    """
    if share is None:
        return "–"
    digits = f"{100 * share:.{2 if share >= 1e-3 else 3}f} %" if share else "0 %"
    return ("< 0.001 %" if 0 < share < 1e-5 else digits).replace(" ", "\N{NO-BREAK SPACE}")


def facts(entries: Mapping[str, str], style: str = "facts") -> str:
    """Returns a list of names with values, which are HTML."""
    items = "\n".join(
        f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in entries.items()
    )
    return f'<dl class="{style}">\n{items}\n</dl>'


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> str:
    """Returns a table, or "" without rows. The first row determines the alignment of the head."""
    if not rows:
        return ""
    names = "".join(
        f'<th scope="col"{_alignment(cell)}>{text(name)}</th>'
        for name, cell in zip(head, rows[0], strict=True)
    )
    lines = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f"<caption>{text(caption)}</caption>\n" if caption else ""
    return (
        f'<div class="wide"><table>\n{title}<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    content = number(cell) if not isinstance(cell, str) else cell
    return f"<td{_alignment(cell)}>{content if isinstance(cell, Markup) else text(content)}</td>"


def _alignment(cell: Cell) -> str:
    return "" if isinstance(cell, str) else ' class="number"'


def bar(share: float, label: str, style: str) -> Markup:
    """Returns a bar for a cell. Any share above 0 is visible."""
    width = max(100 * min(share, 1.0), 0.7) if share > 0 else 0.0
    return Markup(
        f'<svg class="bar {style}" viewBox="0 0 100 10" preserveAspectRatio="none" role="img">'
        f'<title>{text(label)}</title><rect width="{width:.2f}" height="10"/></svg>'
    )


def settings(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> str:
    """Returns a table of the settings that differ from their defaults, and a list of all."""
    shown = {name: setting(value) for name, value in values.items()}
    items = "\n".join(f"<li><b>{text(k)}</b> {text(v)}</li>" for k, v in shown.items())
    everything = f'<ul class="settings">\n{items}\n</ul>'
    if defaults is None:
        return everything
    usual = {name: setting(value) for name, value in defaults.items()}
    rows = [(k, v, usual.get(k)) for k, v in shown.items() if v != usual.get(k)]
    changed = table(("differs from the default", "value", "default"), rows)
    return (
        f"{changed or '<p>All settings have their default values.</p>'}\n"
        + details("All settings", everything)
    )  # fmt: skip


def setting(value: Any) -> str:
    """Formats the value of a setting as flags take it."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def details(summary: str, content: str) -> str:
    """Returns content that the reader can open, or "" if there is none."""
    if not content:
        return ""
    return f"<details>\n<summary>{text(summary)}</summary>\n{content}\n</details>"


def section(title: str, content: str) -> str:
    """Returns a section of the page, or "" if there is no content."""
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>" if content else ""


def document(title: str, sections: Iterable[str], head: str = "") -> str:
    """Returns the whole page. `head` is HTML that follows the style in its head."""
    style = importlib.resources.files(__package__).joinpath("style.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n{head}</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body>\n</html>\n"
    )


def write_page(path: Path, page: str) -> Path:
    """Writes a page atomically and returns its path.

    Raises:
        InputError: if it cannot be written.
    """
    try:
        with atomic_path(path) as partial:
            partial.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}). Check the free space and the "
            "permissions."
        ) from error
    return path
