"""Loops and runaway answers are found, and what looks a little like them is not."""

from dataclasses import replace

import pytest
from compared import group_of, pairs_of, value_of
from fixtures_records import BASELINE, DRAFTED, baseline_row, drafted_row

from benchctl.analysis.frame.build import degenerates, either_degenerates
from benchctl.analysis.frame.rows import loops
from benchctl.analysis.metrics.faithfulness import DEGENERATION
from benchctl.records.schema import Row

FRESH = list(range(100, 140))


@pytest.mark.parametrize(
    ("ids", "loop"),
    [
        ([*FRESH, *[7] * 16], True),
        ([*FRESH, *[7] * 15], False),
        ([*FRESH, *[1, 2, 3] * 6], True),
        ([*FRESH, *[1, 2, 3] * 5], False),  # 15 tokens
        ([*FRESH, *[1, 2, 3] * 5, 1], True),  # a sixth copy is cut off by the limit
        ([*FRESH, *range(20), *range(20)], False),  # said twice
        ([*FRESH, *range(20), *range(20), *range(20)], True),
        ([*FRESH, *range(90), *range(90), *range(90)], True),
        ([*FRESH, *range(91), *range(91), *range(91)], False),  # no phrase is as long as that
        ([*[7] * 40, 8], False),  # it got out of it
        ([7] * 16, True),
        (FRESH, False),
        ([], False),
    ],
)
def test_a_loop_is_a_phrase_said_three_times_at_the_end_in_sixteen_tokens_at_least(ids: list[int], loop: bool) -> None:
    assert loops(ids, ended=False) == loop


def test_a_stop_token_behind_a_loop_does_not_hide_it_and_is_no_part_of_it() -> None:
    assert loops([*FRESH, *[7] * 16, 2], ended=True)
    assert not loops([*FRESH, *[7] * 16, 2], ended=False)
    assert not loops([*FRESH, *[7] * 15, 7], ended=True)


def _looping(row: Row) -> Row:
    return replace(row, token_ids=(3,) * len(row.token_ids))


def _judged(*rows: Row) -> tuple[bool, bool]:
    pairs = pairs_of(rows)
    return bool(degenerates(pairs).item()), bool(either_degenerates(pairs).item())


def test_an_answer_cut_off_where_the_baselines_ended_runs_away() -> None:
    ended = replace(baseline_row(), stop_reason="stop")
    assert _judged(ended, drafted_row()) == (True, True)
    assert _judged(ended, replace(drafted_row(), stop_reason="context")) == (True, True)
    assert _judged(ended, replace(drafted_row(), stop_reason="stop")) == (False, False)
    assert _judged(baseline_row(), drafted_row()) == (False, False)


@pytest.mark.parametrize(("baseline_tokens", "away"), [(8, True), (9, False)])
def test_an_answer_of_more_than_twice_the_baselines_length_runs_away(baseline_tokens: int, away: bool) -> None:
    """17 tokens against 8 or 9."""
    baseline = replace(baseline_row(tokens=baseline_tokens), stop_reason="stop")
    assert _judged(baseline, replace(drafted_row(steps=8), stop_reason="stop")) == (away, away)


def test_a_baseline_that_loops_spoils_the_pair_but_is_not_the_methods_fault() -> None:
    long = baseline_row(tokens=21), drafted_row(steps=10)
    assert _judged(_looping(long[0]), long[1]) == (False, True)
    assert _judged(long[0], _looping(long[1])) == (True, True)


def test_the_share_of_degenerate_answers_is_a_figure_of_every_method() -> None:
    """Of four prompts the baseline loops on one, and the method on that and another."""
    rows: list[Row] = []
    for prompt, (baseline_loops, method_loops) in enumerate([(True, True), (False, True), (False,) * 2, (False,) * 2]):
        both = baseline_row(f"p{prompt}", tokens=21), drafted_row(f"p{prompt}", steps=10)
        rows += [_looping(row) if loop else row for row, loop in zip(both, (baseline_loops, method_loops), strict=True)]
    group = group_of(rows)
    assert [value_of(group, DEGENERATION, label) for label in (BASELINE, DRAFTED)] == [0.25, 0.5]
