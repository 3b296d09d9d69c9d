"""Lines of other programs' JSONL files, with errors that name file, line and field."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeGuard

from benchctl.errors import InvalidData, UserError

_MOST: Final = 1e9  # tokens or steps of a turn, or its seconds
_LATEST_S: Final = 253_402_300_799.0  # the end of the year 9999


@dataclass(frozen=True)
class Line:
    """An object in a line of a file, or an object inside it. Its readers raise InvalidData for what is not as asked."""

    path: Path
    number: int
    fields: dict[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def refuse(self, problem: str) -> NoReturn:
        raise InvalidData(f"{self.path}:{self.number}: {problem}. Give the file as it was published.")

    def identifier(self, name: str) -> str:
        """A text, or a whole number as text."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self.refuse(f"{name} is {_shown(value)}, but should be a name or number")
        return str(value)

    def number_of(self, name: str) -> float:
        value = self.fields.get(name)
        if not _is_number(value, sys.float_info.max, -sys.float_info.max):
            self.refuse(f"{name} is {_shown(value)}, but should be a number")
        return float(value)

    def instant_s(self, name: str) -> float:
        """Seconds since 1970, of a year that a date can have."""
        value = self.fields.get(name)
        if not _is_number(value, _LATEST_S):
            self.refuse(f"{name} is {_shown(value)}, but should be in seconds since 1970")
        return float(value)

    def texts(self, name: str) -> list[str]:
        return [
            value if isinstance(value, str) else self.refuse(f"{name} holds {_shown(value)}, which is no text")
            for value in self._list(name)
        ]

    def counts(self, name: str) -> list[int]:
        """Whole numbers, none of them negative, or larger than any program counts to."""
        values = self._list(name)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
                self.refuse(f"{name} holds {_shown(value)}, which is no count")
        return values

    def seconds(self, name: str) -> list[float]:
        """Times, none of them negative, or longer than anybody waits."""
        values = self._list(name)
        for value in values:
            if not _is_number(value, _MOST):
                self.refuse(f"{name} holds {_shown(value)}, which is no time")
        return list(map(float, values))

    def objects(self, name: str) -> list["Line"]:
        values = self._list(name)
        if not all(isinstance(value, dict) for value in values):
            self.refuse(f"{name} should hold objects")
        return [Line(self.path, self.number, value) for value in values]

    def _list(self, name: str) -> list[Any]:
        value = self.fields.get(name)
        if not isinstance(value, list):
            self.refuse(f"{name} is {_shown(value)}, but should be a list")
        return value


def read_lines(path: Path) -> Iterator[Line]:
    """The objects in the lines of a file. Raises UserError for a file that cannot be read, InvalidData for a line that
    holds no object."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield Line(path, number, _object(path, number, text))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error


def _object(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidData(f"{path}:{number}: is no JSON object. Give a file of answers, one JSON object a line.")
    return fields


def _is_number(value: object, most: float, least: float = 0.0) -> TypeGuard[int | float]:
    """By comparing alone: to make a float of a whole number of any length fails."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
