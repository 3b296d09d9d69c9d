"""Which generations a run consists of, and in which order: fixed beforehand, so that a resumed run is the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, groupby, product
from typing import Literal

from benchctl.measuring.prompts.prompt import Prompt
from benchctl.records.reader import RowKey
from benchctl.records.schema import Mode

Order = Literal["abba", "shuffle"]
SESSION = 0  # of rows: each session writes a file of its own


@dataclass(frozen=True)
class Task:
    """One generation: a label's answer to one turn of a prompt. `repeat` is negative for warm-up; `order` counts the
    planned generations of a run from 0, and those of its warm-up apart; `mode` is that of its row. `instead_of` is the
    planned repeat that a further one measures again."""

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
"""What is decoded together: the tasks of a batch, alike in turn, label, repeat and mode; a single one without
batches."""

Round = tuple[Job, ...]
"""One repeat of a batch in order: all its turns, by every label in every mode."""


@dataclass(frozen=True)
class Arm:
    """What takes turns: a label in a mode."""

    label: str
    mode: Mode


@dataclass(frozen=True)
class Plan:
    """Every prompt `repeats` times by every label in every mode; `labels` starts with the baseline, `modes` with free.

    Arms take turns within each turn of a prompt, in one of two orders. "abba": every other repeat runs them backwards.
    With A B in repeat 0 and B A in repeat 1 both have the same mean place in time, so a drift of the machine falls on
    both alike. The baseline runs first in repeat 0, so that its answer is known when the others are judged. "shuffle":
    each turn of each repeat has an order of its own, by hashes of `seed`, the run's `name`, prompt, turn and repeat. So
    no arm always follows the same other one, sessions differ, and a resumed run keeps the order it had.

    With a `batch_size` above 1 a batch of prompts takes the place of the prompt. A batch has prompts of one suite that
    follow each other and have as many turns: so it stays together turn by turn, and is the same for every arm.
    """

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    repeats: int
    batch_size: int = 1
    modes: tuple[Mode, ...] = ("free",)
    order: Order = "abba"
    seed: int = 0
    name: str = ""

    def __len__(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.arms) * self.repeats

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline's first; the modes of a label follow each other, so that they are compared at one moment."""
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

        Of 2 repeats, repeat 1 is measured again as repeat 3, and then as 5: the number tells what it stands for. Its
        generations are counted behind all that are planned.
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
        return [
            tuple(Task(prompt, turn, arm.label, repeat, 0, arm.mode) for prompt in batch)
            for turn in range(len(batch[0].turns))
            for arm in self._turn(batch[0], turn, repeat)
        ]

    def _turn(self, first: Prompt, turn: int, repeat: int) -> Sequence[Arm]:
        """The arms in the order of one turn; warm-up, which is no measurement, has them as they are."""
        if repeat < 0:
            return self.arms
        if self.order == "abba":
            return self.arms[::-1] if repeat % 2 else self.arms
        place = f"{self.seed}\n{self.name}\n{first.suite}\n{first.id}\n{turn}\n{repeat}"
        return sorted(self.arms, key=lambda arm: sha256(f"{place}\n{arm.label}\n{arm.mode}".encode()).digest())


def rounds(jobs: Sequence[Job]) -> Iterator[Round]:
    """The rounds of a batch, one after another."""
    return (tuple(group) for _, group in groupby(jobs, lambda job: job[0].repeat))


def _number(jobs: Sequence[Job], first: int) -> Round:
    order = count(first)
    return tuple(tuple(replace(task, order=next(order)) for task in job) for job in jobs)
