"""One process's share of a run: warm up, then every planned generation that is not in the file yet, written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from benchctl.measuring.measure import Measurer
from benchctl.measuring.plan import Job, Plan, Round, rounds
from benchctl.measuring.validity import MARGIN, MOST_TRIES, Watch
from benchctl.records.reader import row_key
from benchctl.records.schema import Row
from benchctl.records.writer import Writer


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


_FAILED_AGAIN = "its round: a generation failed, so it is measured once more"
_Tried = list[tuple[Row, ...]]  # the rows of a round, job by job


@dataclass
class Session:
    """Measures what is missing, once, and what `watch` doubts again: a whole round, as a further repeat, at most
    MOST_TRIES times (validity.py). What is in the file decides, so a resumed run goes on where it was, and without
    `watch` only tries that have begun are finished.

    `done` generations of `total` are in the file, tries of earlier processes left out of both; `measured` and `failed`
    are of this process and leave warm-up out; `lost` rounds of the file were not made good, whoever measured them."""

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
        if any(map(self._is_due, self.plan.by_batch())):
            self._learn()
            self._warm_up(most_warm_up_rounds)
        for jobs in self.plan.by_batch():
            if self._is_due(jobs):
                self._measure_batch(jobs)
            else:
                self.lost += sum(not _is_made_good(list(self._tries(planned))) for planned in rounds(jobs))

    def _is_due(self, jobs: Sequence[Job]) -> bool:
        """Whether anything of a batch is to be measured."""
        return any(self._is_open(planned) for planned in rounds(jobs))

    def _is_open(self, planned: Round) -> bool:
        """Whether a round is not in the file, or as one out of bounds that is to be measured again."""
        tries = list(self._tries(planned))
        if not tries:
            return True
        over = self._is_good(tries[-1]) or len(tries) > MOST_TRIES
        return not over and self._is_to_be_tried(self.plan.again(planned, len(tries)))

    def _tries(self, planned: Round) -> Iterator[_Tried]:
        """What the file has as a whole: a round, and then as often as it was measured again."""
        again = planned
        for number in range(1, MOST_TRIES + 2):
            if not all(map(self._is_stored, again)):
                return
            yield (found := [self._rows(job) for job in again])
            if self._is_good(found):
                return
            again = self.plan.again(planned, number)

    def _is_to_be_tried(self, again: Round) -> bool:
        return any(map(self._is_stored, again)) or (self.watch is not None and not self.watch.lasts)

    def _is_stored(self, job: Job) -> bool:
        """A batch is in a file as a whole, or not at all."""
        return job[0].key in self._stored

    def _rows(self, job: Job) -> tuple[Row, ...]:
        return tuple(self._stored[task.key] for task in job)

    def _learn(self) -> None:
        """What was usual to the rounds of the file, those out of bounds left out, as if this process had measured them.

        A process that knew nothing of them would take a load that still lasts for the usual one, and what it measures
        again for good.
        """
        if self.watch is None:
            return
        warm_up = map(self.plan.warm_up, range(1, self._warm_ups_stored() + 1))
        for planned in chain(warm_up, chain.from_iterable(map(rounds, self.plan.by_batch()))):
            for tried in self._tries(planned):
                if not any(row.invalid for row in _rows_of(tried)):
                    for place, rows in enumerate(tried, 1):
                        self.watch.observe(rows, ends_round=place == len(tried))

    def _measure_batch(self, jobs: Sequence[Job]) -> None:
        """Its rounds as planned, then those again that were out of bounds: by then a passing load may have passed."""
        self.measurer.begin([task.prompt for task in jobs[0]])
        begun = [(planned, [self._take(planned)]) for planned in rounds(jobs)]
        for planned, tries in begun:
            self._settle(planned, tries)
            self.lost += not _is_made_good(tries)

    def _settle(self, planned: Round, tries: list[_Tried]) -> None:
        """Measure a round again until nothing speaks against it, or it is to be tried no more."""
        while not self._is_good(tries[-1]) and len(tries) <= MOST_TRIES:
            again = self.plan.again(planned, len(tries))
            if not self._is_to_be_tried(again):
                return
            self.total += sum(len(job) for job in again if not self._is_stored(job))
            tries.append(self._take(again))

    def _take(self, jobs: Round) -> _Tried:
        """Measure a round, or what the file lacks of it."""
        whole = all(map(self._is_stored, jobs))  # of which `_learn` has learned
        found: _Tried = []
        for job in jobs:
            last = job is jobs[-1]
            if not self._is_stored(job):
                found.append(self._measure(job, last, found))
                continue
            found.append(self._recall(job))
            if self.watch is not None and not whole:
                self.watch.observe(found[-1], ends_round=last)
        return found

    def _is_good(self, tried: _Tried) -> bool:
        """Whether nothing speaks against a round. One measured again must have no failures either: what disturbed it
        before may have taken its memory by now."""
        return not any(row.invalid or (row.error and row.repeat >= self.plan.repeats) for row in _rows_of(tried))

    def _measure(self, job: Job, ends_round: bool, before: _Tried) -> tuple[Row, ...]:
        """Measure a job of a round, of which there are the rows `before`."""
        rows = self.measurer.measure(job)
        if self.watch is not None:
            rows = self.watch.mark(rows, ends_round=ends_round)
        if ends_round:
            rows = self._mark_failed_again([*before, rows], rows)
        self.writer.append(*rows)
        self.done += len(rows)
        self.measured += len(rows)
        self.failed += sum(row.error is not None for row in rows)
        self.report(Progress(self.done, self.total, job[0].label))
        return rows

    def _mark_failed_again(self, tried: _Tried, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """The last rows of a round, marked where it was measured again, has a failure and is to be tried once more:
        else the labels that did not fail would be in figures with both."""
        again = rows[0].repeat // self.plan.repeats
        if not 0 < again < MOST_TRIES or not any(row.error for row in _rows_of(tried)):
            return rows
        return tuple(replace(row, invalid="; ".join(filter(None, (row.invalid, _FAILED_AGAIN)))) for row in rows)

    def _warm_up(self, most_rounds: int) -> None:
        """Rounds of the measured loop until two in a row take the same time, or `most_rounds` are done."""
        before, previous_s = self._warm_ups_stored(), dict[str, float]()
        for number in range(1, most_rounds + 1):
            latest_s = self._warm_up_round(self.plan.warm_up(before + number))
            self.warm_up_rounds = number
            if previous_s and is_stable(previous_s, latest_s):
                return
            previous_s = latest_s

    def _warm_ups_stored(self) -> int:
        return max((-row.repeat for row in self._stored.values() if row.repeat < 0), default=0)

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

    def _recall(self, job: Job) -> tuple[Row, ...]:
        rows = self._rows(job)
        for task, row in zip(job, rows, strict=True):
            self.measurer.recall(task, row)
        return rows


def _rows_of(tried: _Tried) -> Iterator[Row]:
    return chain.from_iterable(tried)


def _is_made_good(tries: Sequence[_Tried]) -> bool:
    """Whether a try of a round is in bounds, with as many answers as any of them has (see analysis.doubts)."""
    answered = [sum(row.error is None for row in _rows_of(tried)) for tried in tries]
    return any(
        count == max(answered) and not any(row.invalid for row in _rows_of(tried))
        for count, tried in zip(answered, tries, strict=True)
    )


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
