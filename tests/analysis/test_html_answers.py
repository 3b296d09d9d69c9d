"""Which answers a report shows, and that what it says of their texts is what the tokens say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, baseline_row, drafted_row, usual_rows, write
from fixtures_scores import own, score, write_both
from pages import TWO_SUITES, groups_of, two_suites, usual_groups

from benchctl.analysis.comparison import compare
from benchctl.analysis.html import answers as html_answers
from benchctl.analysis.html.answers import answered, answers
from benchctl.records.writer import read


@pytest.mark.parametrize(
    ("theirs", "mine", "cut"),
    [("a smile 😀 here", "a smile 😀 there", 11), ("more text", "more", 4), ("the same", "the same", None)],
)
def test_the_cut_is_the_first_letter_that_differs_as_browsers_count(
    tmp_path: Path, theirs: str, mine: str, cut: int | None
) -> None:
    """A smile is two units in a browser and one character in Python."""
    row = replace(drafted_row(), text=mine)
    if cut is not None:
        row = replace(row, verdict="lossy", first_divergence=3)
    (group,) = groups_of(tmp_path, [replace(baseline_row(), text=theirs), row])
    (found,) = (each for each in answers(1, group) if each.place.label == DRAFTED)
    assert (found.answer.cut, found.baseline.cut, found.answer.steps) == (cut, cut, ((1, 2),) * 4)


def test_answers_that_leave_the_baseline_s_come_first_and_suites_take_turns(tmp_path: Path) -> None:
    rows = [
        replace(row, verdict="lossy", first_divergence=1, margin=0.1, noise=0.0)
        if row.label == DRAFTED and row.prompt_id in ("p7", "p9")
        else row
        for row in two_suites()
    ]
    (group,) = groups_of(tmp_path, rows, TWO_SUITES)
    own_answers = [each for each in answers(1, group) if each.place.label == DRAFTED]
    places = [(each.verdict, each.place.suite, each.place.prompt_id) for each in own_answers[:6]]
    assert places == [
        ("lossy", "koala", "p7"),
        ("lossy", "mt-bench", "p7"),
        ("lossy", "koala", "p9"),
        ("lossy", "mt-bench", "p9"),
        ("identical", "koala", "p0"),
        ("identical", "mt-bench", "p0"),
    ]


def test_repeats_are_shown_once_and_warm_up_and_failures_never(tmp_path: Path) -> None:
    rows = [replace(row, repeat=repeat) for repeat in (-1, 0, 1) for row in usual_rows(3)]
    (group,) = groups_of(tmp_path, rows)
    found = answers(1, group)
    assert sorted((each.place.label, each.place.prompt_id, each.place.repeat) for each in found) == [
        (label, f"p{number}", 0) for label in sorted((EXITING, DRAFTED)) for number in range(3)
    ]
    assert answered(group) == 6


def test_an_answer_that_left_the_baseline_s_in_one_repeat_alone_is_the_one_shown(tmp_path: Path) -> None:
    """Of each turn the first repeat was shown, so that a divergence which the figures counted could not be seen."""
    rows = [replace(row, repeat=repeat) for repeat in (0, 1, 2) for row in usual_rows(3)]
    odd = next(at for at, row in enumerate(rows) if (row.label, row.prompt_id, row.repeat) == (DRAFTED, "p2", 1))
    rows[odd] = replace(rows[odd], verdict="lossy", first_divergence=1, margin=0.1, noise=0.0)
    (group,) = groups_of(tmp_path, rows)
    found = [each for each in answers(1, group) if each.place.label == DRAFTED]
    assert [(each.verdict, each.place.prompt_id, each.place.repeat) for each in found] == [
        ("lossy", "p2", 1),
        ("identical", "p0", 0),
        ("identical", "p1", 0),
    ]


def test_an_answer_that_broke_a_claim_in_a_disturbed_round_is_shown(tmp_path: Path) -> None:
    """The claim was broken by an answer that the report did not contain."""
    rows = usual_rows(3)
    again = [replace(row, repeat=RUN.repeats) for row in rows if row.prompt_id == "p2"]
    odd = next(at for at, row in enumerate(rows) if (row.label, row.prompt_id) == (DRAFTED, "p2"))
    rows[odd] = replace(rows[odd], verdict="lossy", first_divergence=1, invalid="throttled")
    (group,) = groups_of(tmp_path, [*rows, *again])
    found = [(each.verdict, each.place.prompt_id) for each in answers(1, group) if each.place.label == DRAFTED]
    assert found == [("lossy", "p2"), ("identical", "p0"), ("identical", "p1")]


def test_no_method_has_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_answers, "MOST_OF_A_METHOD", 4)
    (group,) = usual_groups()
    labels = [each.place.label for each in answers(1, group)]
    assert labels == [DRAFTED, EXITING] * 4
    assert answered(group) == 40


def test_what_judges_said_stands_by_the_answer_it_was_said_of(tmp_path: Path) -> None:
    """A score of a text that was measured anew since is of no answer here."""
    rows = [replace(row, text="mine") if row.label == EXITING else row for row in usual_rows(3)]
    scores = [
        score("p0", 4, 9, reply="4 9\nIt says <b>nothing</b>."),
        own(EXITING, "p1", 6, reply="6"),
        score("p2", 5, 5, answer_sha256="0" * 64),
    ]
    path = write_both(tmp_path / "run.jsonl", rows, scores, RUN)
    (group,) = compare([read(path)], ())
    found = {each.place.prompt_id: each.judgements for each in answers(1, group)
             if each.place.label == EXITING}  # fmt: skip
    (said,) = found["p0"]
    assert (said["score"], said["baseline_score"], said["order"]) == (4, 9, "baseline_first")
    assert said["reply"] == "4 9\nIt says <b>nothing</b>." and str(said["judge"]).startswith("gpt")
    assert [(said["score"], said["baseline_score"]) for said in found["p1"]] == [(6, None)]
    assert found["p2"] == ()


def test_sessions_are_told_apart(tmp_path: Path) -> None:
    """Two files of one group hold answers under the same keys: each stands beside the baseline's of its own file."""
    one, two = (
        write(tmp_path / f"{name}.jsonl", [replace(row, text=f"{name} {row.label}") for row in usual_rows(2)])
        for name in ("one", "two")
    )
    (group,) = compare([read(one), read(two)])
    found = answers(1, group)
    assert {(each.answer.text.split()[0], each.baseline.text) for each in found} == {("one", f"one {BASELINE}")}
