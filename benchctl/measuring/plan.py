"""Which generations a run consists of, and in which order: fixed beforehand, so that a resumed run is the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, product

from benchctl.measuring.prompts.files import Prompt
from benchctl.records.reader import RowKey
from benchctl.records.schema import Mode

ORDER = "abba"  # the name of the order of a run in its header; files of version 0.1 may also have "shuffle"
SESSION = 0  # of rows: each session writes a file of its own


@dataclass(frozen=True)
class Task:
    """One generation: a label's answer to one turn of a prompt.

    repeat      negative for warm-up
    order       number of the generation in the run, from 0; warm-up is counted separately
    instead_of  the planned repeat that a retry measures again
    """

    prompt: Prompt
    turn: int
    label: str
    repeat: int
    order: int
    mode: Mode = "free"
    instead_of: int | None = None

    @property
    def key(self) -> RowKey:
        """The key of the row that this task becomes."""
        prompt = self.prompt
        return RowKey(prompt.suite, prompt.id, self.turn, self.label, self.repeat, SESSION, self.mode)


Job = tuple[Task, ...]
"""What is decoded together: the tasks of a batch, with the same turn, label, repeat and mode; without batches one."""

Round = tuple[Job, ...]
"""One repeat of a batch in order: all its turns, by every label in every mode."""


@dataclass(frozen=True)
class Arm:
    """A label in a mode."""

    label: str
    mode: Mode


@dataclass(frozen=True)
class Plan:
    """Every prompt `repeats` times by every label in every mode; `labels` starts with the baseline, `modes` with free.

    Arms take turns within each turn of a prompt, and every other repeat runs them backwards (ABBA). With A B in repeat
    0 and B A in repeat 1, both have the same mean place in time, so a drift of the machine affects both equally. The
    baseline runs first in repeat 0, so that its answer is known when the others are judged.

    With a `batch_size` above 1 a batch of prompts takes the place of the prompt. A batch has prompts of one suite that
    follow each other and have as many turns: so it stays together turn by turn, and is the same for every arm.
    """

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    repeats: int
    batch_size: int = 1
    modes: tuple[Mode, ...] = ("free",)

    def __len__(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.arms) * self.repeats

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline's first; the modes of a label follow each other, so that they are measured close in time."""
        return tuple(Arm(label, mode) for label, mode in product(self.labels, self.modes))

    @property
    def batches(self) -> tuple[tuple[Prompt, ...], ...]:
        """The prompts in order, those of a batch together."""
        alike = (tuple(group) for _, group in groupby(self.prompts, lambda prompt: (prompt.suite, len(prompt.turns))))
        size = self.batch_size
        return tuple(group[start : start + size] for group in alike for start in range(0, len(group), size))

    def by_batch(self) -> Iterator[Round]:
        """The jobs in order, one batch's at a time."""
        order = 0
        for batch in self.batches:
            jobs = _number([job for repeat in range(self.repeats) for job in self._round(batch, repeat)], order)
            order += sum(map(len, jobs))
            yield jobs

    def again(self, planned: Round, number: int) -> Round:
        """A planned round for the `number`-th time after the first: a further repeat, in the same order.

        Of 2 repeats, repeat 1 is measured again as repeat 3, and then as 5. The generations are numbered after all
        planned ones.
        """
        repeats, orders = number * self.repeats, number * len(self)
        return tuple(
            tuple(
                replace(task, repeat=task.repeat + repeats, order=task.order + orders, instead_of=task.repeat)
                for task in job
            )
            for job in planned
        )

    def warm_up(self, round_number: int) -> Round:
        """The jobs of one warm-up round, counted from 1: the measured loop on the first batch, a negative repeat."""
        jobs = self._round(self.batches[0], -round_number)
        return _number(jobs, (round_number - 1) * sum(map(len, jobs)))

    def _round(self, batch: Sequence[Prompt], repeat: int) -> list[Job]:
        arms = self.arms[::-1] if repeat > 0 and repeat % 2 else self.arms  # warm-up repeats are negative
        return [
            tuple(Task(prompt, turn, arm.label, repeat, 0, arm.mode) for prompt in batch)
            for turn in range(len(batch[0].turns))
            for arm in arms
        ]


def rounds(jobs: Sequence[Job]) -> Iterator[Round]:
    """The rounds of a batch, one after another."""
    return (tuple(group) for _, group in groupby(jobs, lambda job: job[0].repeat))


def _number(jobs: Sequence[Job], first: int) -> Round:
    order = count(first)
    return tuple(tuple(replace(task, order=next(order)) for task in job) for job in jobs)
