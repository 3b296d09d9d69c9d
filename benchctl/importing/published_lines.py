"""Lines of published files, read strictly. Errors name file, line and field."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta, Struct

from benchctl.errors import InvalidData
from benchctl.records.reader import read_file

_MOST = 10**9  # tokens or steps of a turn, or its seconds
_LATEST_S = 253_402_300_799  # the end of the year 9999

Name = Annotated[str, Meta(min_length=1)] | int
Counts = list[Annotated[int, Meta(ge=0, le=_MOST)]]
Times = list[Annotated[float, Meta(ge=0, le=_MOST)]]
Winner = Literal["model_1", "tie", "model_2", "error"]


class Choice(Struct, frozen=True):
    """One answer to all turns of a question; what its program does not write is None."""

    turns: list[str]
    new_tokens: Counts | None = None
    wall_time: Times | None = None
    idxs: Counts | None = None
    decoding_steps: Counts | None = None
    accept_lengths: Counts | None = None
    rest_lengths: Counts | None = msgspec.field(name="accept_lengths:", default=None)


class _Line(Struct, frozen=True, kw_only=True):
    question_id: Name
    tstamp: Annotated[float, Meta(ge=0, le=_LATEST_S)] = 0.0  # in seconds since 1970


class AnswerLine(_Line, frozen=True, kw_only=True):
    model_id: Name
    choices: Annotated[list[Choice], Meta(min_length=1)]


class _Judgement(_Line, frozen=True, kw_only=True):
    turn: Literal[1, 2]
    judge: str | list[str]


class OneJudged(_Judgement, frozen=True, kw_only=True):
    model: Name
    score: Annotated[float, Meta(ge=-1, le=10)]
    user_prompt: str = ""
    judgment: str = ""


class TwoJudged(_Judgement, frozen=True, kw_only=True):
    model_1: Name
    model_2: Name
    g1_winner: Winner
    g1_user_prompt: str = ""
    g1_judgment: str = ""
    g2_winner: Winner | None = None  # a judge may have been asked for one order alone
    g2_user_prompt: str = ""
    g2_judgment: str = ""


class _Kind(Struct):
    judge: Any = None
    choices: Any = None
    model: Any = None


@dataclass(frozen=True)
class Line:
    """A line of a file, and where it stands."""

    path: Path
    number: int
    content: AnswerLine | OneJudged | TwoJudged

    def refuse(self, problem: str) -> NoReturn:
        raise not_as_published(self.path, self.number, problem)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file. Raises UserError for a file that cannot be read, InvalidData for a line that holds no
    object, or not what answers and judgements hold."""
    for number, text in enumerate(read_file(path).splitlines(), 1):
        if text.strip():
            yield _line(path, number, text)


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        kind = msgspec.json.decode(text, type=_Kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidData(
            "no_object", f"{path}:{number}: is no JSON object. Give a file of answers, one JSON object a line."
        ) from error
    expected: type[AnswerLine | OneJudged | TwoJudged] = AnswerLine
    if kind.judge is not None and kind.choices is None:
        expected = TwoJudged if kind.model is None else OneJudged
    try:
        return Line(path, number, msgspec.json.decode(text, type=expected))
    except msgspec.ValidationError as error:
        raise not_as_published(path, number, str(error)) from error
    except UnicodeDecodeError as error:  # in a field that the first reading skips
        raise InvalidData("no_object", f"{path}:{number}: is not UTF-8 text. Give the file as written.") from error


def not_as_published(path: Path, number: int, problem: str) -> InvalidData:
    """The error of line `number`."""
    return InvalidData("not_as_published", f"{path}:{number}: {problem}. Give the file as it was published.")
