"""Which generations a run consists of, and in which order: fixed beforehand, so that a resumed run is the same run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

from benchctl.measuring.prompts import Prompt
from benchctl.rowkeys import RowKey

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


Job = tuple[Task, ...]
"""What is decoded together: the tasks of a batch, alike in turn, label and repeat; a single one without batches."""


@dataclass(frozen=True)
class Plan:
    """Every prompt `repeats` times by every label; `labels` starts with the baseline.

    Labels take turns within each turn of a prompt, and every other repeat runs them backwards (ABBA): with A B in
    repeat 0 and B A in repeat 1 both have the same mean place in time, so a drift of the machine falls on both alike.
    The baseline is first in repeat 0, so that its answer is known when the others are judged.

    With a `batch_size` above 1 a batch of prompts takes the place of the prompt. A batch has prompts of one suite that
    follow each other and have as many turns: so it stays together turn by turn, and is the same for every label.
    """

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    repeats: int
    batch_size: int = 1

    def __len__(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.labels) * self.repeats

    @property
    def batches(self) -> tuple[tuple[Prompt, ...], ...]:
        """The prompts in order, those of a batch together."""
        alike = (tuple(group) for _, group in groupby(self.prompts, lambda prompt: (prompt.suite, len(prompt.turns))))
        size = self.batch_size
        return tuple(group[start : start + size] for group in alike for start in range(0, len(group), size))

    def by_batch(self) -> Iterator[tuple[Job, ...]]:
        """The jobs in order, one batch's at a time."""
        order = 0
        for batch in self.batches:
            rounds = [self._round(batch, repeat, backwards=repeat % 2 == 1) for repeat in range(self.repeats)]
            jobs = _number([job for one_round in rounds for job in one_round], order)
            order += sum(map(len, jobs))
            yield jobs

    def warm_up(self, round_number: int) -> tuple[Job, ...]:
        """The jobs of one warm-up round, counted from 1: the measured loop on the first batch, a negative repeat."""
        jobs = self._round(self.batches[0], -round_number, backwards=False)
        return _number(jobs, (round_number - 1) * sum(map(len, jobs)))

    def _round(self, batch: Sequence[Prompt], repeat: int, backwards: bool) -> list[Job]:
        labels = self.labels[::-1] if backwards else self.labels
        return [
            tuple(Task(prompt, turn, label, repeat, 0) for prompt in batch)
            for turn in range(len(batch[0].turns))
            for label in labels
        ]


def _number(jobs: Sequence[Job], first: int) -> tuple[Job, ...]:
    order = count(first)
    return tuple(tuple(replace(task, order=next(order)) for task in job) for job in jobs)
