"""Suites alone or together: what is left of files and groups, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import EXITING, KOALA, MT_BENCH, RUN, usual_rows, write
from refusals import refused

from benchctl.analysis.comparison import by_suite, compare, only_suites
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.records.schema import Row
from benchctl.records.writer import RunFile, read

BOTH = replace(RUN, suites=(KOALA, MT_BENCH))


def rows() -> list[Row]:
    """mt-bench is answered twice as fast by early_exit as koala is."""
    first = usual_rows(3)
    second = [
        replace(
            row, suite="mt-bench", step_s=tuple(step / 2 for step in row.step_s) if row.label == EXITING else row.step_s
        )
        for row in first
    ]
    return [*first, *second]


@pytest.fixture
def both(tmp_path: Path) -> RunFile:
    return read(write(tmp_path / "both.jsonl", rows(), BOTH))


def speed(groups: object, label: str = EXITING) -> list[float | None]:
    found = [next(one for one in group.pooled.methods if one.label == label) for group in groups]  # type: ignore[attr-defined]
    return [one.estimate(SPEEDUP).value for one in found]


def test_each_suite_is_a_group_with_its_own_figures_and_rows(both: RunFile) -> None:
    (together,) = compare([both])
    groups = by_suite([together])
    assert [group.pooled.suite for group in groups] == ["koala", "mt-bench"]
    assert [group.suites for group in groups] == [(together.suites[0],), (together.suites[1],)]
    assert [set(group.frame["suite"]) for group in groups] == [{"koala"}, {"mt-bench"}]
    slow, fast = speed(groups)
    assert slow and fast and slow < speed([together])[0] < fast  # type: ignore[operator]


def test_a_group_of_one_suite_stays_as_it_is(tmp_path: Path) -> None:
    (alone,) = compare([read(write(tmp_path / "a.jsonl", usual_rows(3)))])
    (group,) = by_suite([alone])
    assert group.suites == alone.suites and len(group.frame) == len(alone.frame)


def test_one_suite_of_two_is_what_a_run_of_it_alone_would_be(both: RunFile, tmp_path: Path) -> None:
    (kept,) = only_suites([both], ["mt-bench"])
    alone = write(
        tmp_path / "alone.jsonl", [row for row in rows() if row.suite == "mt-bench"], replace(RUN, suites=(MT_BENCH,))
    )
    assert speed(compare([kept])) == speed(compare([read(alone)]))
    assert kept.run.suites == (MT_BENCH,)


def test_files_without_the_suite_are_left_out_and_others_become_comparable(both: RunFile, tmp_path: Path) -> None:
    koala = read(write(tmp_path / "koala.jsonl", usual_rows(3)))
    assert len(compare([both, koala])) == 2
    assert len(compare(only_suites([both, koala], ["koala"]))) == 1
    assert [file.path for file in only_suites([both, koala], ["mt-bench"])] == [both.path]


def test_a_suite_that_was_not_measured_is_refused_with_those_that_were(both: RunFile) -> None:
    with refused("unknown_suite", "alpaca", "koala, mt-bench"):
        only_suites([both], ["koala", "alpaca"])
