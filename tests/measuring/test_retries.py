"""What is still due of a round, decided by its rows alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_sessions import LABELS, Met, row_of

from benchctl.measuring.plan import MOST_RETRIES, Plan, Retries, Round, rounds
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.session import SpeedupsSoFar
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row

PLAN = Plan((Prompt("p", "koala", ("Hi",)),), LABELS, repeats=2)
FIRST, SECOND = rounds(next(PLAN.by_batch()))
RETRIES = Retries(PLAN)
DISTURBED, FAILED = "disturbed", "failed"


def rows_of(attempt: Round, state: str = "") -> dict[RowKey, Row]:
    """Rows of an attempt: `state` marks the last one as disturbed, or makes the first one fail."""
    rows = [row_of(task, Met({})) for job in attempt for task in job]
    if state == DISTURBED:
        rows[-1] = replace(rows[-1], invalid="busy")
    if state == FAILED:
        rows[0] = row_of(attempt[0][0], Met({}, error="out of memory"))
    return {row_key(row): row for row in rows}


def after(*states: str) -> dict[RowKey, Row]:
    """The first round, and its retries, in these states."""
    rows: dict[RowKey, Row] = {}
    for number, state in enumerate(states):
        rows |= rows_of(PLAN.again(FIRST, number) if number else FIRST, state)
    return rows


@pytest.mark.parametrize(
    ("states", "retry"),
    [
        ((), 0),
        (("",), None),
        ((FAILED,), None),  # a failure of the method itself
        ((DISTURBED,), 1),
        ((DISTURBED, DISTURBED), 2),
        ((DISTURBED, FAILED), 2),  # the disturbance may have caused it
        ((DISTURBED, ""), None),
        ((DISTURBED, DISTURBED, DISTURBED), None),
    ],
)
def test_a_disturbed_round_is_retried_until_it_is_good_or_the_retries_are_used_up(
    states: tuple[str, ...], retry: int | None
) -> None:
    expected = {None: None, 0: FIRST}.get(retry, PLAN.again(FIRST, retry or 0))
    assert RETRIES.next_attempt(FIRST, after(*states), may_retry=True) == expected
    assert RETRIES.next_attempt(SECOND, after(*states), may_retry=True) == SECOND
    assert len(states) <= MOST_RETRIES + 1


def test_a_round_that_lacks_a_row_is_measured_first() -> None:
    whole = after(DISTURBED)
    torn = dict(list(whole.items())[:-1])
    assert RETRIES.next_attempt(FIRST, torn, may_retry=True) == FIRST


def test_without_retries_only_one_that_has_begun_is_finished() -> None:
    assert RETRIES.next_attempt(FIRST, after(DISTURBED), may_retry=False) is None
    retry = PLAN.again(FIRST, 1)
    begun = after(DISTURBED) | dict(list(rows_of(retry).items())[:1])
    assert RETRIES.next_attempt(FIRST, begun, may_retry=False) == retry


@pytest.mark.parametrize(
    ("states", "recovered"),
    [
        (("",), True),
        ((DISTURBED,), False),
        ((DISTURBED, ""), True),
        ((DISTURBED, FAILED, DISTURBED), False),
        ((FAILED,), True),
    ],
)
def test_a_round_is_recovered_by_an_undisturbed_attempt_with_all_answers(
    states: tuple[str, ...], recovered: bool
) -> None:
    assert RETRIES.is_recovered(FIRST, after(*states)) == recovered


@pytest.mark.parametrize(("number", "marked"), [(0, False), (1, True), (2, False)])
def test_a_failed_retry_is_marked_where_another_one_follows(number: int, marked: bool) -> None:
    attempt = PLAN.again(FIRST, number) if number else FIRST
    rows = list(rows_of(attempt, FAILED).values())
    last = RETRIES.mark_failed(rows, tuple(rows[-1:]))
    assert bool(last[0].invalid) == marked


def test_sessions_and_retries_need_no_torch(root: Path) -> None:
    code = "import sys, benchctl.measuring.session, benchctl.measuring.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_the_speedup_so_far_charges_a_batch_the_time_of_its_longest_row() -> None:
    """Rows of a batch were added up, so a method whose answers end together looked slow."""
    rows = [
        replace(row_of(job[0], Met({}, took_s=took_s), ("p", "q")), label=job[0].label, prompt_id=prompt_id)
        for job, times in zip(FIRST, ((10.0, 2.0), (5.0, 5.0)), strict=False)
        for prompt_id, took_s in zip(("p", "q"), times, strict=True)
    ]
    speedups = SpeedupsSoFar(FIRST[0][0].label)
    speedups.add(rows)
    assert speedups.ratios() == {FIRST[1][0].label: pytest.approx(2.0)}
