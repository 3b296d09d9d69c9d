"""One process's share of a run: warm up, then measure, write and report every generation that the file lacks."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from benchctl.measuring.plan import Job, Plan, Round, rounds, rows_of
from benchctl.measuring.validity import MARGIN, Watch, decoding_s
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row
from benchctl.records.writer import Writer

if TYPE_CHECKING:
    from benchctl.measuring.measure import Measurer


@dataclass(frozen=True)
class Notice:
    """Something the user should know, in a sentence."""

    text: str


@dataclass(frozen=True)
class Progress:
    """`done` of `total` generations are in the file; `label` was the last one. In warm-up `done` does not move."""

    done: int
    total: int
    label: str = ""
    warm_up: bool = False


Report = Callable[[Notice | Progress], None]


@dataclass
class Session:
    """Measures what the file lacks, and disturbed rounds again (plan.py). The file decides, so a resumed run
    continues where it stopped. Without `watch` only retries that have begun are finished.

    done            of `total` generations are in the file, retries of earlier processes left out of both
    measured        by this process, warm-up left out; `failed` of these failed
    lost            disturbed rounds of the file that no retry recovered
    """

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
        self._failing = set[str]()

    def measure(self, most_warm_up_rounds: int) -> None:
        """Measure everything that is missing. Warm up only where something is missing."""
        self.done = sum(task.key in self._stored for jobs in self.plan.by_batch() for job in jobs for task in job)
        if any(self._is_due(jobs, self._stored) for jobs in self.plan.by_batch()):
            self._teach_watch()
            self._warm_up(most_warm_up_rounds)
        for jobs in self.plan.by_batch():
            rows = ChainMap({}, self._stored)  # new rows are kept only as long as their batch
            if self._is_due(jobs, rows):
                self._measure_batch(jobs, rows)
            self.lost += sum(not self.plan.is_recovered(planned, rows) for planned in rounds(jobs))

    def _is_due(self, jobs: Sequence[Job], rows: Mapping[RowKey, Row]) -> bool:
        return any(self._next_attempt(planned, rows) is not None for planned in rounds(jobs))

    def _next_attempt(self, planned: Round, rows: Mapping[RowKey, Row]) -> Round | None:
        return self.plan.next_attempt(planned, rows, self.watch is not None and not self.watch.lasts)

    def _teach_watch(self) -> None:
        """Show the watch the undisturbed rounds of the file: without them, a load that still lasts would be usual."""
        if self.watch is None:
            return
        warm_up = map(self.plan.warm_up, range(1, self._warm_ups_stored() + 1))
        stored_warm_up = (each for each in warm_up if all(job[0].key in self._stored for job in each))
        planned = (each for jobs in self.plan.by_batch() for each in rounds(jobs))
        stored = chain.from_iterable(self.plan.attempts(each, self._stored) for each in planned)
        for attempt in chain(stored_warm_up, stored):
            if not any(row.invalid for row in rows_of(attempt, self._stored)):
                for job in attempt:
                    self.watch.observe(rows_of((job,), self._stored), ends_round=job is attempt[-1])

    def _measure_batch(self, jobs: Sequence[Job], rows: MutableMapping[RowKey, Row]) -> None:
        """Its rounds as planned, then the disturbed ones again: by then a passing load may be over."""
        self.measurer.begin()
        for planned in rounds(jobs):
            self._measure_round(planned, rows)
        for planned in rounds(jobs):
            while (retry := self._next_attempt(planned, rows)) is not None:
                self.total += sum(len(job) for job in retry if job[0].key not in rows)
                self._measure_round(retry, rows)

    def _measure_round(self, attempt: Round, rows: MutableMapping[RowKey, Row]) -> None:
        """Measure what the file lacks of an attempt, and recall the rest of it."""
        # Of a round that is stored as a whole, `_teach_watch` has taken the times.
        missing = {(job[0].label, job[0].mode) for job in attempt if job[0].key not in rows}
        for job in attempt:
            ends_round = job is attempt[-1]
            if job[0].key not in rows:
                before = [rows[task.key] for done in attempt for task in done if task.key in rows]
                rows.update({row_key(row): row for row in self._measure(job, ends_round, before)})
                continue
            for task in job:
                self.measurer.recall(task, rows[task.key], goes_on=(task.label, task.mode) in missing)
            if self.watch is not None and missing:
                self.watch.observe(rows_of((job,), rows), ends_round=ends_round)

    def _measure(self, job: Job, ends_round: bool, before: list[Row]) -> tuple[Row, ...]:
        """Measure, write and report a job of a round that has the rows `before`."""
        rows = self.measurer.measure(job)
        if self.watch is not None:
            rows = self.watch.mark(rows, ends_round=ends_round)
        if ends_round:
            rows = self.plan.mark_failed([*before, *rows], rows)
        self.writer.append(*rows)
        self.done += len(rows)
        self.measured += len(rows)
        self.failed += sum(row.error is not None for row in rows)
        self._show_failure(rows)
        self.report(Progress(self.done, self.total, job[0].label))
        return rows

    def _show_failure(self, rows: Sequence[Row]) -> None:
        """The first error of each label, as soon as it happens."""
        for row in rows:
            if row.error is not None and row.label not in self._failing:
                self._failing.add(row.label)
                self.report(Notice(f"{row.label} failed on {row.suite} {row.prompt_id}: {row.error}"))

    def _warm_up(self, most_rounds: int) -> None:
        """Rounds of the measured loop until two in a row take the same time, or `most_rounds` are done."""
        stored, previous_s = self._warm_ups_stored(), dict[str, float]()
        for self.warm_up_rounds in range(1, most_rounds + 1):
            jobs = self.plan.warm_up(stored + self.warm_up_rounds)
            latest_s = {job[0].label: 0.0 for job in jobs}
            self.measurer.begin()
            for job in jobs:
                rows = self.measurer.measure(job)
                self.writer.append(*rows)
                self._show_failure(rows)
                if self.watch is not None:
                    self.watch.observe(rows, ends_round=job is jobs[-1])
                latest_s[job[0].label] += max(map(decoding_s, rows))
                self.report(Progress(self.done, self.total, job[0].label, warm_up=True))
            if previous_s and is_stable(previous_s, latest_s):
                return
            previous_s = latest_s

    def _warm_ups_stored(self) -> int:
        return max((-row.repeat for row in self._stored.values() if row.repeat < 0), default=0)


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
