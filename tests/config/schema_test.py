"""Checks of single values: types, choices, ranges, and strings of flags."""

import math
from typing import Annotated, Any, Literal

import pytest

from keras_transformer.config.schema import Limits, check_scalar
from keras_transformer.errors import one_line
from tests.builders import refuses

SHARE = Annotated[float, Limits(least=0, below=1)]
FEW = Annotated[int, Limits(above=0, most=2000)] | None


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, ""), (bool, False), (int, 3), (float, 3), (float, 0.5), (float, 10**400),
        (float | None, None), (Literal["a", "b"], "b"), (SHARE, 0), (FEW, 2000),
    ],
)  # fmt: skip
def test_valid_values(hint: Any, value: Any) -> None:
    assert check_scalar("it", hint, value) == value


@pytest.mark.parametrize(
    ("hint", "value", "facts"),
    [
        (str, 3, ()),
        (str, None, ()),
        (bool, 1, ("true", "false")),
        (int, True, ()),
        (int, 3.0, ()),
        (float, math.inf, ()),
        (int | None, "none", ()),
        (Literal["a", "b"], ["a"], ("a", "b")),
        (SHARE, -0.5, ("0",)),
        (SHARE, 1, ()),
        (FEW, 2001, ("2,000", "none")),
    ],
)
def test_invalid_values(hint: Any, value: Any, facts: tuple[str, ...]) -> None:
    refuses(check_scalar, {"label": "it", "hint": hint, "value": value}, "it", repr(value), *facts)


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (int, "7", 7),
        (int, 7.0, 7),
        (float, "7", 7.0),
        (bool, "false", False),
        (float | None, "none", None),
        (Annotated[float, Limits(above=0)] | None, "0.5", 0.5),
    ],
)
def test_texts_and_whole_floats_are_converted_on_request(
    hint: Any, value: Any, converted: Any
) -> None:
    found = check_scalar("it", hint, value, convert=True)
    assert (type(found), found) == (type(converted), converted)


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
    refuses(check_scalar, arguments, "it", one_line(repr(value)))
