"""Prompt files: one JSON object a line, read into prompts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchctl.errors import UserError


@dataclass(frozen=True)
class Line:
    """The fields of one line of a prompt file, and where the line stands."""

    file: str
    number: int
    fields: Mapping[str, object]

    def error(self, id: str, problem: str) -> UserError:
        return UserError(id, f"{self.file}:{self.number}: {problem}")

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(field) is not None

    def identifier(self, field: str) -> str:
        """A text or whole-number id as text."""
        value = self._value(field)
        return str(value) if type(value) is int else self._filled(field, value)

    def text(self, field: str) -> str:
        """A text that is not blank."""
        return self._filled(field, self._value(field))

    def optional_text(self, field: str) -> str:
        """A text that may be empty or absent."""
        return self._text(field, self.fields[field]) if self.has(field) else ""

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of one or more texts, none blank."""
        values = self._list(field)
        if not values:
            raise self.error("empty_field", f'field "{field}" is an empty list; give at least one text')
        return tuple(self._filled(f"{field}[{n}]", value) for n, value in enumerate(values))

    def optional_texts(self, field: str, at_most: int) -> tuple[str, ...]:
        """A list of at most that many texts, some perhaps empty; a lone text counts as one, absent as none."""
        if not self.has(field):
            return ()
        values = [self.fields[field]] if isinstance(self.fields[field], str) else self._list(field)
        if len(values) > at_most:
            raise self.error(
                "wrong_turn_count",
                f'field "{field}" has {len(values)} entries for {at_most} turn(s); give one per turn',
            )
        return tuple(self._text(f"{field}[{n}]", value) for n, value in enumerate(values))

    def optional_answers(self, field: str, at_most: int) -> tuple[str, ...]:
        """Like optional_texts; each is empty or has a letter or digit, so that an answer can be checked."""
        answers = self.optional_texts(field, at_most)
        if any(answer.strip() and not any(map(str.isalnum, answer)) for answer in answers):
            raise self.error(
                "uncheckable_answer",
                f'field "{field}" has no letter or digit, so no answer could be checked; leave it out',
            )
        return tuple(answer.strip() for answer in answers)

    def only_object(self, field: str) -> "Line":
        """The object in a list of exactly one, as a Line with the same position."""
        values = self._list(field)
        if len(values) != 1 or not isinstance(values[0], dict):
            raise self.error("wrong_field_type", f'field "{field}" must be a list of exactly one object')
        return Line(self.file, self.number, values[0])

    def _value(self, field: str) -> object:
        if not self.has(field):
            raise self.error(
                "missing_field",
                f'field "{field}" is missing; add it (the line has: {", ".join(self.fields) or "nothing"})',
            )
        return self.fields[field]

    def _list(self, field: str) -> list[object]:
        value = self._value(field)
        if not isinstance(value, list):
            raise self.error("wrong_field_type", f'field "{field}" must be a list, not {kind(value)}')
        return value

    def _text(self, field: str, value: object) -> str:
        if not isinstance(value, str):
            raise self.error("wrong_field_type", f'field "{field}" must be text, not {kind(value)}')
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(
                "half_surrogate",
                f'field "{field}" contains half a surrogate pair, which is no character; write the text as UTF-8',
            )
        return value

    def _filled(self, field: str, value: object) -> str:
        text = self._text(field, value)
        if not text.strip():
            raise self.error("empty_field", f'field "{field}" is empty; fill it in or delete the line')
        return text


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


@dataclass(frozen=True)
class Prompt:
    """One item of a suite: the user's turns and, where the suite has them, one reference answer per turn.

    `exact_answers`, one per turn, can be checked without a judge: a right answer ends with it.
    """

    id: str
    suite: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()
    category: str = ""
    exact_answers: tuple[str, ...] = ()


Reader = Callable[[str, Line], Prompt]


def read_prompts(suite: str, file: str, content: bytes, reader: Reader) -> tuple[Prompt, ...]:
    """Every prompt of a file, in file order. Blank lines are skipped, a byte order mark and CR LF line ends are taken.

    Raises UserError naming file and line: not UTF-8, broken JSON, a missing, empty or wrong field, an id used twice,
    or no prompt at all.
    """
    first_line: dict[str, int] = {}
    prompts = []
    # Split as bytes: U+2028 and its like may stand inside a JSON text, and str.splitlines would break there.
    numbered = enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1)
    for line in [Line(file, number, _object(file, number, raw)) for number, raw in numbered if raw.strip()]:
        prompt = reader(suite, line)
        if prompt.id in first_line:
            raise line.error(
                "id_twice", f'id "{prompt.id}" is also that of line {first_line[prompt.id]}; give each prompt its own'
            )
        first_line[prompt.id] = line.number
        prompts.append(prompt)
    if not prompts:
        raise Line(file, 1, {}).error("no_prompts", "the file has no prompt; put one JSON object on each line")
    return tuple(prompts)


def read_user_line(suite: str, line: Line) -> Prompt:
    """A line of a user's file: `prompt` or `turns`; optional `id` (default: line number), `reference`, `category`, and
    `exact_answer` for the score `exact match`."""
    if line.has("prompt") == line.has("turns"):
        known = ", ".join(line.fields) or "nothing"
        raise line.error(
            "prompt_or_turns", f'give either "prompt" (text) or "turns" (a list of texts); the line has: {known}'
        )
    turns = (line.text("prompt"),) if line.has("prompt") else line.texts("turns")
    return Prompt(
        id=line.identifier("id") if line.has("id") else str(line.number),
        suite=suite,
        turns=turns,
        reference=line.optional_texts("reference", at_most=len(turns)),
        category=line.optional_text("category"),
        exact_answers=line.optional_answers("exact_answer", at_most=len(turns)),
    )


def _object(file: str, number: int, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        id, problem = "not_utf8", f"not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8"
    except json.JSONDecodeError as error:
        id, problem = "broken_json", f"broken JSON at column {error.colno} ({error.msg}); each line is one object"
    except (ValueError, RecursionError) as error:
        id, problem = "broken_json", f"broken JSON ({error}); each line is one object"
    else:
        if isinstance(value, dict):
            return value
        id, problem = "no_object", f'{kind(value)} instead of an object; write a line like {{"prompt": "..."}}'
    raise Line(file, number, {}).error(id, problem)
