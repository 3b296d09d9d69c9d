"""Which rounds of a plan are still to be measured: decided by rows alone, so a resumed run decides the same.

A round that other load disturbed is measured again as a whole, at most MOST_RETRIES times, each time as a further
repeat (Plan.again). A single generation is never repeated alone: load hits a short one fully or not at all and a long
one on average, so replacing only the worst generations would make the shorter method look fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchctl.measuring.plan import Plan, Round
from benchctl.records.reader import RowKey
from benchctl.records.schema import Row

MOST_RETRIES = 2
_FAILED_RETRY = "its round: a generation failed, so it is measured once more"
RowsByKey = Mapping[RowKey, Row]


@dataclass(frozen=True)
class Retries:
    """The retries of a plan's rounds. An attempt is the planned round or one of its retries."""

    plan: Plan

    def next_attempt(self, planned: Round, rows: RowsByKey, may_retry: bool) -> Round | None:
        """What is to be measured next of a planned round, `rows` being what there is of it; None when it is done.

        Without `may_retry` only attempts that have begun are finished.
        """
        whole = list(self.attempts(planned, rows))
        if not whole:
            return planned
        if self._is_good(whole[-1], rows) or len(whole) > MOST_RETRIES:
            return None
        retry = self.plan.again(planned, len(whole))
        return retry if may_retry or any(job[0].key in rows for job in retry) else None

    def attempts(self, planned: Round, rows: RowsByKey) -> Iterator[Round]:
        """The whole attempts at a round, up to the first good one."""
        for number in range(MOST_RETRIES + 1):
            attempt = self.plan.again(planned, number) if number else planned
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
        number = last[0].repeat // self.plan.repeats
        if not 0 < number < MOST_RETRIES or not any(row.error for row in attempt):
            return last
        return tuple(replace(row, invalid="; ".join(filter(None, (row.invalid, _FAILED_RETRY)))) for row in last)

    def _is_good(self, attempt: Round, rows: RowsByKey) -> bool:
        """Whether an attempt needs no retry: no row is invalid and, in a retry, none failed. A failure in the planned
        round belongs to the method; in a retry the disturbance may have caused it."""
        return not any(row.invalid or (row.error and row.repeat >= self.plan.repeats) for row in rows_of(attempt, rows))


def rows_of(attempt: Round, rows: RowsByKey) -> list[Row]:
    """The rows of a whole attempt, in order."""
    return [rows[task.key] for job in attempt for task in job]
