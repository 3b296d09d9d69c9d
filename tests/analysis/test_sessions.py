"""What is said of sessions: how many an interval rests on, and where one alone leaves a difference open."""

from dataclasses import replace
from itertools import chain

import pytest
from compared import figures_of, group_of
from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, drafted_row
from warned import warned

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE
from benchctl.analysis.metrics.speed import MEAN_SPEEDUP, SPEEDUP, TOKENS_PER_S
from benchctl.records.schema import Row

PROMPTS = 20


def arm(label: str, session: int, pace: float = 1.0) -> list[Row]:
    """Answers of one arm in one session, each 10 s by the baseline and 6 s by the other on a machine of pace 1."""
    rows = []
    for number in range(PROMPTS):
        row = (baseline_row if label == BASELINE else drafted_row)(f"p{number}")
        factor = (1 + 0.001 * (number % 3)) / pace
        step_s = tuple(seconds * factor for seconds in row.step_s)
        rows.append(replace(row, session=session, ttft_s=2.0 * factor, step_s=step_s))
    return rows


def figures(*arms: list[Row]) -> tuple[Group, MethodFigures]:
    group = group_of(chain(*arms), replace(RUN, methods=RUN.methods[:2]))
    return group, figures_of(group)


def test_arms_of_one_session_each_have_a_speed_up_without_an_interval_and_it_is_said_why() -> None:
    group, found = figures(arm(BASELINE, 0), arm(DRAFTED, 1))
    speedup = found.estimate(SPEEDUP)
    assert speedup.value == pytest.approx(10 / 6)
    assert speedup.interval is None
    assert found.estimate(MEAN_SPEEDUP).interval is None
    assert warned(group, "no_shared_session") == [{"labels": DRAFTED, "baseline": BASELINE}]
    # Figures of one arm alone keep theirs.
    assert found.estimate(TOKENS_PER_S).interval is not None
    assert found.estimate(ACCEPTANCE_RATE).interval is not None


def test_more_sessions_of_either_arm_give_an_interval_as_wide_as_these_differ() -> None:
    """The baseline's tokens/s of 1, 1.07 and 1.084, as those of the published runs; prompts alone say 0.1%."""
    group, found = figures(arm(BASELINE, 0), arm(BASELINE, 1, 1.07), arm(BASELINE, 2, 1.084), arm(DRAFTED, 3, 1.05))
    interval = found.estimate(SPEEDUP).interval
    assert interval is not None
    assert interval.high / interval.low > 1.3
    assert warned(group, "no_shared_session") == []


def test_arms_measured_in_turns_need_no_second_session() -> None:
    """Nor does it matter that the machine was slower in one of two: both arms were."""
    group, once = figures(arm(BASELINE, 0), arm(DRAFTED, 0))
    _, twice = figures(arm(BASELINE, 0), arm(DRAFTED, 0), arm(BASELINE, 1, pace=0.9), arm(DRAFTED, 1, pace=0.9))
    for found in (once, twice):
        interval = found.estimate(SPEEDUP).interval
        assert interval is not None and interval.high / interval.low < 1.001
    assert warned(group, "no_shared_session") == []
