"""Lines of published files, read strictly. Errors name file, line and field."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
from msgspec import Meta, Struct

from benchctl.errors import InvalidData, UserError

_MOST = 10**9  # tokens or steps of a turn, or its seconds
_LATEST_S = 253_402_300_799  # the end of the year 9999

Name = Annotated[str, Meta(min_length=1)] | int
Counts = list[Annotated[int, Meta(ge=0, le=_MOST)]]
Times = list[Annotated[float, Meta(ge=0, le=_MOST)]]


class Choice(Struct, frozen=True):
    """One answer to all turns of a question; what its program does not write is None."""

    turns: list[str]
    new_tokens: Counts | None = None
    wall_time: Times | None = None
    idxs: Counts | None = None
    decoding_steps: Counts | None = None
    accept_lengths: Counts | None = None
    rest_lengths: Counts | None = msgspec.field(name="accept_lengths:", default=None)


class AnswerLine(Struct, frozen=True, kw_only=True):
    question_id: Name
    model_id: Name
    tstamp: Annotated[float, Meta(ge=0, le=_LATEST_S)] = 0.0  # in seconds since 1970
    choices: Annotated[list[Choice], Meta(min_length=1)]


@dataclass(frozen=True)
class Line:
    """A line of a file, and where it stands."""

    path: Path
    number: int
    content: AnswerLine

    def refuse(self, problem: str) -> NoReturn:
        raise _not_as_published(self.path, self.number, problem)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file. Raises UserError for a file that cannot be read, InvalidData for a line that is no object
    or lacks the fields of an answer."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _line(path, number, text)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: cannot be read: {error.strerror}.") from error


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidData(
            "no_object", f"{path}:{number}: is no JSON object. Give a file of answers, one JSON object a line."
        ) from error
    try:
        return Line(path, number, msgspec.json.decode(text, type=AnswerLine))
    except msgspec.ValidationError as error:
        raise _not_as_published(path, number, str(error)) from error


def _not_as_published(path: Path, number: int, problem: str) -> InvalidData:
    return InvalidData("not_as_published", f"{path}:{number}: {problem}. Give the file as it was published.")
