"""Declares settings, and checks them against type hints."""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from keras_transformer.errors import InputError, one_line

_EXPECTED = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
}


class Limits(NamedTuple):
    """The range of a number, as the metadata of an `Annotated` type."""

    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None

    def allow(self, number: float) -> bool:
        """Returns True if a number is in the range."""
        tests = zip(self, (operator.ge, operator.gt, operator.lt, operator.le), strict=True)
        return all(limit is None or holds(number, limit) for limit, holds in tests)

    def __str__(self) -> str:
        """Returns the range, such as "at least 0 and less than 1"."""
        words = ("at least", "more than", "less than", "at most")
        limits = zip(words, self, strict=True)
        return " and ".join(f"{word} {limit:,}" for word, limit in limits if limit is not None)


# Search settings and positions become int32 tensors. Search settings are also multiplied with each
# other.
MOST = 2**20

PositiveInt = Annotated[int, Limits(above=0)]
PositiveFloat = Annotated[float, Limits(above=0)]
NonNegativeInt = Annotated[int, Limits(least=0)]
NonNegativeFloat = Annotated[float, Limits(least=0)]
Rate = Annotated[float, Limits(least=0, below=1)]
Size = Annotated[int, Limits(least=1, most=MOST)]
Count = Annotated[int, Limits(least=0, most=MOST)]
Weight = Annotated[float, Limits(least=0, most=MOST)]


def setting(default: Any, help: str, *, may_change: bool = False, flag: bool = False) -> Any:
    """Declares a field of `Settings`: its default, its help, and whether commands have a flag.

    With `may_change`, a run that resumes may change it: limits and intervals, and how a step is
    computed. Earlier steps stay, and later ones differ only by rounding. num_microbatches also
    changes dropout masks, but a run must be able to move to a machine with less memory.
    """
    metadata = {"help": help, "may_change": may_change, "flag": flag}
    return dataclasses.field(default=default, metadata=metadata)


def flag(default: Any, help: str, *, may_change: bool = False) -> Any:
    """Declares a field of `Settings` that commands have a flag for."""
    return setting(default, help, may_change=may_change, flag=True)


@dataclasses.dataclass(frozen=True)
class Settings:
    """A section of a configuration. Subclasses declare their fields by `setting`.

    Strings, as from `--set`, are converted to the types of the fields. A field may also be a group:
    another `Settings`, whose fields are addressed by name like those of the section.
    """

    section: ClassVar[str]

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):
            if not isinstance(field.default, Settings):
                label, value = f"{self.section}.{field.name}", getattr(self, field.name)
                value = check_scalar(label, hints[field.name], value, convert=True)
                object.__setattr__(self, field.name, value)

    @classmethod
    def declarations(cls) -> dict[str, dataclasses.Field[Any]]:
        """Returns the fields by name, including those of groups."""
        declared: dict[str, dataclasses.Field[Any]] = {}
        for field in dataclasses.fields(cls):
            group = field.default
            declared |= group.declarations() if isinstance(group, Settings) else {field.name: field}
        return declared

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings with these values, and defaults for other fields."""
        values = dict(values)
        for field in dataclasses.fields(cls):
            if isinstance(group := field.default, Settings):
                names = group.declarations().keys() & values.keys()
                values[field.name] = type(group)(**{name: values.pop(name) for name in names})
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Returns the values by name, including those of groups."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            values |= value.as_dict() if isinstance(value, Settings) else {field.name: value}
        return values

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with changed fields, including those of groups."""
        return self.from_dict({**self.as_dict(), **changes})


def check_scalar(label: str, hint: Any, value: Any, convert: bool = False) -> Any:
    """Checks a single value, and returns it as the type `hint`.

    The type is str, bool, int, float (also for whole numbers), a Literal of strings and bools, an
    Annotated number with `Limits`, or one of these or None. With `convert`, texts of flags such as
    "3", "true" and "none" are accepted, too, and 3.0 as a whole number.
    """
    kind = without_none(hint)
    or_none = "" if kind is hint else ", or none"
    if or_none and (value is None or (convert and value == "none")):
        return None
    limits = Limits()
    if typing.get_origin(kind) is Annotated:
        kind, limits = typing.get_args(kind)
    number = _parse(kind, value) if convert else value
    if typing.get_origin(kind) is Literal:
        names = typing.get_args(kind)
        require_type(number in names, label, value, "one of " + ", ".join(map(str, names)).lower())
        return number
    fits = type(number) is kind or (kind is float and type(number) is int)
    finite = not isinstance(number, float) or math.isfinite(number)
    require_type(fits and finite, label, value, _EXPECTED[kind])
    require_type(kind in (str, bool) or limits.allow(number), label, number, f"{limits}{or_none}")
    return number


def without_none(hint: Any) -> Any:
    """Returns X for the hint `X | None`, and any other hint unchanged."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    [required] = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
    return required


def _parse(kind: Any, value: Any) -> Any:
    """Returns `value` as a bool, an int or a float; unchanged if that would change its meaning."""
    if (kind is bool or True in typing.get_args(kind)) and value in (True, False, "true", "false"):
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


def require_type(fits: bool, label: str, value: Any, expected: str) -> None:
    """Raises an `InputError` unless a value `fits`."""
    if not fits:
        raise InputError(f"{label} is {one_line(repr(value))}. It must be {expected}.")
