"""Values of JSON are taken as they are, or told with their place."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import pytest

from keras_transformer.errors import InputError
from keras_transformer.schema import check_json
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
def test_what_does_not(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_json("it", hint, value)
    assert re.search(message, str(error.value))
