"""Writes the tables of docs/settings.md from the declarations: `python -m tests.settings_page`."""

import dataclasses
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from keras_transformer.config import DecodingConfig, ModelConfig, TrainingConfig
from keras_transformer.config.model import OtherToolkits, TokenIds
from keras_transformer.config.schema import Settings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
# In the order of the page.
SECTIONS = (ModelConfig, TokenIds, OtherToolkits, TrainingConfig, DecodingConfig)


def values_of(hint: Any) -> str:
    """Returns the values that a type allows, such as "integer, more than 0"."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return f"{values_of(typing.get_args(hint)[0])}, or `none`"
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint)).lower()
    if typing.get_origin(hint) is Annotated:
        kind, limits = typing.get_args(hint)
        return f"{values_of(kind)}, {limits}"
    return {int: "integer", float: "number", bool: "`true`, `false`", str: "text"}[hint]


def table(settings: type[Settings]) -> str:
    """Returns the table of the fields that a class declares."""
    hints = typing.get_type_hints(settings, include_extras=True)
    rows = [("field", "values", "default", "flag", "may change", "meaning"), ("---",) * 6]
    for field in dataclasses.fields(settings):
        if not isinstance(field.default, Settings):
            default = {None: "`none`", "": ""}.get(field.default, f"`{field.default}`".lower())
            yes = ["yes" if field.metadata[rule] else "" for rule in ("flag", "may_change")]
            meaning = field.metadata["help"].replace("|", "\\|")
            rows.append((f"`{field.name}`", values_of(hints[field.name]), default, *yes, meaning))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page() -> str:
    """Returns the page with the tables of the present declarations."""
    tables = iter([table(settings) for settings in SECTIONS])
    return re.sub(r"(^\|.*\n)+", lambda _: next(tables), PAGE.read_text("utf-8"), flags=re.M)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
