"""Judgements become verdicts and figures as by hand, and none is of another text than the one that was judged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_records import BASELINE, EXITING, RUN, baseline_row, exiting_row, failed
from fixtures_scores import both_orders, own, same, score, sha256, write_both
from warned import warned

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.judges.figures import (
    CONSISTENCY,
    FIRST_WINS,
    LONGER_WINS,
    LOSS,
    SCORE,
    SCORE_DIFFERENCE,
    TIE,
    WIN,
    JudgedFigures,
)
from benchctl.records.schema import Row
from benchctl.records.scores import Score
from benchctl.records.writer import read

PROMPTS = [f"p{number}" for number in range(6)]


def rows(prompts: Sequence[str] = PROMPTS, mine: str = "mine") -> list[Row]:
    return [row for prompt in prompts for row in (baseline_row(prompt), replace(exiting_row(prompt), text=mine))]


def group_of(tmp_path: Path, scores: Sequence[Score], answers: Sequence[Row] = (), **changes: Any) -> Group:
    run = replace(RUN, **changes)
    path = write_both(tmp_path / "run.jsonl", answers or rows(), scores, run)
    (group,) = compare([read(path)], ())
    return group


def figures_of(group: Group, label: str = EXITING) -> JudgedFigures:
    (found,) = next(method for method in group.pooled.methods if method.label == label).judged
    return found


def figures(tmp_path: Path, scores: Sequence[Score], answers: Sequence[Row] = ()) -> JudgedFigures:
    return figures_of(group_of(tmp_path, scores, answers))


def value(found: JudgedFigures, metric: Any) -> float | None:
    return found.estimate(metric).value


def test_an_answer_wins_where_both_orders_say_so_and_ties_where_they_do_not_agree(tmp_path: Path) -> None:
    """A win, a loss, a tie, one order for each, one for it and one equal, and identical answers."""
    scores = [
        *both_orders("p0", (8, 6), (7, 6)),
        *both_orders("p1", (5, 6), (5, 9)),
        *both_orders("p2", (7, 7), (4, 4)),
        *both_orders("p3", (5, 8), (8, 6)),
        *both_orders("p4", (8, 6), (7, 7)),
        same("p5"),
    ]
    answers = [*rows(PROMPTS[:5]), baseline_row("p5"), exiting_row("p5")]
    found = figures(tmp_path, scores, answers)
    assert [value(found, metric) for metric in (WIN, TIE, LOSS)] == [pytest.approx(n / 6) for n in (1, 4, 1)]
    differences = [(2 + 1) / 2, (-1 - 4) / 2, 0, (-3 + 2) / 2, (2 + 0) / 2, 0]
    assert value(found, SCORE_DIFFERENCE) == pytest.approx(sum(differences) / 6)
    assert (found.pairs, found.prompts, found.identical, found.asked, found.unreadable) == (6, 6, 1, 10, 0)


def test_equal_answers_alone_tie(tmp_path: Path) -> None:
    """What a judging leaves that no server answered: compare ended in a traceback over such a file, which is what a
    method that gives the target's own answers has, too."""
    answers = [row for prompt in PROMPTS for row in (baseline_row(prompt), exiting_row(prompt))]
    found = figures(tmp_path, [same(prompt) for prompt in PROMPTS], answers)
    assert (found.pairs, found.identical, found.asked, value(found, TIE)) == (6, 6, 0, 1)
    assert value(found, SCORE_DIFFERENCE) == 0


def test_consistency_and_the_share_that_the_first_place_wins_are_of_pairs_judged_in_both_orders(tmp_path: Path) -> None:
    """p0: the method wins twice, once from the first place; p1: the first place wins twice; p2: a tie, twice; p3: the
    baseline wins from the first place, and a tie; p4 is identical: 3 of 4 are no surprise to a judge of places."""
    scores = [
        *both_orders("p0", (8, 6), (8, 6)),
        *both_orders("p1", (5, 8), (8, 5)),
        *both_orders("p2", (7, 7), (7, 7)),
        *both_orders("p3", (5, 8), (7, 7)),
        same("p4"),
    ]
    found = figures(tmp_path, scores, [*rows(PROMPTS[:4]), baseline_row("p4"), exiting_row("p4")])
    assert value(found, CONSISTENCY) == pytest.approx(2 / 4)
    assert value(found, FIRST_WINS) == pytest.approx((1 + 2 + 0 + 1) / (2 + 2 + 0 + 1))


def test_a_single_order_has_no_position_bias_to_show_and_says_so(tmp_path: Path) -> None:
    group = group_of(tmp_path, [score(prompt, 6, 5) for prompt in PROMPTS])
    found = figures_of(group)
    assert [value(found, metric) for metric in (SCORE_DIFFERENCE, WIN, FIRST_WINS, CONSISTENCY)] == [1, 1, None, None]
    assert group.judging is not None and [judge.label for judge in group.judging.one_order] == ["gpt"]


