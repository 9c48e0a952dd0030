"""Values of JSON are taken as they are, or told with their place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import pytest

from keras_transformer.errors import InputError
from keras_transformer.schema import Bounds, check_json, check_scalar


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
        (Annotated[float, Bounds(least=0, below=1)], 0),
        (Annotated[int, Bounds(above=0, most=9)] | None, 9),
        (Sequence[int], []),
        (tuple[str, ...], ["a", "b"]),
        (Mapping[str, Mapping[str, Any]], {"a": {"b": 1}}),
        (Person, {"name": "Ada"}),
        (Person, {"name": "Ada", "age": None}),
    ],
)
def test_what_fits(hint: Any, value: Any) -> None:
    check_json("it", hint, value)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (str, 3, "it is 3; expected text"),
        (str, None, "it is None; expected text"),
        (bool, 1, "it is 1; expected true or false"),
        (bool, "false", "it is 'false'; expected true or false"),
        (int, True, "it is True; expected a whole number"),
        (int, 3.0, "it is 3.0; expected a whole number"),
        (float, True, "it is True; expected a finite number"),
        (float, math.inf, "it is inf; expected a finite number"),
        (int | None, "none", "it is 'none'; expected a whole number"),
        (Literal["a", "b"], ["a"], "it is ['a']; expected one of a, b"),
        (Annotated[float, Bounds(least=0, below=1)], -0.5, "it is -0.5; expected at least 0"),
        (Annotated[float, Bounds(least=0, below=1)], 1, "it is 1; expected less than 1"),
        (Annotated[int, Bounds(above=0, most=2000)], 0, "it is 0; expected more than 0"),
        (
            Annotated[int, Bounds(most=2000)] | None,
            2001,
            "it is 2001; expected at most 2,000, or none",
        ),
        (Sequence[int], "12", "it is '12'; expected a list"),
        (Sequence[int], [1, "2"], "it[1] is '2'; expected a whole number"),
        (Mapping[str, int], [1], "it is [1]; expected an object with names"),
        (Mapping[str, int], {"a": None}, "it.a is None; expected a whole number"),
        (Mapping[Literal["a"], int], {"b": 1}, "a name in it is 'b'; expected one of a"),
        (Person, {}, "it is {}; expected an object with name, perhaps age"),
        (Person, {"name": "Ada", "sex": 1}, "expected an object with name, perhaps age"),
        (Person, {"name": "Ada", "age": "36"}, "it.age is '36'; expected a whole number"),
    ],
)
def test_what_does_not(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_json("it", hint, value)
    assert str(error.value).endswith(message)


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
        (Annotated[float, Bounds(above=0)] | None, "0.5", 0.5),
    ],
)
def test_texts_and_whole_floats_are_converted_on_request(
    hint: Any, value: Any, converted: Any
) -> None:
    found = check_scalar("it", hint, value, convert=True)
    assert (type(found), found) == (type(converted), converted)
    if found != value:
        with pytest.raises(InputError, match=f"it is {value!r}; expected"):
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
    assert str(error.value).startswith(f"it is {value!r}; expected ")
