"""JSON files that people write: read, and their values checked by type hints.

Unlike the fields of a configuration, which `--set` gives as text, a value has to be of its type.
"""

from __future__ import annotations

import collections.abc
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, Literal

from keras_transformer.errors import InputError

_EXPECTED = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
}


def read_json(path: Path) -> Any:
    """Returns what a JSON file says.

    Raises:
        InputError: for what is no JSON, and a name that stands twice in an object, where one of
            the two would be lost; it does not name the file.
        OSError: for a file that cannot be read.
        RecursionError: for JSON that is nested too deep.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"this is no JSON: {error}; expected an object") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name!r} stands twice in the same object; expected each name once")
    return dict(pairs)


def check_json(place: str, hint: Any, value: Any) -> None:
    """Checks a value as the `json` module reads it.

    Args:
        place: what an error calls it, as `settings`; what is in it has its names behind.
        hint: str, bool, int, float (which whole numbers are, too), Any, a Literal of texts, a type
            or None, a Sequence or tuple of one type, a Mapping, or a TypedDict.
        value: the value; of unlimited depth only where `hint` says Any.

    Raises:
        InputError: for a value of another type; it names the innermost place.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin is types.UnionType:
        if value is not None:
            [hint] = [arm for arm in arguments if arm is not types.NoneType]
            check_json(place, hint, value)
    elif origin is Literal:
        _require(value in arguments, place, value, f"one of {', '.join(arguments)}")
    elif typing.is_typeddict(hint):
        hints, needed = typing.get_type_hints(hint), hint.__required_keys__
        optional = (f"perhaps {key}" for key in sorted(hints.keys() - needed))
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
        fits = type(value) is hint or (hint is float and type(value) is int)
        finite = not isinstance(value, float) or math.isfinite(value)
        _require(fits and finite, place, value, _EXPECTED[hint])


def _require(fits: bool, place: str, value: Any, expected: str) -> None:
    if not fits:
        raise InputError(f"{place} is {value!r}; expected {expected}")
