"""Answers in published files of five programs. Errors name file, line and field.

| format | written by | counts steps as | also has |
|---|---|---|---|
| spec-bench | hemingkx/Spec-Bench, evaluation/eval.py | decoding_steps, a number or a last index | accept_lengths |
| rest | FasterDecoding/REST, llm_judge/gen_model_answer_rest.py | idxs, the last index | "accept_lengths:" |
| medusa, eagle | FasterDecoding/Medusa, SafeAILab/EAGLE, gen_*_answer*.py | idxs, the last index | |
| fastchat | lm-sys/FastChat, fastchat/llm_judge | no counts or times; judgements: published_judgements.py | |

All count `new_tokens` by the loop of the method, which may pass the stop token by the rest of a step. Spec-Bench's
evaluation/speed.py compares that with a count of the baseline's re-tokenised text, which favours the method; here both
sides' own counts are used.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeGuard

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
        raise InvalidData(
            "not_as_published", f"{self.path}:{self.number}: {problem}. Give the file as it was published."
        )

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
        raise UserError("cannot_read", f"{path}: cannot be read: {error.strerror}.") from error


def _object(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidData(
            "no_object", f"{path}:{number}: is no JSON object. Give a file of answers, one JSON object a line."
        )
    return fields


def _is_number(value: object, most: float, least: float = 0.0) -> TypeGuard[int | float]:
    """By comparing alone: to make a float of a whole number of any length fails."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]


Format = Literal["spec-bench", "eagle", "medusa", "rest", "fastchat"]
FORMATS: Final[tuple[Format, ...]] = ("spec-bench", "eagle", "medusa", "rest", "fastchat")

FAILED: Final = "ERROR"  # what all of them write for a turn that raised an error, beside the turn's numbers before it


@dataclass(frozen=True)
class Answer:
    """An answer to one turn; None where its file lacks it. `choice` numbers the answers to one question."""

    prompt_id: str
    turn: int
    choice: int
    text: str
    new_tokens: int | None = None
    steps: int | None = None
    wall_s: float | None = None

    @property
    def failed(self) -> bool:
        return self.text == FAILED


Steps = Callable[[Line, int], list[int | None]]


def is_judgement(line: Line) -> bool:
    return "judge" in line and "choices" not in line


def answers_of(line: Line, format: Format) -> Iterator[Answer]:
    """The answers in a line, turn by turn. Raises InvalidData where the line is not of that format."""
    prompt_id = line.identifier("question_id")
    choices = line.objects("choices")
    if not choices:
        line.refuse("choices is empty")
    for number, choice in enumerate(choices):
        texts = choice.texts("turns")
        turns = len(texts)
        new_tokens, steps, wall_s = _numbers(choice, format, turns)
        for turn, text in enumerate(texts):
            tokens, count = new_tokens[turn], steps[turn]
            if text != FAILED and tokens is not None and count is not None and count > tokens:
                line.refuse(f"turn {turn} has {count} steps for {tokens} new_tokens, but every step yields one")
            yield Answer(prompt_id, turn, number, text, tokens, count, wall_s[turn])


def format_of(line: Line) -> Format:
    """Which format a line is of. Raises InvalidData where that cannot be told."""
    if is_judgement(line):
        return "fastchat"
    choice = next(iter(line.objects("choices")), line)
    if "accept_lengths:" in choice:
        return "rest"
    if "decoding_steps" in choice or "accept_lengths" in choice:
        return "spec-bench"
    if "idxs" not in choice:
        return "fastchat"
    model = line.identifier("model_id").lower()
    for name in ("medusa", "eagle"):
        if name in model:
            return "medusa" if name == "medusa" else "eagle"
    line.refuse(f"'{model}' may be of Medusa or of EAGLE, whose files look the same: say --format")


def _numbers(choice: Line, format: Format, turns: int) -> tuple[list[int | None], list[int | None], list[float | None]]:
    """New tokens, steps and seconds of each turn."""
    if format == "fastchat":
        return [None] * turns, [None] * turns, [None] * turns
    new_tokens, wall_s, steps = choice.counts("new_tokens"), choice.seconds("wall_time"), _STEPS[format](choice, turns)
    if not len(new_tokens) == len(wall_s) == len(steps) == turns:
        choice.refuse(f"{turns} turns, but {len(new_tokens)} new_tokens, {len(wall_s)} wall_time, {len(steps)} steps")
    return list(new_tokens), steps, list(wall_s)


def _from_last_index(choice: Line, turns: int) -> list[int | None]:
    return [index + 1 for index in choice.counts("idxs")]


def _checked_with_lengths(choice: Line, turns: int) -> list[int | None]:
    steps = [index + 1 for index in choice.counts("idxs")]
    lengths = choice.counts("accept_lengths:")
    if sum(steps) != len(lengths):
        choice.refuse(f"idxs count {sum(steps)} steps, but accept_lengths {len(lengths)}")
    return list(steps)


def _matched_with_lengths(choice: Line, turns: int) -> list[int | None]:
    """Methods of Spec-Bench return the number of steps or the last one's index; there is one accept length per step."""
    counts = choice.counts("decoding_steps" if "decoding_steps" in choice else "idxs")
    lengths = len(choice.counts("accept_lengths"))
    if sum(counts) == lengths:
        return list(counts)
    return [index + 1 for index in counts] if sum(counts) + turns == lengths else [None] * turns


_STEPS: dict[str, Steps] = {
    "spec-bench": _matched_with_lengths,
    "rest": _checked_with_lengths,
    "medusa": _from_last_index,
    "eagle": _from_last_index,
}
