"""A winner is named with the methods that are not significantly slower, and no chance difference makes one."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from compared import file_of, group_of, value_of
from fixtures_records import BASELINE, RUN, baseline_row, drafted_row, failed, method

from benchctl.analysis.comparison import compare, over
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.intervals import Levels, p_value
from benchctl.analysis.tables.text import render
from benchctl.analysis.winner import Winner, fastest, holm
from benchctl.records.schema import Exactness, Row, Run

PROMPTS = 20


def rows_of(paces: Mapping[str, float], noise: float = 0.001, seed: int = 0, session: float = 1.0) -> list[Row]:
    """Answers of 8 s by the baseline, and by others at their pace; with a noise of each generation."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for number in range(PROMPTS):
        for label, pace in {BASELINE: 1.0, **paces}.items():
            usual = (
                baseline_row(f"p{number}", ttft_s=0.0) if label == BASELINE else drafted_row(f"p{number}", ttft_s=0.0)
            )
            seconds = 8 / pace * session * float(rng.lognormal(0, noise)) / len(usual.step_s)
            rows.append(replace(usual, label=label, step_s=(seconds,) * len(usual.step_s)))
    return rows


def run_of(paces: Mapping[str, float], exactness: Exactness = "exact") -> Run:
    return replace(RUN, methods=(method(BASELINE), *(method(label, exactness) for label in paces)))


def winner_of(rows: list[Row], run: Run) -> Winner:
    found = fastest(group_of(rows, run))
    assert found is not None
    return found


def test_the_fastest_is_named_with_those_it_beats_and_those_it_may_not() -> None:
    """1.500 and 1.501 differ by less than 0.3% of noise shows; 1.4 is beaten beyond doubt, and so is the baseline."""
    paces = {"a": 1.4, "b": 1.5, "c": 1.501}
    group = group_of(rows_of(paces, noise=0.003), run_of(paces))
    found = fastest(group)
    assert found is not None
    assert {found.label, *found.tied} == {"b", "c"}
    assert found.slower == ("a", BASELINE)


@pytest.mark.parametrize(("pace", "order"), [(1.4, ("a", BASELINE)), (0.8, (BASELINE, "a"))])
def test_one_of_two_beats_the_other_and_the_baseline_may_win(pace: float, order: tuple[str, str]) -> None:
    group = group_of(rows_of({"a": pace}), run_of({"a": pace}))
    found = fastest(group)
    assert found is not None and (found.label, *found.slower) == order
    assert found.tied == ()


def test_json_has_the_winner() -> None:
    paces = {"a": 1.50, "b": 1.52}
    (document,) = json.loads(render([group_of(rows_of(paces), run_of(paces))], "json"))["groups"]
    assert document["fastest"] == {
        "label": "b",
        "slower": ["a", BASELINE],
        "not_significantly_slower": [],
        "not_all_answered": False,
        "answers_not_known": [],
    }


