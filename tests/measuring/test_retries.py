"""The order of a run, and which of its rounds are still to be measured, decided by rows alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_sessions import LABELS, Met, row_of

from benchctl.measuring.plan import MOST_RETRIES, Job, Plan, Round, Task, rounds
from benchctl.measuring.prompts.files import Prompt
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row

PLAN = Plan((Prompt("p", "koala", ("Hi",)),), LABELS, repeats=2)
FIRST, SECOND = rounds(next(PLAN.by_batch()))
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
def test_a_disturbed_round_is_retried_until_it_is_good_or_thrice_bad(
    states: tuple[str, ...], retry: int | None
) -> None:
    expected = {None: None, 0: FIRST}.get(retry, PLAN.again(FIRST, retry or 0))
    assert PLAN.next_attempt(FIRST, after(*states), may_retry=True) == expected
    assert PLAN.next_attempt(SECOND, after(*states), may_retry=True) == SECOND
    assert len(states) <= MOST_RETRIES + 1


@pytest.mark.parametrize(("number", "marked"), [(0, False), (1, True), (2, False)])
def test_a_failed_retry_is_marked_where_another_one_follows(number: int, marked: bool) -> None:
    attempt = PLAN.again(FIRST, number) if number else FIRST
    rows = list(rows_of(attempt, FAILED).values())
    last = PLAN.mark_failed(rows, tuple(rows[-1:]))
    assert bool(last[0].invalid) == marked


def test_sessions_and_retries_need_no_torch(root: Path) -> None:
    code = "import sys, benchctl.measuring.session, benchctl.measuring.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


ONE = Prompt("1", "koala", ("Hi",))
TWO = Prompt("2", "mt-bench", ("Hi", "And?"))


def single(jobs: Iterable[Job]) -> list[Task]:
    """The tasks of jobs that are no batches."""
    return [task for (task,) in jobs]


def names(tasks: Iterable[Task]) -> list[str]:
    return [f"{task.prompt.id}.{task.turn} {task.label} {task.repeat}" for task in tasks]


def test_labels_take_turns_within_each_turn_of_a_prompt() -> None:
    (jobs,) = Plan((TWO,), ("base", "b"), repeats=2).by_batch()
    assert names(single(jobs)) == [
        "2.0 base 0", "2.0 b 0", "2.1 base 0", "2.1 b 0",
        "2.0 b 1", "2.0 base 1", "2.1 b 1", "2.1 base 1",
    ]  # fmt: skip


def test_every_other_repeat_runs_backwards_so_that_a_drift_affects_all_labels_equally() -> None:
    """What a steady drift adds to a label grows with its mean place in time."""
    labels = ("base", "b", "c", "d")
    (jobs,) = Plan((ONE,), labels, repeats=2).by_batch()
    tasks = single(jobs)
    assert [task.label for task in tasks] == [*labels, *labels[::-1]]
    assert {sum(task.order for task in tasks if task.label == label) for label in labels} == {7}


def test_the_order_counts_through_all_prompts() -> None:
    plan = Plan((ONE, TWO), ("base", "b"), repeats=2)
    tasks = [task for jobs in plan.by_batch() for task in single(jobs)]
    assert [task.order for task in tasks] == list(range(12))
    assert len(plan) == 12
    assert len({task.key for task in tasks}) == 12


def test_a_warm_up_round_is_the_first_prompt_with_a_negative_repeat_baseline_first() -> None:
    plan = Plan((TWO, ONE), ("base", "b"), repeats=2)
    assert names(single(plan.warm_up(1))) == ["2.0 base -1", "2.0 b -1", "2.1 base -1", "2.1 b -1"]
    assert [task.order for task in single(plan.warm_up(2))] == [4, 5, 6, 7]
    assert {task.repeat for task in single(plan.warm_up(2))} == {-2}


def test_modes_of_a_label_follow_each_other_and_turn_round_with_the_labels() -> None:
    """The baseline runs freely before anything is to say its text."""
    (jobs,) = Plan((ONE,), ("base", "b"), repeats=2, modes=("free", "replay")).by_batch()
    tasks = single(jobs)
    assert [(task.label, task.mode) for task in tasks] == [
        ("base", "free"), ("base", "replay"), ("b", "free"), ("b", "replay"),
        ("b", "replay"), ("b", "free"), ("base", "replay"), ("base", "free"),
    ]  # fmt: skip
    assert len({task.key for task in tasks}) == len(Plan((ONE,), ("base", "b"), 2, modes=("free", "replay"))) == 8


MIXED = (
    *(Prompt(str(number), "koala", ("Hi",)) for number in range(5)),
    TWO,
    replace(TWO, id="3"),
    replace(ONE, suite="vicuna"),
)


def test_a_batch_has_prompts_of_one_suite_that_follow_each_other_and_have_as_many_turns() -> None:
    batches = Plan(MIXED, ("base",), repeats=1, batch_size=3).batches
    assert [[prompt.id for prompt in batch] for batch in batches] == [["0", "1", "2"], ["3", "4"], ["2", "3"], ["1"]]
    assert Plan(MIXED, ("base",), repeats=1).batches == tuple((prompt,) for prompt in MIXED)


def test_every_job_of_a_batch_is_one_label_on_all_its_prompts_in_one_turn() -> None:
    plan = Plan((TWO, replace(TWO, id="3")), ("base", "b"), repeats=2, batch_size=8)
    (jobs,) = plan.by_batch()
    assert [names(job) for job in jobs[:3]] == [
        ["2.0 base 0", "3.0 base 0"],
        ["2.0 b 0", "3.0 b 0"],
        ["2.1 base 0", "3.1 base 0"],
    ]
    assert [job[0].label for job in jobs] == ["base", "b", "base", "b", "b", "base", "b", "base"]
    assert [task.order for job in jobs for task in job] == list(range(16)) and len(plan) == 16
    assert [task.order for job in plan.warm_up(2) for task in job] == list(range(8, 16))


def test_what_has_begun_is_finished_even_without_retries() -> None:
    whole, retry = after(DISTURBED), PLAN.again(FIRST, 1)
    assert PLAN.next_attempt(FIRST, dict(list(whole.items())[:-1]), may_retry=False) == FIRST
    assert PLAN.next_attempt(FIRST, whole, may_retry=False) is None
    begun = whole | dict(list(rows_of(retry).items())[:1])
    assert PLAN.next_attempt(FIRST, begun, may_retry=False) == retry
