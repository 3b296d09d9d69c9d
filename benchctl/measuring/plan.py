"""Which generations a run consists of, and in which order: fixed beforehand, so that a resumed run is the same run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchctl.measuring.prompts import Prompt
from benchctl.records import RowKey

SESSION = 0


@dataclass(frozen=True)
class Task:
    """One generation: a label's answer to one turn of a prompt. `repeat` is negative for warm-up; `order` counts the
    planned generations of a run from 0, and those of its warm-up apart."""

    prompt: Prompt
    turn: int
    label: str
    repeat: int
    order: int

    @property
    def key(self) -> RowKey:
        """The key of the row that this task becomes."""
        return RowKey(self.prompt.suite, self.prompt.id, self.turn, self.label, self.repeat, SESSION)


@dataclass(frozen=True)
class Plan:
    """Every prompt `repeats` times by every label; `labels` starts with the baseline.

    Labels take turns within each turn of a prompt, and every other repeat runs them backwards (ABBA): with A B in
    repeat 0 and B A in repeat 1 both have the same mean place in time, so a drift of the machine falls on both alike.
    The baseline is first in repeat 0, so that its answer is known when the others are judged.
    """

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    repeats: int

    def __len__(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.labels) * self.repeats

    def by_prompt(self) -> Iterator[tuple[Task, ...]]:
        """The tasks in order, one prompt's at a time."""
        order = 0
        for prompt in self.prompts:
            rounds = [self._round(prompt, repeat, backwards=repeat % 2 == 1) for repeat in range(self.repeats)]
            tasks = [task for one_round in rounds for task in one_round]
            yield tuple(_number(tasks, order))
            order += len(tasks)

    def warm_up(self, round_number: int) -> tuple[Task, ...]:
        """The tasks of one warm-up round, counted from 1: the measured loop on the first prompt, a negative repeat."""
        tasks = self._round(self.prompts[0], -round_number, backwards=False)
        return tuple(_number(tasks, (round_number - 1) * len(tasks)))

    def _round(self, prompt: Prompt, repeat: int, backwards: bool) -> list[Task]:
        labels = self.labels[::-1] if backwards else self.labels
        return [Task(prompt, turn, label, repeat, 0) for turn in range(len(prompt.turns)) for label in labels]


def _number(tasks: Sequence[Task], first: int) -> Iterator[Task]:
    for order, task in enumerate(tasks, first):
        yield Task(task.prompt, task.turn, task.label, task.repeat, order)
