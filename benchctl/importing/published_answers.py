"""Answers in published files of five programs.

| format | written by | counts steps as | beside |
|---|---|---|---|
| spec-bench | hemingkx/Spec-Bench, evaluation/eval.py | decoding_steps, a number or a last index | accept_lengths |
| rest | FasterDecoding/REST, llm_judge/gen_model_answer_rest.py | idxs, the last index | "accept_lengths:" |
| medusa, eagle | FasterDecoding/Medusa, SafeAILab/EAGLE, gen_*_answer*.py | idxs, the last index | |
| fastchat | lm-sys/FastChat, fastchat/llm_judge | answers without counts or times, or judgements (judgements.py) | |

All count `new_tokens` by the loop of the method, which may pass the stop token by the rest of a step. Spec-Bench's
evaluation/speed.py sets that against a count of the baseline's re-tokenised text, which favours the method; here both
sides' own counts are used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from benchctl.importing.lines import Line

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