def test_a_pair_that_could_be_read_in_one_order_alone_has_no_verdict(tmp_path: Path) -> None:
    """That order has the judge's liking for a place in it: +3 of p1 would be no difference of answers."""
    scores = [*both_orders("p0", (6, 5), (6, 5)), score("p1", 9, 6, order="baseline_second"), score("p1", None, None)]
    found = figures(tmp_path, scores)
    assert (found.pairs, found.incomplete, found.asked, found.unreadable) == (1, 1, 4, 1)
    assert value(found, SCORE_DIFFERENCE) == 1


def test_samples_of_an_order_are_averaged_before_they_are_a_verdict(tmp_path: Path) -> None:
    """Of three samples one is unreadable and two say +1 and -3: the order says -1, as does the other."""
    samples = [score("p0", 7, 6, sample=0), score("p0", 4, 7, sample=1), score("p0", None, None, sample=2)]
    other = [score("p0", 5, 6, sample=number, order="baseline_second") for number in range(3)]
    found = figures(tmp_path, [*samples, *other, *both_orders("p1", (5, 5), (5, 5))])
    assert value(found, SCORE_DIFFERENCE) == pytest.approx((-1 + 0) / 2)
    assert (value(found, LOSS), value(found, CONSISTENCY), found.unreadable) == (0.5, 1, 1)


def test_single_answers_are_set_against_the_baseline_s_score_of_the_same_turn(tmp_path: Path) -> None:
    turns = [replace(row, turn=turn, order=turn) for turn in (0, 1) for row in rows(["p0", "p1"])]
    points = {(BASELINE, 0): 8, (BASELINE, 1): 4, (EXITING, 0): 7, (EXITING, 1): 5}
    scores = [own(label, prompt, of, turn=turn) for (label, turn), of in points.items() for prompt in ("p0", "p1")]
    group = group_of(tmp_path, scores, turns)
    found = figures_of(group)
    assert (found.by_turn, value(found, SCORE), value(found, SCORE_DIFFERENCE)) == ((7, 5), 6, 0)
    assert [value(found, metric) for metric in (WIN, TIE, LOSS)] == [0.5, 0, 0.5]
    assert figures_of(group, BASELINE).by_turn == (8, 4)


def test_a_single_answer_whose_baseline_was_not_read_has_no_difference(tmp_path: Path) -> None:
    scores = [own(BASELINE, "p0", None), own(EXITING, "p0", 9), own(BASELINE, "p1", 5), own(EXITING, "p1", 6)]
    found = figures(tmp_path, scores)
    assert (found.pairs, found.incomplete, value(found, SCORE_DIFFERENCE)) == (1, 1, 1)


def test_identical_single_answers_do_not_differ_however_often_they_are_judged(tmp_path: Path) -> None:
    answers = [row for prompt in ("p0", "p1") for row in (baseline_row(prompt), exiting_row(prompt))]
    text = own(BASELINE, "p0", 1).answer_sha256
    scores = [own(BASELINE, prompt, 6) for prompt in ("p0", "p1")]
    scores += [own(EXITING, prompt, 7, answer_sha256=text) for prompt in ("p0", "p1")]
    found = figures(tmp_path, scores, answers)
    assert (found.identical, value(found, SCORE_DIFFERENCE), value(found, TIE)) == (2, 0, 1)


def test_the_baseline_beside_itself_is_no_pair_that_two_judges_agree_on(tmp_path: Path) -> None:
    """Of single answers the baseline's are judged as well, and tie with themselves: two judges that contradicted each
    other on every answer of the method once said the same of half of the pairs, with a kappa of 0.2."""
    answers = [(BASELINE, 5, 5), (EXITING, 6, 4), (BASELINE, 5, 5), (EXITING, 4, 6)]
    scores = [
        own(label, prompt, points, judge=judge)
        for prompts, part in ((("p0", "p2"), answers[:2]), (("p1", "p3"), answers[2:]))
        for prompt in prompts
        for label, *both in part
        for judge, points in zip(("gpt", "other"), both, strict=True)
    ]
    group = group_of(tmp_path, scores, rows(PROMPTS[:4]))
    assert group.judging is not None
    (found,) = group.judging.agreements
    assert (found.pairs, found.alike) == (4, 0.0) and found.kappa == pytest.approx(-1.0)
    for figures in next(method for method in group.pooled.methods if method.is_baseline).judged:
        assert (figures.pairs, figures.identical, value(figures, SCORE)) == (4, 4, 5)


