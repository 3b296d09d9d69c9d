"""Suites alone or together: what is left of files and groups, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import (
    DRAFTED,
    EXITING,
    KOALA,
    MT_BENCH,
    RUN,
    baseline_row,
    batch,
    drafted_row,
    usual_rows,
    write,
)
from refusals import refused

from benchctl.analysis.comparison import by_suite, compare, only_suites, with_categories
from benchctl.analysis.metrics.drafting import BLOCK_EFFICIENCY
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.tables.text import View, render
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


def of_categories(tmp_path: Path, categories: dict[str, str], name: str = "a.jsonl") -> RunFile:
    """Prompts p0 and p1 take the drafting method 10 of the baseline's 10 s, p2 takes it 4 s."""
    slow, fast = drafted_row(ttft_s=2.0, step_s=2.0), drafted_row(ttft_s=1.0, step_s=0.75)
    rows = [
        replace(row, prompt_id=prompt_id)
        for prompt_id, drafted in (("p0", slow), ("p1", slow), ("p2", fast))
        for row in (baseline_row(), drafted)
    ]
    return read(write(tmp_path / name, rows, replace(RUN, suites=(replace(KOALA, categories=categories),))))


MATHS = {"p0": "maths", "p1": "maths", "p2": "rag"}


def test_each_category_has_the_figures_of_its_prompts(tmp_path: Path) -> None:
    groups = with_categories(compare([of_categories(tmp_path, MATHS)]))
    ((maths, rag),) = (group.categories for group in groups)
    assert (maths.name, rag.name, maths.suite, rag.category) == ("koala/maths", "koala/rag", "koala", "rag")
    found = {part.name: {each.label: each for each in part.methods} for part in (maths, rag)}
    assert [found[name][DRAFTED].prompts for name in ("koala/maths", "koala/rag")] == [2, 1]
    assert found["koala/maths"][DRAFTED].estimate(SPEEDUP).value == pytest.approx(20 / 20)
    assert found["koala/rag"][DRAFTED].estimate(SPEEDUP).value == pytest.approx(10 / 4)
    assert found["koala/rag"][DRAFTED].estimate(BLOCK_EFFICIENCY).value == 2.0
    assert groups[0].suites == compare([of_categories(tmp_path, MATHS)])[0].suites


def test_the_table_by_category_has_speed_up_and_tokens_per_step_or_the_columns_asked_for(tmp_path: Path) -> None:
    groups = with_categories(compare([of_categories(tmp_path, MATHS)]))
    lines = render(groups, "md").splitlines()
    at = lines.index("**By category, koala/rag**")
    assert lines[at + 2] == "| method | speed-up [95%] | tokens per step |"
    assert lines[at + 4 :][:2] == [
        "| autoregressive | baseline | 1.00 |",
        "| two_model draft_tokens=3 | 2.50x n/a (1 prompt) | 2.00 |",
    ]
    asked = render(groups, "md", View(columns=("block_efficiency",))).splitlines()
    assert asked[asked.index("**By category, koala/rag**") + 2] == "| method | block efficiency |"


def test_csv_has_a_line_for_each_category_before_those_of_the_suites(tmp_path: Path) -> None:
    groups = with_categories(compare([of_categories(tmp_path, MATHS)]))
    lines = [line.split(",")[1:3] for line in render(groups, "csv").splitlines()[1:]]
    assert lines == [[name, "published"] for name in ("koala/maths", "koala/rag", "koala") for _ in range(2)]


def test_one_file_with_categories_is_enough_for_those_of_the_same_prompts(tmp_path: Path) -> None:
    """Files of earlier versions have none."""
    files = [of_categories(tmp_path, {}, "old.jsonl"), of_categories(tmp_path, MATHS, "new.jsonl")]
    (group,) = with_categories(compare(files))
    assert [part.methods[0].generations for part in group.categories] == [4, 2]


def test_a_category_that_was_not_measured_yet_is_left_out(tmp_path: Path) -> None:
    (group,) = with_categories(compare([of_categories(tmp_path, MATHS | {"p3": "qa"})]))
    assert [part.category for part in group.categories] == ["maths", "rag"]


def test_suites_of_one_category_are_not_split_and_batches_of_several_are_refused(tmp_path: Path) -> None:
    for categories in ({}, dict.fromkeys(MATHS, "maths")):
        with refused("no_categories"):
            with_categories(compare([of_categories(tmp_path, categories)]))
    rows = batch(*(baseline_row(f"p{n}") for n in range(2))) + batch(*(drafted_row(f"p{n}") for n in range(2)))
    run = replace(RUN, batch_size=2, suites=(replace(KOALA, categories={"p0": "maths", "p1": "rag"}),))
    with refused("categories_in_batches", "koala/maths"):
        with_categories(compare([read(write(tmp_path / "batches.jsonl", rows, run))]))
