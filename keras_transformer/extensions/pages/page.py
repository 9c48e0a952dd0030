"""Writes HTML pages from the templates of this folder. A page is one file that loads nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.runs.atomic import atomic_path

with needs_extra("plots", "an HTML page"):
    from jinja2 import Environment, PackageLoader, StrictUndefined

# Control characters become visible: U+2400 and the following are pictures of them.
_PICTURES = {**{code: 0x2400 + code for code in range(0x20)}, 0x7F: 0x2421}


def number(value: float | None, decimals: int | None = None) -> str:
    """Formats a number for reading, with the decimals that fit; None is a dash."""
    if value is None:
        return "–"
    if not math.isfinite(value) or abs(value) >= 1e15:
        return f"{value:.3g}"
    if isinstance(value, int) or (decimals is None and abs(value) >= 1000):
        return f"{value:,.0f}"
    if decimals is None:
        decimals = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{decimals}f}"


def percent(part: float, whole: float) -> str:
    """Formats a share. A small share differs from 0."""
    share = part / whole if whole else 0
    digits = f"{100 * share:.{2 if share >= 1e-3 else 3}f} %" if share else "0 %"
    return ("< 0.001 %" if 0 < share < 1e-5 else digits).replace(" ", "\N{NO-BREAK SPACE}")


def render(template: str, **values: Any) -> str:
    """Returns the page of a template with values. Text is escaped."""
    return _ENVIRONMENT.get_template(f"{template}.html").render(**values)


def macros(template: str) -> Any:
    """Returns the macros of a template as functions that return HTML."""
    return _ENVIRONMENT.get_template(f"{template}.html").module


def write_page(path: Path, page: str) -> Path:
    """Writes a page atomically and returns its path."""
    try:
        with atomic_path(path) as partial:
            partial.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from error
    return path


def _visible(value: Any) -> Any:
    return value.translate(_PICTURES) if type(value) is str else value


_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__, "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    finalize=_visible,
)
_ENVIRONMENT.filters |= {"number": number, "percent": percent}
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
