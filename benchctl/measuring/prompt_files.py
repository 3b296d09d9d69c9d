"""Prompt files: one JSON object a line, read into prompts."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from benchctl.measuring.prompt_line import Line, kind, line_error


@dataclass(frozen=True)
class Prompt:
    """One item of a suite: the user's turns and, where the suite has them, one reference answer per turn.

    `exact_answers` are those that can be checked without a judge, one per turn: a right answer ends with it.
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
    for line in _lines(file, content):
        prompt = reader(suite, line)
        if prompt.id in first_line:
            raise line.error(f'id "{prompt.id}" is also that of line {first_line[prompt.id]}; give each prompt its own')
        first_line[prompt.id] = line.number
        prompts.append(prompt)
    if not prompts:
        raise line_error(file, 1, "the file holds no prompt; put one JSON object on each line")
    return tuple(prompts)


def read_user_line(suite: str, line: Line) -> Prompt:
    """A line of a user's file: `prompt` or `turns`; at will `id` (else the line number), `reference`, `category`, and
    `exact_answer`, which asks for the score `exact match`."""
    if line.has("prompt") == line.has("turns"):
        known = ", ".join(line.fields) or "nothing"
        raise line.error(f'give either "prompt" (text) or "turns" (a list of texts); the line has: {known}')
    turns = (line.text("prompt"),) if line.has("prompt") else line.texts("turns")
    return Prompt(
        id=line.identifier("id") if line.has("id") else str(line.number),
        suite=suite,
        turns=turns,
        reference=line.optional_texts("reference", at_most=len(turns)),
        category=line.optional_text("category"),
        exact_answers=line.optional_answers("exact_answer", at_most=len(turns)),
    )


def _lines(file: str, content: bytes) -> list[Line]:
    # Split as bytes: U+2028 and its like may stand inside a JSON text, and str.splitlines would break there.
    numbered = enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1)
    return [Line(file, number, _object(file, number, raw)) for number, raw in numbered if raw.strip()]


def _object(file: str, number: int, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8"
    except json.JSONDecodeError as error:
        problem = f"broken JSON at column {error.colno} ({error.msg}); each line is one object"
    except (ValueError, RecursionError) as error:
        problem = f"broken JSON ({error}); each line is one object"
    else:
        if isinstance(value, dict):
            return value
        problem = f'{kind(value)} instead of an object; write a line like {{"prompt": "..."}}'
    raise line_error(file, number, problem)
