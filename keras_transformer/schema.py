"""Checks user input from JSON files and settings against type hints."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import math
import operator
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from keras_transformer.errors import InputError

_EXPECTED = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The range of a number, as the metadata of an `Annotated` type."""

    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None

    def violation(self, value: float) -> str | None:
        """Returns the range, such as "at least 0 and less than 1", if `value` is outside of it."""
        limits = [
            (f"{name} {limit:,}", holds(value, limit))
            for name, limit, holds in (
                ("at least", self.least, operator.ge),
                ("more than", self.above, operator.gt),
                ("less than", self.below, operator.lt),
                ("at most", self.most, operator.le),
            )
            if limit is not None
        ]
        if all(holds for _, holds in limits):
            return None
        return " and ".join(text for text, _ in limits)


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file. The message of an `InputError` does not name the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"This is not JSON: {error}") from None


def nested(value: Any, *keys: str) -> Any:
    """Returns the value under nested keys of any JSON value, or None if it is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name!r} occurs twice in the same object")
    return dict(pairs)


def check_json(place: str, hint: Any, value: Any) -> None:
    """Checks the type of a value that the `json` module returned.

    Args:
        place: name of the value in errors, such as `settings`. Errors about a part of the value
            add the path to it, such as `settings.seed`.
        hint: a scalar type for `check_scalar`, Any, a Sequence or tuple of one type, a Mapping, a
            TypedDict, or one of these or None.
    """
    required = _without_none(hint)
    origin, arguments = typing.get_origin(required), typing.get_args(required)
    if hint is Any or (value is None and required is not hint):
        return
    if typing.is_typeddict(required):
        hints, needed = typing.get_type_hints(required), required.__required_keys__
        optional = (f"optionally {key}" for key in sorted(hints.keys() - needed))
        expected = ", ".join([*sorted(needed), *optional])
        fits = isinstance(value, dict) and needed <= value.keys() <= hints.keys()
        _require(fits, place, value, f"an object with {expected}")
        for key, each in value.items():
            check_json(f"{place}.{key}", hints[key], each)
    elif origin is collections.abc.Mapping:
        _require(isinstance(value, dict), place, value, "an object with names")
        for key, each in value.items():
            check_json(f"a name in {place}", arguments[0], key)
            check_json(f"{place}.{key}", arguments[1], each)
    elif origin in (collections.abc.Sequence, tuple):
        _require(isinstance(value, list), place, value, "a list")
        for index, each in enumerate(value):
            check_json(f"{place}[{index}]", arguments[0], each)
    else:
        check_scalar(place, hint, value)


def check_scalar(place: str, hint: Any, value: Any, convert: bool = False) -> Any:
    """Checks a single value, and returns it as the type `hint`.

    Args:
        hint: str, bool, int, float (also for whole numbers), a Literal of strings, an Annotated
            number with `Bounds`, or one of these or None.
        convert: also accept strings of command-line flags, such as "3", "true" and "none", and
            3.0 as a whole number.
    """
    required = _without_none(hint)
    if required is not hint and (value is None or (convert and value == "none")):
        return None
    or_none = "" if required is hint else ", or none"
    kind, bounds = required, None
    if typing.get_origin(required) is Annotated:
        kind, bounds = typing.get_args(required)
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        _require(value in choices, place, value, f"one of {', '.join(choices)}")
        return value
    number = _converted(kind, value) if convert else value
    fits = type(number) is kind or (kind is float and type(number) is int)
    finite = not isinstance(number, float) or math.isfinite(number)
    _require(fits and finite, place, value, _EXPECTED[kind])
    if bounds is not None and (limit := bounds.violation(number)):
        raise InputError(f"{place} is {number!r}. It must be {limit}{or_none}.")
    return number


def _without_none(hint: Any) -> Any:
    """Returns X for the hint `X | None`, and any other hint unchanged."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    [required] = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
    return required


def _converted(kind: type, value: Any) -> Any:
    """Returns `value` as a bool, an int or a float; unchanged if that would change its meaning."""
    if kind is bool and value in (True, False, "true", "false"):
        return value in (True, "true")
    if kind not in (int, float) or isinstance(value, bool):
        return value
    try:
        number = kind(value)
    except (TypeError, ValueError):
        return value
    except OverflowError:  # an infinity as an int, or a large int as a float
        return math.nan
    return number if kind is float or isinstance(value, str) or number == value else value


def _require(fits: bool, place: str, value: Any, expected: str) -> None:
    if not fits:
        raise InputError(f"{place} is {value!r}. It must be {expected}.")
