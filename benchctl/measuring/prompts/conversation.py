"""What a label's second turn is about: its own answer to the first one."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.decoding.model.tokenizer import Message, talk
from benchctl.measuring.plan import Task
from benchctl.measuring.prompts.files import Prompt
from benchctl.records.schema import Mode


def messages(prompt: Prompt, answers: Sequence[str]) -> list[Message]:
    """The chat up to the turn that follows `answers`, one answer per turn before it.

    >>> messages(Prompt("1", "s", ("Hi", "Why?")), ["Hello."])
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello.'}, {'role': 'user', 'content': 'Why?'}]
    """
    return talk(prompt.turns[: len(answers) + 1], answers)


class Histories:
    """The answers given to one prompt so far; each label, repeat and mode has a history of its own. What was forced
    upon a method in a first turn is what it answered there."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._answers: dict[tuple[str, int, Mode], dict[int, str]] = {}

    def remember(self, task: Task, answer: str) -> None:
        self._answers.setdefault((task.label, task.repeat, task.mode), {})[task.turn] = answer

    def messages(self, task: Task) -> list[Message]:
        """The chat to send for a task's turn. Raises ValueError when there is no answer to a turn before it."""
        answers = self._answers.get((task.label, task.repeat, task.mode), {})
        missing = [before for before in range(task.turn) if before not in answers]
        if missing:
            raise ValueError(f"turn {missing[0]} of this prompt failed, so turn {task.turn} has no history")
        return messages(self._prompt, [answers[before] for before in range(task.turn)])
