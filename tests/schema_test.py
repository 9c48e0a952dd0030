"""Checks of JSON values: errors name the path of the wrong value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import pytest

from keras_transformer.errors import InputError
from keras_transformer.schema import Limits, check_json, check_scalar
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
    ("hint", "value", "message"),
    [
        (str, 3, mentions("it", "3")),
        (str, None, mentions("it", "None")),
        (bool, 1, mentions("it", "1", "true", "false")),
        (bool, "false", mentions("it", "'false'", "true")),
        (int, True, mentions("it", "True")),
        (int, 3.0, mentions("it", "3.0")),
        (float, True, mentions("it", "True")),
        (float, math.inf, mentions("it", "inf")),
        (int | None, "none", mentions("it", "none")),
        (Literal["a", "b"], ["a"], mentions("it", "['a']", "a", "b")),
        (Annotated[float, Limits(least=0, below=1)], -0.5, mentions("it", "-0.5", "0")),
        (Annotated[float, Limits(least=0, below=1)], 1, mentions("it", "1")),
        (Annotated[int, Limits(above=0, most=2000)], 0, mentions("it", "0")),
        (Annotated[int, Limits(most=2000)] | None, 2001, mentions("it", "2001", "2,000", "none")),
        (Sequence[int], "12", mentions("it", "12")),
        (Sequence[int], [1, "2"], mentions("it[1]", "2")),
        (Mapping[str, int], [1], mentions("it", "[1]")),
        (Mapping[str, int], {"a": None}, mentions("it.a", "None")),
        (Mapping[Literal["a"], int], {"b": 1}, mentions("it", "'b'", "a")),
        (Person, {}, mentions("it", "{}", "name", "age")),
        (Person, {"name": "Ada", "sex": 1}, mentions("name", "age")),
        (Person, {"name": "Ada", "age": "36"}, mentions("it.age", "36")),
    ],
)
def test_invalid_values(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_json("it", hint, value)
    assert re.search(message, str(error.value))


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
    with pytest.raises(InputError) as error:
        check_scalar("it", hint, value, convert=True)
    assert re.search(mentions("it", repr(value)), str(error.value))
