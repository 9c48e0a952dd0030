"""HTML elements of the pages. They escape all text that they are given."""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, TypeAlias

from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path

# Control characters become visible: U+2400 and the following are pictures of them.
_PICTURES = {**{code: 0x2400 + code for code in range(0x20)}, 0x7F: 0x2421}
_PAGE = Template(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$style</style>
$head</head>
<body>
$body
</body>
</html>
"""
)


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


# The content of a table cell: a number (right-aligned), text, or None (a dash).
Cell: TypeAlias = "float | str | None"


def text(value: Any) -> str:
    """Returns `str(value)` as HTML text, with visible control characters."""
    return escape(str(value).translate(_PICTURES))


def number(value: float | None, decimals: int | None = None) -> str:
    """Formats a number for reading, with as many decimals as fit; None is a dash."""
    if value is None:
        return "–"
    if not math.isfinite(value) or abs(value) >= 1e15:
        return f"{value:.3g}"
    if isinstance(value, int) or (decimals is None and abs(value) >= 1000):
        return f"{value:,.0f}"
    if decimals is None:
        decimals = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{decimals}f}"


def percent(share: float) -> str:
    """Formats a share. A small share differs from 0."""
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

    def alignment(cell: Cell) -> str:
        return "" if isinstance(cell, str) else ' class="number"'

    def data(cell: Cell) -> str:
        content = number(cell) if not isinstance(cell, str) else cell
        content = content if isinstance(cell, Markup) else text(content)
        return f"<td{alignment(cell)}>{content}</td>"

    if not rows:
        return ""
    names = "".join(
        f'<th scope="col"{alignment(cell)}>{text(name)}</th>'
        for name, cell in zip(head, rows[0], strict=True)
    )
    lines = "\n".join(f"<tr>{''.join(map(data, row))}</tr>" for row in rows)
    title = f"<caption>{text(caption)}</caption>\n" if caption else ""
    return (
        f'<div class="wide"><table>\n{title}<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def settings(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> str:
    """Returns a table of the settings that differ from their defaults, and a list of all."""
    items = "\n".join(f"<li><b>{text(k)}</b> {text(v)}</li>" for k, v in values.items())
    everything = f'<ul class="settings">\n{items}\n</ul>'
    if defaults is None:
        return everything
    rows = [
        (name, str(value), str(defaults.get(name)))
        for name, value in values.items()
        if value != defaults.get(name)
    ]
    changed = table(("differs from the default", "value", "default"), rows)
    return (changed or "<p>All settings have their default values.</p>") + details(
        "All settings", everything
    )


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
    body = "\n".join(filter(None, sections))
    return _PAGE.substitute(title=text(title), style=style, head=head, body=body)


def write_page(path: Path, page: str) -> Path:
    """Writes a page atomically and returns its path."""
    try:
        with atomic_path(path) as partial:
            partial.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from error
    return path