@pytest.mark.parametrize("count", [1, PROMPTS // 2, PROMPTS])
@pytest.mark.parametrize("unknown", ["failed", "unjudged"])
def test_a_method_of_which_an_answer_is_not_known_to_be_the_target_s_cannot_win_and_is_named(
    unknown: str, count: int
) -> None:
    """It was called the fastest of those that give the target's own answers, by the answers that had a verdict."""

    def change(row: Row) -> Row:
        if row.label != "b" or _number(row) >= count:
            return row
        return failed(row) if unknown == "failed" else replace(row, verdict=None, fidelity={"failed_controls": 1.0})

    paces = {"a": 1.4, "b": 2.0}
    group = group_of(list(map(change, rows_of(paces))), run_of(paces))
    found = fastest(group)
    assert found is not None and (found.label, found.slower, found.unconfirmed) == ("a", (BASELINE,), ("b",))
    assert json.loads(render([group], "json"))["groups"][0]["fastest"]["answers_not_known"] == ["b"]
    whole = winner_of(rows_of(paces), run_of(paces))
    assert (whole.label, whole.unconfirmed) == ("b", ())


def test_nobody_is_named_over_a_baseline_that_failed_where_no_two_others_compete() -> None:
    rows = [failed(row) if row.label == BASELINE and _number(row) == 3 else row for row in rows_of({"a": 1.4})]
    assert fastest(group_of(rows, run_of({"a": 1.4}))) is None


def test_nobody_is_named_who_is_slower_than_a_baseline_that_takes_no_part() -> None:
    paces = {"a": 0.8, "b": 0.7}
    rows = [failed(row) if row.label == BASELINE and _number(row) == 3 else row for row in rows_of(paces)]
    assert fastest(group_of(rows, run_of(paces))) is None


def test_nobody_is_named_who_is_level_with_a_baseline_that_takes_no_part() -> None:
    paces = {"a": 1.0005, "b": 0.7}
    rows = [failed(row) if row.label == BASELINE and _number(row) == 3 else row for row in rows_of(paces, 0.05)]
    assert fastest(group_of(rows, run_of(paces))) is None


@pytest.mark.parametrize("lossy", ["claim", "answers"])
def test_what_loses_answers_cannot_win(lossy: str) -> None:
    """Whether a method says so itself, or its answers do."""
    rows = rows_of({"a": 1.4, "b": 2.0})
    run = run_of({"a": 1.4, "b": 2.0})
    if lossy == "claim":
        run = replace(run, methods=(*run.methods[:2], method("b", "lossy")))
    else:
        rows = [replace(row, verdict="lossy", first_divergence=1) if row.label == "b" else row for row in rows]
    found = winner_of(rows, run)
    assert (found.label, found.slower) == ("a", (BASELINE,))


def test_nobody_wins_where_only_the_baseline_competes() -> None:
    assert fastest(group_of(rows_of({"a": 2.0}), run_of({"a": 2.0}, "lossy"))) is None


def test_the_pair_that_decides_is_of_what_both_answered() -> None:
    """b was not measured on the prompts that are slow for all; on the others a is faster than b."""
    paces = {"a": 1.5, "b": 1.4}
    rows = [
        slowed(row, 10 if _number(row) < 5 else 1) for row in rows_of(paces) if row.label != "b" or _number(row) >= 5
    ]
    found = winner_of(rows, run_of(paces))
    assert found.label == "a" and set(found.slower) == {"b", BASELINE}


def slowed(row: Row, factor: float) -> Row:
    return replace(row, step_s=tuple(seconds * factor for seconds in row.step_s))


def test_to_be_missing_where_answers_are_slow_makes_no_winner() -> None:
    """a is slower than b on each prompt that both answer; where it has no answers, all methods gain little."""
    paces = {"a": 3.0, "b": 3.3}
    hard = range(PROMPTS // 2, PROMPTS)
    rows = [
        slowed(row, 3 if _number(row) in hard and row.label != BASELINE else 1)
        for row in rows_of(paces)
        if row.label != "a" or _number(row) not in hard
    ]
    group = group_of(rows, run_of(paces))
    assert (value_of(group, SPEEDUP, "a") or 0) > (value_of(group, SPEEDUP, "b") or 9)
    found = fastest(group)
    assert found is not None and found.label == "b" and set(found.slower) == {"a", BASELINE}
    assert json.loads(render([group], "json"))["groups"][0]["fastest"]["not_all_answered"] is True


def test_nobody_wins_where_each_is_beaten_on_prompts_of_their_own() -> None:
    """a beats b on the first prompts, b beats c on the middle ones, c beats a on the last; each beats the baseline."""
    paces = {"a": 2.0, "b": 2.0, "c": 2.0}
    slower = {"a": range(14, 20), "b": range(7), "c": range(7, 14)}
    answered = {"a": [*range(7), *range(14, 20)], "b": [*range(14)], "c": [*range(7, 20)]}
    rows = [
        slowed(row, 1.3 if _number(row) in slower.get(row.label, ()) else 1)
        for row in rows_of(paces)
        if _number(row) in answered.get(row.label, range(PROMPTS))
    ]
    assert fastest(group_of(rows, run_of(paces))) is None


def test_a_lossy_method_that_others_are_set_against_does_not_compete() -> None:
    """Nor is it the fastest of those that give the target's own answers, however fast it is."""
    paces = {"a": 5.0, "b": 2.0, "c": 1.5}
    run = run_of(paces)
    run = replace(run, methods=(run.methods[0], method("a", "lossy"), *run.methods[2:]))
    rows = [replace(row, verdict="lossy", first_divergence=1) if row.label == "a" else row for row in rows_of(paces)]
    (group,) = compare([over(file_of(rows, run), "a")])
    found = fastest(group)
    assert found is not None and (found.label, found.slower) == ("b", ("c",))


def _number(row: Row) -> int:
    return int(row.prompt_id[1:])


def test_methods_of_different_sessions_are_not_told_from_each_other_by_prompts() -> None:
    """a and b run alike; b was measured on a day when everything took 8% longer, with a baseline of its own."""
    days = (("a", 1.0), ("b", 1.08))
    (group,) = compare(
        [file_of(rows_of({label: 1.5}, session=pace), run_of({label: 1.5}), label) for label, pace in days]
    )
    found = fastest(group)
    assert found is not None and found.label in "ab"
    assert found.slower == (BASELINE,) and len(found.tied) == 1


@pytest.mark.parametrize(
    ("p_values", "significant"),
    [((0.01, 0.02, 0.04), "ABC"), ((0.01, 0.03, 0.04), "A"), ((0.02, 0.02, 0.02), ""), ((0.04, 0.016, 0.9), "B")],
)
def test_holm_s_steps(p_values: tuple[float, ...], significant: str) -> None:
    """Against 0.05 / 3, then 0.05 / 2, then 0.05, up to the first that fails."""
    found = holm({(name, ""): value for name, value in zip("ABC", p_values, strict=True)})
    assert {name for name, _ in found} == set(significant)


@pytest.mark.slow
def test_of_ten_equal_methods_one_is_called_faster_once_in_twenty_runs_at_most() -> None:
    """45 pairs, of which the best and the worst were picked by the same numbers: a t test of just those two would tell
    them apart in most runs."""
    rng = np.random.default_rng(0)
    levels = Levels(np.zeros(PROMPTS, dtype=np.int64), np.arange(PROMPTS))
    wrong = uncorrected = 0
    for _ in range(200):
        seconds = rng.lognormal(0, 0.5, PROMPTS) * rng.lognormal(0, 0.05, (10, PROMPTS))
        pairs = combinations(range(10), 2)
        chances = {(str(one), str(other)): p_value(seconds[one], seconds[other], levels) for one, other in pairs}
        wrong += bool(holm(chances))
        uncorrected += min(chances.values()) < 0.05
    assert wrong / 200 <= 0.10
    assert uncorrected / 200 >= 0.5