def test_exact_answers_lose_where_the_baseline_alone_is_right(tmp_path: Path) -> None:
    exact = {"judge": "exact", "model": "", "protocol": "exact", "order": "", "template": ""}
    points = [(0, 1), (1, 0), (0, 1), (1, 1), (0, 0)]
    scores = [score(prompt, *of, **exact) for prompt, of in zip(PROMPTS, points, strict=False)]
    found = figures(tmp_path, scores)
    assert found.judge.name == "exact"
    assert [value(found, metric) for metric in (WIN, LOSS, SCORE, SCORE_DIFFERENCE)] == [0.2, 0.4, 0.4, -0.2]
    assert found.prompts_needed is None


@pytest.mark.parametrize(("scored", "missing"), [(4, []), (3, [EXITING])])
def test_an_exact_judge_is_complete_with_the_prompts_that_have_an_exact_answer(
    tmp_path: Path, scored: int, missing: list[str]
) -> None:
    """On suites of which some prompts have none, judgements of every method were called missing."""
    exact = {"judge": "exact", "model": "", "protocol": "exact", "order": "", "template": ""}
    scores = [score(prompt, 0, 1, **exact) for prompt in PROMPTS[:scored]]
    suite = replace(RUN.suites[0], exact_answers={prompt: ("text",) for prompt in PROMPTS[:4]})
    group = group_of(tmp_path, scores, suites=(suite,))
    assert [values["missing"] for values in warned(group, "judge_incomplete")] == missing


def test_a_score_is_of_no_other_text_and_of_no_other_baseline(tmp_path: Path) -> None:
    """A run that was measured again under the same name once would have worn the scores of the earlier answers."""
    good = both_orders("p0", (5, 6), (5, 6))
    lost = [
        *both_orders("p1", (9, 1), (9, 1), answer_sha256="0" * 64),
        *both_orders("p2", (9, 1), (9, 1), baseline_sha256="0" * 64),
        score("p3", 9, 1, session=4),
        score("p4", 9, 1),
        score("p5", 9, 1, baseline="two_model[draft_tokens=3]"),
    ]
    answers = [*rows(PROMPTS[:4]), baseline_row("p4"), failed(exiting_row("p4")), *rows(["p5"])]
    group = group_of(tmp_path, [*good, *lost], answers)
    found = figures_of(group)
    assert (found.pairs, value(found, SCORE_DIFFERENCE)) == (1, -1)
    assert group.judging is not None
    assert group.judging.judged.left_out == {"gone": 2, "changed": 4, "elsewhere": 1}


def test_the_longer_answer_wins(tmp_path: Path) -> None:
    """Answers of 10 to 60 characters beside the baseline's of 30: longer, and as long where it says nothing."""
    points = [(4, 7), (5, 7), (6, 6), (8, 7), (7, 7), (6, 9)]
    answers = []
    for number, prompt in enumerate(PROMPTS):
        answers += [replace(baseline_row(prompt), text="b" * 30)]
        answers += [replace(exiting_row(prompt), text="m" * 10 * (number + 1))]
    scores = [
        one
        for number, (prompt, of) in enumerate(zip(PROMPTS, points, strict=True))
        for one in both_orders(
            prompt, of, of, answer_sha256=sha256("m" * 10 * (number + 1)), baseline_sha256=sha256("b" * 30)
        )
    ]
    found = figures(tmp_path, scores, answers)
    assert value(found, LONGER_WINS) == pytest.approx(3 / 4)  # p0, p1 and p3 of p0, p1, p3 and p5


def test_judges_of_one_file_have_figures_of_their_own(tmp_path: Path) -> None:
    scores = [one for prompt in PROMPTS for one in both_orders(prompt, (6, 5), (6, 5))]
    scores += [one for prompt in PROMPTS for one in both_orders(prompt, (5, 6), (5, 6), judge="local", model="")]
    group = group_of(tmp_path, scores)
    method = next(method for method in group.pooled.methods if method.label == EXITING)
    assert [(each.judge.name, value(each, SCORE_DIFFERENCE)) for each in method.judged] == [
        ("gpt gpt-4o pairwise", 1),
        ("local pairwise", -1),
    ]


def test_scores_in_two_files_count_once(tmp_path: Path) -> None:
    scores = [*both_orders("p0", (6, 5), (6, 5)), *both_orders("p1", (6, 6), (6, 6))]
    path = write_both(tmp_path / "run.jsonl", rows(), scores, RUN)
    (group,) = compare([read(path)], [*scores, *both_orders("p2", (4, 5), (4, 5))])
    found = figures_of(group)
    assert (found.asked, found.pairs, value(found, SCORE_DIFFERENCE)) == (6, 3, 0)
