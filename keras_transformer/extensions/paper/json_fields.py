"""Checks JSON files of users against type hints."""

from __future__ import annotations

import collections.abc
import json
import typing
from pathlib import Path
from typing import Any

from keras_transformer.config.schema import check_scalar, require_type, without_none
from keras_transformer.errors import InputError


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file. The message of an `InputError` does not name the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"This is not JSON: {error}") from None


def check_json(label: str, hint: Any, value: Any) -> None:
    """Checks the type of a value that the `json` module returned.

    The type is a scalar type for `check_scalar`, Any, a Sequence or tuple of one type, a Mapping, a
    TypedDict, or one of these or None. Errors about a part of the value add the path to it to the
    label, as in `settings.seed`.
    """
    required = without_none(hint)
    origin, arguments = typing.get_origin(required), typing.get_args(required)
    if hint is Any or (value is None and required is not hint):
        return
    if typing.is_typeddict(required):
        hints, needed = typing.get_type_hints(required), required.__required_keys__
        optional = (f"optionally {key}" for key in sorted(hints.keys() - needed))
        expected = ", ".join([*sorted(needed), *optional])
        fits = isinstance(value, dict) and needed <= value.keys() <= hints.keys()
        require_type(fits, label, value, f"an object with {expected}")
        for key, member in value.items():
            check_json(f"{label}.{key}", hints[key], member)
    elif origin is collections.abc.Mapping:
        require_type(isinstance(value, dict), label, value, "an object with names")
        for key, member in value.items():
            check_json(f"a name in {label}", arguments[0], key)
            check_json(f"{label}.{key}", arguments[1], member)
    elif origin in (collections.abc.Sequence, tuple):
        require_type(isinstance(value, list), label, value, "a list")
        for index, member in enumerate(value):
            check_json(f"{label}[{index}]", arguments[0], member)
    else:
        check_scalar(label, hint, value)
