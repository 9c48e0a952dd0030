"""A file of JSON read field by field; what is missing or odd is named as the user's mistake."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError

_MOST = 2**53  # counts beyond it are exact no longer everywhere


@dataclasses.dataclass(frozen=True)
class Field:
    """A value of a JSON file, and where it stands in it.

    Every method but `read` raises `InputError`, naming file and field, where the value is
    none of its kind.
    """

    path: Path
    name: str  # as "train.source.tokens"; "" for the whole file
    value: Any

    @classmethod
    def read(cls, path: Path) -> Field:
        """Reads a whole file.

        Raises:
            InputError: where it is missing, unreadable or no JSON.
        """
        try:
            return cls(path, "", json.loads(path.read_bytes()))
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}); expected a directory of prepared data"
            ) from error
        except (ValueError, RecursionError):
            raise InputError(f"{path} is no JSON; expected what bin/prepare.py has left") from None

    def __getitem__(self, key: str) -> Field:
        """Returns a field of an object, which must have it."""
        fields = self.fields()
        if key not in fields:
            raise InputError(
                f"{self.path} has no field {self._child(key)}; expected a report of this version "
                "of bin/prepare.py"
            )
        return fields[key]

    def fields(self) -> dict[str, Field]:
        """Returns all fields of an object, by name."""
        if not isinstance(self.value, dict):
            raise self._error("an object")
        return {key: Field(self.path, self._child(key), value) for key, value in self.value.items()}

    def items(self) -> list[Field]:
        """Returns the items of a list."""
        if not isinstance(self.value, list):
            raise self._error("a list")
        return [
            Field(self.path, f"{self.name}[{number}]", value)
            for number, value in enumerate(self.value)
        ]

    def counts(self) -> dict[str, int]:
        """Returns an object of counts."""
        return {key: field.count() for key, field in self.fields().items()}

    def count(self) -> int:
        """Returns an integer of 0 or more."""
        if type(self.value) is not int or not 0 <= self.value <= _MOST:
            raise self._error("a count")
        return self.value

    def number(self) -> float:
        """Returns a number of 0 or more."""
        if type(self.value) is float and math.isfinite(self.value) and self.value >= 0:
            return self.value
        if type(self.value) is not int or not 0 <= self.value <= _MOST:
            raise self._error("a number of 0 or more")
        return float(self.value)

    def text(self) -> str:
        """Returns a string."""
        if not isinstance(self.value, str):
            raise self._error("a text")
        return self.value

    def setting(self) -> Any:
        """Returns a value of an option: null, a boolean, a number, a string, or a list of those."""
        values = self.value if isinstance(self.value, list) else [self.value]
        if not all(isinstance(value, str | int | float | None) for value in values):
            raise self._error("a value of an option")
        return self.value

    def _child(self, key: str) -> str:
        shown = key if key.isprintable() else ascii(key)
        return f"{self.name}.{shown}" if self.name else shown

    def _error(self, expected: str) -> InputError:
        shown = reprlib.repr(self.value)  # which is short
        return InputError(f"{self.path}: {self.name or 'all'} is {shown}; expected {expected}")
