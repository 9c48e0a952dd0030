"""Checks of JSON values: errors name the path of the wrong value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import pytest

from keras_transformer.errors import InputError
from keras_transformer.schema import Limits, check_json, check_scalar
from tests.builders import refuses
from tests.messages import mentions


class _Named(TypedDict):
    name: str


class Person(_Named, total=False):
    age: int | None


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, {"a": [math.nan]}),
        (str, ""),
        (bool, False),
        (int, 3),
        (float, 3),
        (float, 0.5),
        (float, 10**400),
        (float | None, None),
        (Literal["a", "b"], "b"),
        (Annotated[float, Limits(least=0, below=1)], 0),
        (Annotated[int, Limits(above=0, most=9)] | None, 9),
        (Sequence[int], []),
        (tuple[str, ...], ["a", "b"]),
        (Mapping[str, Mapping[str, Any]], {"a": {"b": 1}}),
        (Person, {"name": "Ada"}),
        (Person, {"name": "Ada", "age": None}),
    ],
)
def test_valid_values(hint: Any, value: Any) -> None:
    check_json("it", hint, value)


@pytest.mark.parametrize(
    ("hint", "value", "facts"),
    [
        (str, 3, ("it", "3")),
        (str, None, ("it", "None")),
        (bool, 1, ("it", "1", "true", "false")),
        (bool, "false", ("it", "'false'", "true")),
        (int, True, ("it", "True")),
        (int, 3.0, ("it", "3.0")),
        (float, math.inf, ("it", "inf")),
        (int | None, "none", ("it", "none")),
        (Literal["a", "b"], ["a"], ("it", "['a']", "a", "b")),
        (Annotated[float, Limits(least=0, below=1)], -0.5, ("it", "-0.5", "0")),
        (Annotated[float, Limits(least=0, below=1)], 1, ("it", "1")),
        (Annotated[int, Limits(most=2000)] | None, 2001, ("it", "2001", "2,000", "none")),
        (Sequence[int], "12", ("it", "12")),
        (Sequence[int], [1, "2"], ("it[1]", "2")),
        (Mapping[str, int], [1], ("it", "[1]")),
        (Mapping[str, int], {"a": None}, ("it.a", "None")),
        (Mapping[Literal["a"], int], {"b": 1}, ("it", "'b'", "a")),
        (Person, {}, ("it", "{}", "name", "age")),
        (Person, {"name": "Ada", "age": "36"}, ("it.age", "36")),
    ],
)
def test_invalid_values(hint: Any, value: Any, facts: tuple[str, ...]) -> None:
    refuses(check_json, {"label": "it", "hint": hint, "value": value}, *facts)


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (int, "7", 7),
        (int, 7.0, 7),
        (float, "7", 7.0),
        (float, 7, 7.0),
        (bool, "false", False),
        (str, "7", "7"),
        (float | None, "none", None),
        (Annotated[float, Limits(above=0)] | None, "0.5", 0.5),
    ],
)
def test_texts_and_whole_floats_are_converted_on_request(
    hint: Any, value: Any, converted: Any
) -> None:
    found = check_scalar("it", hint, value, convert=True)
    assert (type(found), found) == (type(converted), converted)
    if found != value:
        with pytest.raises(InputError, match=mentions("it", repr(value))):
            check_scalar("it", hint, value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *((int, value) for value in ("7.0", 7.5, math.nan, math.inf, True, [], None)),
        *((float, value) for value in ("nan", "inf", 10**400, False, [7])),
        (bool, "yes"),
        (str, 7),
    ],
)
def test_other_values_are_not_converted(hint: Any, value: Any) -> None:
    arguments = {"label": "it", "hint": hint, "value": value, "convert": True}
    refuses(check_scalar, arguments, "it", repr(value))
