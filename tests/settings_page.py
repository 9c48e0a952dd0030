"""Writes docs/settings.md and the types of options for type checkers from the declarations.

Run: `python -m tests.settings_page`.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from keras_transformer.config import DecodingConfig, ModelConfig, TrainingConfig
from keras_transformer.config.model import OtherToolkits, TokenIds
from keras_transformer.config.schema import Settings, without_none

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
TYPES = ROOT / "keras_transformer" / "config" / "options.pyi"
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


def type_of(hint: Any) -> str:
    """Returns a type as source text, such as "int | None"."""
    if (required := without_none(hint)) is not hint:
        return f"{type_of(required)} | None"
    if typing.get_origin(hint) is Literal:
        return str(hint).removeprefix("typing.").replace("'", '"')
    sequences = {tuple: "Sequence[str]", Mapping: "Mapping[str, float]"}
    return sequences.get(typing.get_origin(hint)) or hint.__name__


def types_of(declaring: type) -> dict[str, str]:
    """Returns the types of the fields of a class, including those of groups."""
    types: dict[str, str] = {}
    for name, hint in typing.get_type_hints(declaring).items():
        if isinstance(hint, type) and issubclass(hint, Settings):
            types |= types_of(hint)
        elif name != "section":
            types[name] = type_of(hint)
    return types


def stub() -> str:
    """Returns the module with a `TypedDict` for each group of options."""
    from keras_transformer.data.options import PrepareOptions
    from keras_transformer.extensions.converters import ConvertOptions
    from keras_transformer.training.training_run import TrainOptions  # late: TensorFlow

    search, model, prepare = map(types_of, (DecodingConfig, ModelConfig, PrepareOptions))
    training = types_of(TrainingConfig) | types_of(TrainOptions)
    both = {f"decoding__{name}": search[name] for name in search if name in training}
    del prepare["valid_pairs"], training["init_from"]  # arguments of their own
    others = {"num_workers": "int | None", "ray": "str | None"}
    others |= {f"{side}_language": "str | None" for side in ("source", "target")}
    load = {"precision": "str", "jit_compile": "bool", "threads": "int | None"}
    sections: dict[str, Mapping[str, str]] = {
        "SearchOptions(TypedDict": search,
        "LoadOptions(SearchOptions": load,
        "Scoring(TypedDict": {"tokenize": "str | None", "lowercase": "bool"},
        "ConvertSettings(TypedDict": types_of(ConvertOptions),
        "PrepareSettings(TypedDict": prepare | others,
        "TrainSettings(TypedDict": model | search | training | both,
    }
    text = "# Written by `python -m tests.settings_page`.\n"
    text += "from collections.abc import Mapping, Sequence\nfrom typing import Literal, TypedDict\n"
    for head, options in sections.items():
        fields = (f"    {name}: {kind}\n" for name, kind in options.items())
        text += f"\nclass {head}, total=False):\n{''.join(fields)}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TYPES.write_text(stub(), encoding="utf-8")
