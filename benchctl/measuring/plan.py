"""Which generations a run consists of, in which order, and which of its rounds are still to be measured.

The plan is fixed beforehand, and retries depend on rows alone: so a resumed run is the same run. A round that other
load disturbed is measured again as a whole, at most MOST_RETRIES times, each time as a further repeat (Plan.again). A
single generation is never repeated alone: load hits a short one fully or not at all and a long one on average, so
replacing only the worst generations would make the shorter method look fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, product

from benchctl.measuring.prompts.files import Prompt
from benchctl.records.reader import RowKey
from benchctl.records.schema import Mode, Row

MOST_RETRIES = 2
_FAILED_RETRY = "its round: a generation failed, so it is measured once more"
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
"""One repeat of a batch in order: all its turns, by every label in every mode. An attempt at a round is the planned
round or one of its retries."""

RowsByKey = Mapping[RowKey, Row]


@dataclass(frozen=True)
class Plan:
    """Every prompt `repeats` times by every label in every mode; `labels` starts with the baseline, `modes` with free.

    Arms, a label in a mode each, take turns within each turn of a prompt, and every other repeat runs them backwards
    (ABBA). With A B in repeat 0 and B A in repeat 1, both have the same mean place in time, so a drift of the machine
    affects both equally. The baseline runs first in repeat 0, so that its answer is known when the others are judged.

    With a `batch_size` above 1 a batch of prompts takes the place of the prompt. A batch has prompts of one suite that
    follow each other and have as many turns: so it stays together turn by turn, and is the same for every arm.
    """

    prompts: tuple[Prompt, ...]
    labels: tuple[str, ...]
    repeats: int
    batch_size: int = 1
    modes: tuple[Mode, ...] = ("free",)

    def __len__(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.labels) * len(self.modes) * self.repeats

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
        arms = list(product(self.labels, self.modes))
        if repeat > 0 and repeat % 2:  # warm-up repeats are negative
            arms.reverse()
        return [
            tuple(Task(prompt, turn, label, repeat, 0, mode) for prompt in batch)
            for turn in range(len(batch[0].turns))
            for label, mode in arms
        ]

    def next_attempt(self, planned: Round, rows: RowsByKey, may_retry: bool) -> Round | None:
        """What is to be measured next of a planned round, `rows` being what there is of it; None when it is done.

        Without `may_retry` only attempts that have begun are finished.
        """
        whole = list(self.attempts(planned, rows))
        if not whole:
            return planned
        if self._is_good(whole[-1], rows) or len(whole) > MOST_RETRIES:
            return None
        retry = self.again(planned, len(whole))
        return retry if may_retry or any(job[0].key in rows for job in retry) else None

    def attempts(self, planned: Round, rows: RowsByKey) -> Iterator[Round]:
        """The whole attempts at a round, up to the first good one."""
        for number in range(MOST_RETRIES + 1):
            attempt = self.again(planned, number) if number else planned
            if not all(job[0].key in rows for job in attempt):  # a batch is in a file as a whole, or not at all
                return
            yield attempt
            if self._is_good(attempt, rows):
                return

    def is_recovered(self, planned: Round, rows: RowsByKey) -> bool:
        """Whether some attempt was undisturbed and has as many answers as the best attempt (see analysis.warnings)."""
        attempts = [rows_of(attempt, rows) for attempt in self.attempts(planned, rows)]
        answered = [sum(row.error is None for row in attempt) for attempt in attempts]
        return any(
            count == max(answered) and not any(row.invalid for row in attempt)
            for count, attempt in zip(answered, attempts, strict=True)
        )

    def mark_failed(self, attempt: list[Row], last: tuple[Row, ...]) -> tuple[Row, ...]:
        """The `last` rows of a whole attempt, marked invalid where a failed retry is to be repeated once more.

        Without the mark, the labels that did not fail would be counted in both attempts.
        """
        number = last[0].repeat // self.repeats
        if not 0 < number < MOST_RETRIES or not any(row.error for row in attempt):
            return last
        return tuple(replace(row, invalid="; ".join(filter(None, (row.invalid, _FAILED_RETRY)))) for row in last)

    def _is_good(self, attempt: Round, rows: RowsByKey) -> bool:
        """Whether an attempt needs no retry: no row is invalid and, in a retry, none failed. A failure in the planned
        round belongs to the method; in a retry the disturbance may have caused it."""
        return not any(row.invalid or (row.error and row.repeat >= self.repeats) for row in rows_of(attempt, rows))


def rounds(jobs: Sequence[Job]) -> Iterator[Round]:
    """The rounds of a batch, one after another."""
    return (tuple(group) for _, group in groupby(jobs, lambda job: job[0].repeat))


def _number(jobs: Sequence[Job], first: int) -> Round:
    order = count(first)
    return tuple(tuple(replace(task, order=next(order)) for task in job) for job in jobs)


def rows_of(attempt: Round, rows: RowsByKey) -> list[Row]:
    """The rows of a whole attempt, in order."""
    return [rows[task.key] for job in attempt for task in job]
