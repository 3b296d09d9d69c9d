"""Answers in published files of five programs.

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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchctl.importing import Format
from benchctl.importing.published_lines import AnswerLine, Choice, Counts, Line

FAILED: Final = "ERROR"  # what all of them write for a turn that raised an error, beside the turn's numbers before it


@dataclass(frozen=True)
class Answer:
    """An answer to one turn; None where its file lacks it. `choice` numbers the answers to one question.

    Where `ttft_s` is known, `steps` come after the first token; otherwise the first step includes it.
    """

    prompt_id: str
    turn: int
    choice: int
    text: str
    new_tokens: int | None = None
    steps: int | None = None
    wall_s: float | None = None
    prompt_tokens: int = 0
    ttft_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    error: str = ""


def answers_of(line: Line, content: AnswerLine, format: Format) -> Iterator[Answer]:
    """The answers in a line, turn by turn. Raises InvalidData where the line is not of that format."""
    for number, choice in enumerate(content.choices):
        turns = len(choice.turns)
        new_tokens, steps, wall_s = _numbers(line, choice, format)
        if not len(new_tokens) == len(wall_s) == len(steps) == turns:
            line.refuse(f"{turns} turns, but {len(new_tokens)} new_tokens, {len(wall_s)} wall_time, {len(steps)} steps")
        for turn, text in enumerate(choice.turns):
            tokens, count = new_tokens[turn], steps[turn]
            if text != FAILED and tokens is not None and count is not None and count > tokens:
                line.refuse(f"turn {turn} has {count} steps for {tokens} new_tokens, but every step yields one")
            error = "the program that wrote this file failed on this turn" if text == FAILED else ""
            yield Answer(str(content.question_id), turn, number, text, tokens, count, wall_s[turn], error=error)


def format_of(line: Line, content: AnswerLine) -> Format:
    """The format of a line. Raises InvalidData if its fields do not show it."""
    choice, model = content.choices[0], str(content.model_id)
    if choice.rest_lengths is not None:
        return "rest"
    if choice.decoding_steps is not None or choice.accept_lengths is not None:
        return "spec-bench"
    if choice.idxs is None:
        return "fastchat"
    if "medusa" in model.lower():
        return "medusa"
    if "eagle" in model.lower():
        return "eagle"
    line.refuse(f"'{model}' may be of Medusa or of EAGLE, whose files look the same: give --format")


def _numbers(
    line: Line, choice: Choice, format: Format
) -> tuple[list[int | None], list[int | None], list[float | None]]:
    """New tokens, steps and seconds of each turn."""

    def given(values: Counts | None, name: str) -> Counts:
        return line.refuse(f"{name} is missing") if values is None else values

    turns = len(choice.turns)
    unknown = [None] * turns
    if format == "fastchat":
        return list(unknown), list(unknown), list(unknown)
    if choice.wall_time is None:
        line.refuse("wall_time is missing")
    new_tokens = given(choice.new_tokens, "new_tokens")
    counted = choice.decoding_steps if format == "spec-bench" and choice.decoding_steps is not None else choice.idxs
    counts = given(counted, "idxs")
    steps: list[int | None] = [index + 1 for index in counts]
    if format == "rest":
        lengths = len(given(choice.rest_lengths, "accept_lengths:"))
        if sum(counts) + turns != lengths:
            line.refuse(f"idxs count {sum(counts) + turns} steps, but accept_lengths {lengths}")
    if format == "spec-bench":
        # Its methods return the number of steps or the last one's index; there is one accept length per step.
        lengths = len(given(choice.accept_lengths, "accept_lengths"))
        if sum(counts) == lengths:
            steps = list(counts)
        elif sum(counts) + turns != lengths:
            steps = list(unknown)
    return list(new_tokens), steps, list(choice.wall_time)
