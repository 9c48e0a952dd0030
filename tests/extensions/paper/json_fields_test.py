"""Checks of JSON values: errors name the path of the wrong value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import pytest

from keras_transformer.extensions.paper.json_fields import check_json
from tests.builders import refuses


class NamedBeing(TypedDict):
    name: str


class Person(NamedBeing, total=False):
    age: int | None


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, {"a": [math.nan]}),
        (float, 3),
        (float | None, None),
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
        (bool, "false", ("it", "'false'", "true")),
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
