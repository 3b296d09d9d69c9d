"""One process's share of a run: warm up, then every planned generation that is not in the file yet, written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from benchctl.measuring.events import Progress, Report
from benchctl.measuring.measure import Measurer
from benchctl.measuring.plan import Job, Plan
from benchctl.measuring.validity import MARGIN, Watch
from benchctl.recordfile import Writer
from benchctl.rowkeys import row_key


@dataclass
class Session:
    """Measures what is missing, once. `watch` marks what it doubts; nothing is measured again, and figures leave out
    the whole round of it (validity.py). `done` generations of the plan are in the file; `measured` and `failed` are of
    this process and leave warm-up out."""

    plan: Plan
    measurer: Measurer
    writer: Writer
    report: Report
    watch: Watch | None = None
    done: int = 0
    measured: int = 0
    failed: int = 0
    warm_up_rounds: int = 0

    def __post_init__(self) -> None:
        self._stored = {row_key(row): row for row in self.writer.stored.rows}

    def measure(self, most_warm_up_rounds: int) -> None:
        """Everything that is missing; a machine that has nothing to do is not warmed up."""
        self.done = sum(task.key in self._stored for jobs in self.plan.by_batch() for job in jobs for task in job)
        if self.done == len(self.plan):
            return
        self._warm_up(most_warm_up_rounds)
        for jobs in self.plan.by_batch():
            if not all(map(self._is_stored, jobs)):
                self._measure_batch(jobs)

    def _is_stored(self, job: Job) -> bool:
        """A batch is in a file as a whole, or not at all."""
        return job[0].key in self._stored

    def _measure_batch(self, jobs: Sequence[Job]) -> None:
        self.measurer.begin([task.prompt for task in jobs[0]])
        for job, following in zip_longest(jobs, jobs[1:]):
            ends_round = following is None or following[0].repeat != job[0].repeat
            if self._is_stored(job):
                self._recall(job, ends_round)
                continue
            rows = self.measurer.measure(job)
            if self.watch is not None:
                rows = self.watch.mark(rows, ends_round=ends_round)
            self.writer.append(*rows)
            self.done += len(rows)
            self.measured += len(rows)
            self.failed += sum(row.error is not None for row in rows)
            self.report(Progress(self.done, len(self.plan), job[0].label))

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
            self.report(Progress(self.done, len(self.plan), job[0].label, warm_up=True))
        return spent_s

    def _recall(self, job: Job, ends_round: bool) -> None:
        rows = [self._stored[task.key] for task in job]
        for task, row in zip(job, rows, strict=True):
            self.measurer.recall(task, row)
        if self.watch is not None:
            self.watch.observe(rows, ends_round=ends_round)


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
