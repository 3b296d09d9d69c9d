"""What a reader is told of what could not be judged, and of how steady the machine was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import DRAFTED, EXITING, RUN, baseline_row, drafted_row, exiting_row, failed, usual_rows

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.frame.build import to_frame
from benchctl.analysis.warnings import (
    UNJUDGED,
    cautions,
    divergence_left_out,
    failed_controls,
    hardly_judged,
    left_out,
    unsteady,
)
from benchctl.measuring.validity import ENOUGH
from benchctl.records.schema import Row, Run
from benchctl.records.writer import RunFile


def group_of(rows: Sequence[Row], run: Run = RUN) -> Group:
    (group,) = compare([RunFile(Path("a.jsonl"), run, tuple(rows))])
    return group


def met(rows: Sequence[Row], **conditions: float) -> list[Row]:
    return [replace(row, conditions=conditions) for row in rows]


@pytest.mark.parametrize(("slow_s", "told"), [(1.05, False), (1.5, True)])
def test_an_unsteady_sentinel_is_told_of(slow_s: float, told: bool) -> None:
    """It is recorded with every generation and marks nothing; nobody was told of it."""
    rows = usual_rows(20)
    rows = [replace(row, conditions={"sentinel_s": slow_s if at % 10 == 3 else 1.0}) for at, row in enumerate(rows)]
    found = list(unsteady(group_of(rows)))
    assert [("took 50% longer than usual" in caution) for caution in found] == [True] * told
    assert list(unsteady(group_of(usual_rows(20)))) == []


def test_files_that_were_unsteady_are_told_of_together() -> None:
    """Five sessions made five notes of the same words, which hid the others."""
    files = [
        RunFile(Path(f"{number}.jsonl"), RUN, tuple(
            replace(row, session=number, conditions={"sentinel_s": slow_s if at % 10 == 3 else 1.0})
            for at, row in enumerate(usual_rows(20))))
        for number, slow_s in enumerate((1.5, 1.05, 1.75))
    ]  # fmt: skip
    (group,) = compare(files)
    (caution,) = unsteady(group)
    assert caution.startswith("0.jsonl, 2.jsonl: the machine was unsteady")
    assert "took 50% to 75% longer than usual" in caution


@pytest.mark.parametrize(("prompts", "told"), [(ENOUGH, True), (ENOUGH + 1, False)])
def test_a_run_of_so_few_rounds_that_none_was_judged_says_so(prompts: int, told: bool) -> None:
    """None of its rows is marked, which looks as if nothing had disturbed it."""
    rows = usual_rows(prompts)
    assert bool(list(hardly_judged(group_of(met(rows, waited_share=0.0))))) == told
    assert list(hardly_judged(group_of(rows))) == [], "one without a watch was not to be judged"
    assert UNJUDGED == ENOUGH


def test_cautions_include_these() -> None:
    rows = [
        replace(row, conditions={"waited_share": 0.0, "sentinel_s": 1.0 + at % 2})
        for at, row in enumerate(usual_rows(5))
    ]
    text = " ".join(cautions(group_of(rows)))
    assert "the machine was unsteady" in text and "hardly any could be judged" in text


def test_answers_whose_controls_failed_are_counted_and_no_method_with_one_is_called_lossless() -> None:
    """Their verdicts are missing, and the others would speak for them."""
    good, bad = drafted_row("p0"), replace(drafted_row("p1"), verdict=None, fidelity={"failed_controls": 1.0})
    baselines = [baseline_row("p0"), baseline_row("p1")]
    assert lossless([*baselines, good, drafted_row("p1")]) is True
    group = group_of([*baselines, good, bad])
    assert lossless([*baselines, good, bad]) is False
    (told,) = failed_controls(group)
    assert told.startswith(f"{DRAFTED}: of 1 of 2 answers the verdict") and told in cautions(group)
    assert list(failed_controls(group_of([*baselines, good]))) == []


def lossless(rows: Sequence[Row]) -> bool:
    return next(method.lossless for method in group_of(rows).pooled.methods if method.label == DRAFTED)


def test_the_divergence_says_of_how_many_answers_it_is() -> None:
    told: tuple[dict[str, float], ...] = (
        {"kl_tokens": 9.0, "kl_nats": 1.0},
        {"kl_infinite_tokens": 9.0},
        {"kl_unrepeated_tokens": 9.0},
        {},
    )
    rows = [row for at, sums in enumerate(told) for row in (baseline_row(f"p{at}"), of(f"p{at}", sums))]
    (caution,) = divergence_left_out(group_of(rows))
    assert caution.startswith(f"{EXITING}: its KL is of 1 of 3 answers. It is infinite for 1, and 1 were not given")
    assert caution in cautions(group_of(rows))
    assert list(divergence_left_out(group_of(rows[:2]))) == []
    loud = [replace(row, repeat=2, invalid="loud") for row in rows]
    assert list(divergence_left_out(group_of([*rows, *loud]))) == [caution], "the mean is not of these"


def of(prompt_id: str, sums: dict[str, float]) -> Row:
    return replace(exiting_row(prompt_id), fidelity=sums)


def test_what_was_measured_again_does_not_make_up_for_a_prompt_that_is_missing() -> None:
    """A repeat that is missing and another that was measured twice come to as many rows as were planned."""
    run = replace(RUN, repeats=2)
    rows = [replace(row, repeat=repeat) for row in usual_rows(20) for repeat in (0, 1)]
    assert not any("in full" in caution for caution in cautions(group_of(rows, run)))
    short = [row for row in rows if (row.prompt_id, row.repeat) != ("p3", 1)]
    again = [replace(row, repeat=2) for row in rows if (row.prompt_id, row.repeat) == ("p3", 0)]
    for found in (short, [*short, *again]):
        (told,) = (caution for caution in cautions(group_of(found, run)) if "in full" in caution)
        assert "19 of 20 prompts in full" in told


def test_one_repeat_is_one_also_where_a_round_was_measured_again() -> None:
    run = replace(RUN, repeats=1)
    first = [replace(row, invalid="loud") if row.prompt_id == "p3" else row for row in usual_rows(20)]
    again = [replace(row, repeat=1, invalid="") for row in first if row.prompt_id == "p3"]
    assert any("timed once" in caution for caution in cautions(group_of([*first, *again], run)))


@pytest.mark.parametrize(
    ("tries", "ends"),
    [
        (("",), "1 of them was measured again, within bounds."),
        (("loud",), "Free the machine, and run again or go on with --resume."),
        (("loud", ""), "1 of them was measured again, within bounds."),
    ],
)
def test_a_round_that_was_made_good_is_told_apart_from_one_that_is_lost(tries: tuple[str, ...], ends: str) -> None:
    rows = usual_rows(20)
    of_one = [row for row in rows if row.prompt_id == "p3"]
    rows = [replace(row, invalid="loud") if row.prompt_id == "p3" else row for row in rows]
    rows += [replace(row, repeat=2 * at, invalid=why) for at, why in enumerate(tries, 1) for row in of_one]
    (told,) = left_out(group_of(rows))
    assert told.startswith("1 of 20 rounds was left out of all figures") and told.endswith(ends)
    good = to_frame([RunFile(Path("a.jsonl"), RUN, tuple(rows))])
    assert (~good["round_invalid"]).sum() == 3 * (19 + ("" in tries))


@pytest.mark.parametrize(
    ("planned_fails", "again_fails", "cut", "good"),
    [
        ((), (), 0, True),
        ((), (), 1, False),
        ((), (EXITING,), 0, False),
        ((EXITING,), (EXITING,), 0, True),
        ((EXITING,), (), 0, True),
        ((EXITING,), (DRAFTED, EXITING), 0, False),
    ],
)
def test_a_try_makes_up_for_a_round_only_with_as_many_answers(
    planned_fails: tuple[str, ...], again_fails: tuple[str, ...], cut: int, good: bool
) -> None:
    """One that a kill cut after the baseline's row, or in which a method failed, counted as measured again, and the
    advice to go on with --resume was not given. What fails whenever it is tried is good for the others."""
    rows = usual_rows(20)
    of_one = [row for row in rows if row.prompt_id == "p3"]
    rows = [row for row in rows if row.prompt_id != "p3"]
    rows += [replace(tried(row, planned_fails), invalid="loud") for row in of_one]
    rows += [replace(tried(row, again_fails), repeat=2) for row in of_one[: len(of_one) - cut]]
    (told,) = left_out(group_of(rows))
    assert told.endswith("1 of them was measured again, within bounds.") == good
    assert told.endswith("go on with --resume.") != good


def tried(row: Row, fails: Sequence[str]) -> Row:
    return failed(row) if row.label in fails else row
