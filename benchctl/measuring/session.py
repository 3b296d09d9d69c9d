"""One process's share of a run: warm up, then every planned generation that is not in the file yet, written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchctl.measuring.events import Progress, Report
from benchctl.measuring.measure import Measurer
from benchctl.measuring.plan import Job, Plan, Round, rounds
from benchctl.measuring.validity import MARGIN, MOST_TRIES, Watch
from benchctl.recordfile import Writer
from benchctl.records import Row
from benchctl.rowkeys import row_key

_FAILED_AGAIN = "its round: a generation failed, so it is measured once more"


@dataclass
class Session:
    """Measures what is missing, once, and what `watch` doubts again: a whole round, as a further repeat, at most
    MOST_TRIES times (validity.py). What is in the file decides, so a resumed run goes on where it was, and without
    `watch` only tries that have begun are finished.

    `done` generations of `total` are in the file, tries of earlier processes left out of both; `measured` and `failed`
    are of this process and leave warm-up out; `lost` rounds stayed out of bounds."""

    plan: Plan
    measurer: Measurer
    writer: Writer
    report: Report
    watch: Watch | None = None
    done: int = 0
    measured: int = 0
    failed: int = 0
    lost: int = 0
    warm_up_rounds: int = 0

    def __post_init__(self) -> None:
        self._stored = {row_key(row): row for row in self.writer.stored.rows}
        self.total = len(self.plan)

    def measure(self, most_warm_up_rounds: int) -> None:
        """Everything that is missing; a machine that has nothing to do is not warmed up."""
        self.done = sum(task.key in self._stored for jobs in self.plan.by_batch() for job in jobs for task in job)
        if not any(map(self._is_due, self.plan.by_batch())):
            return
        self._warm_up(most_warm_up_rounds)
        for jobs in self.plan.by_batch():
            if self._is_due(jobs):
                self._measure_batch(jobs)

    def _is_due(self, jobs: Sequence[Job]) -> bool:
        """Whether anything of a batch is to be measured."""
        return any(self._is_open(planned) for planned in rounds(jobs))

    def _is_open(self, planned: Round) -> bool:
        """Whether a round is not in the file, or as one out of bounds that is to be measured again."""
        if not all(map(self._is_stored, planned)):
            return True
        again = planned
        for number in range(1, MOST_TRIES + 1):
            if self._is_good([self._stored[task.key] for job in again for task in job]):
                return False
            again = self.plan.again(planned, number)
            if not all(map(self._is_stored, again)):
                return self._is_to_be_tried(again)
        return False

    def _is_to_be_tried(self, again: Round) -> bool:
        return any(map(self._is_stored, again)) or (self.watch is not None and not self.watch.lasts)

    def _is_stored(self, job: Job) -> bool:
        """A batch is in a file as a whole, or not at all."""
        return job[0].key in self._stored

    def _measure_batch(self, jobs: Sequence[Job]) -> None:
        """Its rounds as planned, then those again that were out of bounds: by then a passing load may have passed."""
        self.measurer.begin([task.prompt for task in jobs[0]])
        doubted = [planned for planned in rounds(jobs) if not self._is_measured_well(planned)]
        self.lost += sum(not self._settle(planned) for planned in doubted)

    def _settle(self, planned: Round) -> bool:
        """Measure a round again until nothing speaks against it; whether that was reached."""
        for number in range(1, MOST_TRIES + 1):
            again = self.plan.again(planned, number)
            if not self._is_to_be_tried(again):
                return False
            self.total += sum(len(job) for job in again if not self._is_stored(job))
            if self._is_measured_well(again):
                return True
        return False

    def _is_measured_well(self, jobs: Round) -> bool:
        """Measure or recall a round; whether nothing speaks against it."""
        found: list[Row] = []
        for job in jobs:
            last = job is jobs[-1]
            found += self._recall(job, last) if self._is_stored(job) else self._measure(job, last, found)
        return self._is_good(found)

    def _is_good(self, rows: Sequence[Row]) -> bool:
        """Whether nothing speaks against a round. One measured again must have no failures either: what disturbed it
        before may have taken its memory by now."""
        return not any(row.invalid or (row.error and row.repeat >= self.plan.repeats) for row in rows)

    def _measure(self, job: Job, ends_round: bool, before: Sequence[Row]) -> tuple[Row, ...]:
        """Measure a job of a round, of which there are the rows `before`."""
        rows = self.measurer.measure(job)
        if self.watch is not None:
            rows = self.watch.mark(rows, ends_round=ends_round)
        if ends_round:
            rows = self._mark_failed_again((*before, *rows), rows)
        self.writer.append(*rows)
        self.done += len(rows)
        self.measured += len(rows)
        self.failed += sum(row.error is not None for row in rows)
        self.report(Progress(self.done, self.total, job[0].label))
        return rows

    def _mark_failed_again(self, found: Sequence[Row], rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """The last rows of a round, marked where it was measured again, has a failure and is to be tried once more:
        else the labels that did not fail would be in figures with both."""
        again = rows[0].repeat // self.plan.repeats
        if not 0 < again < MOST_TRIES or not any(row.error for row in found):
            return rows
        return tuple(replace(row, invalid="; ".join(filter(None, (row.invalid, _FAILED_AGAIN)))) for row in rows)

    def _warm_up(self, most_rounds: int) -> None:
        """Rounds of the measured loop until two in a row take the same time, or `most_rounds` are done."""
        before = max((-row.repeat for row in self._stored.values() if row.repeat < 0), default=0)
        previous_s: Mapping[str, float] = {}
        for number in range(1, most_rounds + 1):
            latest_s = self._warm_up_round(self.plan.warm_up(before + number))
            self.warm_up_rounds = number
            if previous_s and is_stable(previous_s, latest_s):
                return
            previous_s = latest_s

    def _warm_up_round(self, jobs: Sequence[Job]) -> dict[str, float]:
        """Seconds of decoding per label."""
        spent_s = {job[0].label: 0.0 for job in jobs}
        self.measurer.begin([task.prompt for task in jobs[0]])
        for job in jobs:
            rows = self.measurer.measure(job)
            self.writer.append(*rows)
            if self.watch is not None:
                self.watch.observe(rows, ends_round=job is jobs[-1])
            spent_s[job[0].label] += max((row.ttft_s or 0.0) + sum(row.step_s) for row in rows)
            self.report(Progress(self.done, self.total, job[0].label, warm_up=True))
        return spent_s

    def _recall(self, job: Job, ends_round: bool) -> tuple[Row, ...]:
        rows = tuple(self._stored[task.key] for task in job)
        for task, row in zip(job, rows, strict=True):
            self.measurer.recall(task, row)
        if self.watch is not None:
            self.watch.observe(rows, ends_round=ends_round)
        return rows


def is_stable(previous_s: Mapping[str, float], latest_s: Mapping[str, float]) -> bool:
    """Whether no label's round differs from its round before by more than 5% of the shorter.

    >>> is_stable({"autoregressive": 2.00, "two_model": 1.00}, {"autoregressive": 1.95, "two_model": 1.04})
    True
    >>> is_stable({"autoregressive": 2.00, "two_model": 1.50}, {"autoregressive": 1.95, "two_model": 1.04})
    False
    """
    return all(
        abs(seconds - previous_s[label]) <= MARGIN * min(seconds, previous_s[label])
        for label, seconds in latest_s.items()
    )
