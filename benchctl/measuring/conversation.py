"""What a label's second turn is about: its own answer to the first one."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.measuring.prompt_files import Prompt

Message = dict[str, str]


def messages(prompt: Prompt, answers: Sequence[str]) -> list[Message]:
    """The chat up to the turn that follows `answers`, one answer per turn before it.

    >>> messages(Prompt("1", "s", ("Hi", "Why?")), ["Hello."])
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello.'}, {'role': 'user', 'content': 'Why?'}]
    """
    chat: list[Message] = []
    for asked, answer in zip(prompt.turns, answers, strict=False):
        chat += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": prompt.turns[len(answers)]}]


class Histories:
    """The answers given to one prompt so far, each label and repeat with a history of its own."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._answers: dict[tuple[str, int], dict[int, str]] = {}

    def remember(self, label: str, repeat: int, turn: int, answer: str) -> None:
        self._answers.setdefault((label, repeat), {})[turn] = answer

    def messages(self, label: str, repeat: int, turn: int) -> list[Message]:
        """The chat to send for a turn. Raises ValueError when the label has no answer to a turn before it."""
        answers = self._answers.get((label, repeat), {})
        missing = [before for before in range(turn) if before not in answers]
        if missing:
            raise ValueError(f"turn {missing[0]} of this prompt failed, so turn {turn} has no history")
        return messages(self._prompt, [answers[before] for before in range(turn)])
