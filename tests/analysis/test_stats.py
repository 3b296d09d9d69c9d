"""Intervals worked out by hand: pairing, sessions, repeats, and no interval where there is no telling."""

from collections.abc import Sequence
from math import log

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from benchctl.analysis.frame.build import remembering
from benchctl.analysis.judges.figures import SCORE_DIFFERENCE
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH
from benchctl.analysis.stats.estimates import estimates
from benchctl.analysis.stats.intervals import (
    Floats,
    Interval,
    Levels,
    Observations,
    critical,
    evened,
    p_value,
    quotient,
    ratio_intervals,
)


def _levels(sessions: int, prompts: int, repeats: int) -> Levels:
    session, prompt, _ = (code.ravel() for code in np.indices((sessions, prompts, repeats)))
    return Levels(session, prompt)


def _interval(top: Floats, bottom: Floats, levels: Levels) -> Interval:
    (found,) = ratio_intervals(top.reshape(-1, 1), bottom.reshape(-1, 1), levels)
    assert found is not None
    return found


def test_pairing_cancels_what_prompts_have_in_common() -> None:
    rng = np.random.default_rng(2)
    length = rng.lognormal(0, 1, 40)
    levels = _levels(1, 40, 1)
    paired = _interval(1.5 * length * rng.normal(1, 0.02, 40), length, levels)
    shuffled = _interval(1.5 * length, rng.permutation(length), levels)
    assert shuffled.high - shuffled.low > 10 * (paired.high - paired.low)


def test_the_interval_of_a_difference_of_means_is_that_of_student_s_t() -> None:
    """Prompts of equal length whose ratios differ by +-d: the jackknife's error is that of the mean."""
    top = np.array([0.9, 1.1] * 5)
    less = (np.zeros((10, 1)), np.ones((10, 1)))
    (found,) = ratio_intervals(top[:, None] - 1, np.ones((10, 1)), _levels(1, 10, 1), less=less)
    assert found is not None
    half_width = critical(0.05, 9) * top.std(ddof=1) / 10**0.5
    assert (found.low, found.high) == pytest.approx((-half_width, half_width))


def test_the_error_of_prompts_of_unequal_length_by_hand() -> None:
    """Times of 4 1 1 1 1, so 64 / 20 = 3.2 prompts matter. The long one is right, the short ones err by a half."""
    top, bottom = np.array([4.0, 1.5, 0.5, 1.5, 0.5]), np.array([4.0, 1, 1, 1, 1])
    found = _interval(top, bottom, _levels(1, 5, 1))
    weights = (top + bottom) / 16
    matter = 1 / (weights**2).sum()
    logarithms = np.log([1, 6.5 / 7, 7.5 / 7, 6.5 / 7, 7.5 / 7])
    errors = 4 / 5 * (logarithms - logarithms.mean())
    jackknife, relative = 5 / 4 * (errors**2).sum(), (errors**2 / weights).sum() / (matter - 1)
    factor = np.exp(critical(0.05, matter - 1) * ((matter * jackknife + 6 * relative) / (matter + 6)) ** 0.5)
    assert (found.low, found.high) == pytest.approx((1 / factor, factor))


def test_one_answer_that_ends_at_once_widens_no_interval_without_bounds() -> None:
    """A lossy method stops after a token where the baseline writes a page. Relative to its own time the error of that
    prompt is a hundred times as large; a weight by both times bounds it."""
    rng = np.random.default_rng(8)
    top = rng.lognormal(0, 0.3, 40)
    usual = top * rng.lognormal(0, 0.2, 40)
    short = np.concatenate([[0.001], usual[1:]])
    plain, with_it = (_interval(top, bottom, _levels(1, 40, 1)) for bottom in (usual, short))
    assert log(with_it.high / with_it.low) < 1.5 * log(plain.high / plain.low)


def test_a_prompt_without_a_bottom_does_not_widen_the_interval() -> None:
    """Nothing was drafted on the last prompt: its share of the error has no weight."""
    top, bottom = np.array([0.4, 0.6, 0.4, 0.6, 0.4, 0.6, 0.0]), np.array([1.0, 1, 1, 1, 1, 1, 0])
    with_it, without = _interval(top, bottom, _levels(1, 7, 1)), _interval(top[:6], bottom[:6], _levels(1, 6, 1))
    assert with_it.high / with_it.low == pytest.approx(without.high / without.low, rel=0.01)


def test_one_long_prompt_among_short_ones_counts_as_few() -> None:
    """(8 + 16)^2 / (8 * 1 + 16^2) = 2.18 prompts, so the interval is several times as wide as with equal ones."""
    length = np.array([16.0, 1, 1, 1, 1, 1, 1, 1, 1])
    pace = np.array([1.2, 0.9, 1.1, 1.0, 0.95, 1.05, 1.0, 0.9, 1.1])
    uneven, even = (_interval(pace * of, of, _levels(1, 9, 1)) for of in (length, np.ones(9)))
    assert uneven.high / uneven.low > 3 * even.high / even.low


def test_measuring_the_same_prompts_in_more_sessions_does_not_make_prompts_vary_less() -> None:
    """With sessions and prompts nested, four sessions would halve the interval without a new prompt."""
    rng = np.random.default_rng(3)
    top, bottom = rng.lognormal(0, 0.5, 30), np.ones(30)
    one = _interval(top, bottom, _levels(1, 30, 1))
    four = _interval(np.tile(top, 4), np.tile(bottom, 4), _levels(4, 30, 1))
    assert four.high - four.low == pytest.approx(one.high - one.low, rel=0.1)


def test_three_sessions_err_by_student_s_t_of_two_degrees() -> None:
    """Ratios of 1.3, 1.5 and 1.7, the same on every prompt: 4.303 times 0.2 / sqrt(3), as a factor of 1.5."""
    found = _interval(np.repeat([1.3, 1.5, 1.7], 30), np.ones(90), _levels(3, 30, 1))
    factor = np.exp(4.302653 * 0.2 / 3**0.5 / 1.5)
    assert (found.low, found.high) == pytest.approx((1.5 / factor, 1.5 * factor))


def test_sessions_that_differ_no_more_than_their_noise_add_nothing() -> None:
    """Session 0 errs up on every other prompt and session 1 on the rest: no session is faster than the other."""
    noise = np.tile([0.1, -0.1], 15)
    found = _interval(np.concatenate([1.5 + noise, 1.5 - noise]), np.ones(60), _levels(2, 30, 1))
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))


def test_noise_of_repeats_counts_once() -> None:
    """Of 40 prompts x 2 repeats that differ by noise alone the error is that of 80 measurements; drawing repeats within
    drawn prompts would make it 1.22 times as large."""
    widths = []
    for seed in range(200):
        top = 1 + np.random.default_rng(seed).normal(0, 0.1, 80)
        found = _interval(top, np.ones(80), _levels(1, 40, 2))
        widths.append(found.high - found.low)
    assert np.mean(widths) == pytest.approx(2 * 2.0227 * 0.1 / 80**0.5, rel=0.025)


def test_a_repeat_that_runs_backwards_makes_up_for_the_one_before() -> None:
    """In ABBA order a drift speeds up the method in one repeat and slows it down in the next, by design."""
    found = _interval(np.tile([1.4, 1.6], 10), np.ones(20), _levels(1, 10, 2))
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))


def test_the_turns_of_a_prompt_are_left_out_together() -> None:
    """Turns that make up for each other leave nothing uncertain."""
    prompt = np.repeat(np.arange(10), 2)
    levels = Levels(np.zeros(20, dtype=np.int64), prompt)
    found = _interval(np.tile([1.0, 2.0], 10), np.ones(20), levels)
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))


def test_the_interval_of_many_prompts_is_that_of_the_normal_distribution() -> None:
    top = np.random.default_rng(5).lognormal(size=(3000, 1))
    found = ratio_intervals(top, np.ones((3000, 1)), _levels(1, 3000, 1))[0]
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * top.std() / 3000**0.5, rel=0.1)


@pytest.mark.parametrize("prompts", [0, 1, 4])
def test_fewer_than_five_prompts_have_no_interval_and_no_significance(prompts: int) -> None:
    values = np.ones((prompts * 5, 2))
    assert p_value(2 * values[:, 0], values[:, 0], _levels(1, prompts, 5)) == 1.0
    assert ratio_intervals(values, values, _levels(1, prompts, 5)) == [None, None]


def test_a_ratio_without_a_bottom_has_no_interval() -> None:
    """Nor does one with a bottom in fewer than five of its prompts."""
    top, bottom = np.ones((6, 3)), np.ones((6, 3))
    bottom[:5, 0], bottom[:2, 1] = 0.0, 0.0
    assert ratio_intervals(top, bottom, _levels(1, 6, 1)) == [None, None, Interval(1.0, 1.0)]


def test_the_difference_of_two_ratios_is_paired_and_covers_the_true_one() -> None:
    """300 runs of 30 prompts: acceptance 0.5 and 0.4 of the same prompts, whose difficulty both feel."""
    rng = np.random.default_rng(5)
    levels, hits, widths, unpaired = _levels(1, 30, 1), 0, [], []
    for _ in range(300):
        drafted, ease = rng.integers(20, 200, 30).astype(float), rng.normal(0, 0.15, 30)
        ours, theirs = ((share + ease + rng.normal(0, 0.03, 30)) * drafted for share in (0.5, 0.4))
        one, other, of = (values.reshape(-1, 1) for values in (ours, theirs, drafted))
        (found,) = ratio_intervals(one, of, levels, less=(other, of))
        assert found is not None
        hits += found.low <= 0.1 <= found.high
        widths.append(found.high - found.low)
        alone = _interval(ours, drafted, levels)
        unpaired.append(alone.high - alone.low)
    assert 0.90 <= hits / 300 <= 0.985
    assert np.mean(widths) < np.mean(unpaired) / 2


def test_a_difference_has_no_interval_where_the_other_drafted_nothing() -> None:
    one, none = np.ones((6, 1)), np.zeros((6, 1))
    assert ratio_intervals(one, one, _levels(1, 6, 1), less=(none, none)) == [None]


def test_an_interval_of_what_cannot_be_negative_never_is() -> None:
    """Two sessions that differ by three times: Student's t of one degree reaches far beyond 0."""
    found = _interval(np.repeat([1.0, 3.0], 10), np.ones(20), _levels(2, 10, 1))
    assert 0 < found.low < 0.01 and found.high > 100


def _apart(ours: int, theirs: int, prompts: int) -> Levels:
    session, other, prompt = (code.ravel() for code in np.indices((ours, theirs, prompts)))
    return Levels(session, prompt, other)


def test_arms_of_one_session_each_have_no_interval_however_many_prompts_agree() -> None:
    """A machine that was 8% slower that day looks like a method that is 8% slower on every prompt."""
    top, bottom = np.full((80, 1), 1.08), np.ones((80, 1))
    assert ratio_intervals(top, bottom, _apart(1, 1, 80)) == [None]
    assert _interval(top, bottom, _levels(1, 80, 1)).low == pytest.approx(1.08)
    assert p_value(top[:, 0], bottom[:, 0], _apart(1, 1, 80)) == 1.0


def test_a_figure_of_one_arm_keeps_its_interval_where_the_other_was_measured_apart() -> None:
    both = ratio_intervals(np.ones((6, 2)), np.ones((6, 2)), _apart(1, 1, 6), uses_baseline=[True, False])
    assert both == [None, Interval(1.0, 1.0)]


def test_sessions_of_one_arm_tell_what_a_single_one_of_the_other_may_be_off_by() -> None:
    """Times of 1.00 in a session, and of 0.96 and 1.04 in two others: a spread of 0.0566, from one degree."""
    levels = _apart(1, 2, 10)
    assert levels.other_session is not None
    bottom = np.array([0.96, 1.04])[levels.other_session]
    found = _interval(np.ones(20), bottom, levels)
    factor = np.exp(12.7062 * 0.04 * 2**0.5 * (1 + 1 / 2) ** 0.5)
    assert (found.low, found.high) == pytest.approx((1 / factor, factor), rel=1e-3)


def test_sessions_apart_are_no_pairs_even_where_they_were_as_many() -> None:
    """Both arms were slow in one session and fast in another; together that cancels, apart it is the error."""
    session, other, prompt = (code.ravel() for code in np.indices((2, 2, 10)))
    pace = np.array([1.0, 1.2])
    apart = _interval(pace[other], pace[session], Levels(session, prompt, other))
    together = _interval(np.repeat(pace, 10), np.repeat(pace, 10), _levels(2, 10, 1))
    assert together == Interval(1.0, 1.0)
    assert apart.low < 0.7 and apart.high > 1.4


@pytest.mark.parametrize("shift", [0.0, 0.002, -0.004, 0.01])
def test_the_p_value_of_one_session_is_that_of_a_t_test(shift: float) -> None:
    """Of ratios close to 1, whose logarithm is as good as their distance from it; with a few degrees less."""
    top = 1 + shift + np.random.default_rng(6).normal(0, 0.01, 40)
    found = p_value(top, np.ones(40), _levels(1, 40, 1))
    assert found == pytest.approx(max(ttest_1samp(top, 1).pvalue, 1e-6), rel=0.25)


@pytest.mark.parametrize("sessions", [1, 3])
def test_the_p_value_falls_below_a_twentieth_where_the_interval_leaves_1(sessions: int) -> None:
    """Percentiles and Student's t agree but for the last hair: significant only where they are not a hair apart."""
    rng = np.random.default_rng(7)
    levels = _levels(sessions, 60, 1)
    significant = 0
    for shift in np.linspace(-0.06, 0.06, 25):
        pace = rng.normal(shift, 0.01, (sessions, 1))
        top = (1 + pace + rng.normal(0, 0.1, 60)).ravel()
        found, chance = _interval(top, np.ones(len(top)), levels), p_value(top, np.ones(len(top)), levels)
        if abs(chance - 0.05) > 0.02:
            assert (chance < 0.05) == (not found.low <= 1 <= found.high)
            significant += chance < 0.05
    assert 3 <= significant <= 22


def test_nothing_is_told_from_one_prompt() -> None:
    assert p_value(np.array([2.0, 2.1]), np.ones(2), _levels(1, 1, 2)) == 1.0


def test_shares_are_weighted_by_what_they_are_shares_of() -> None:
    """Weights by right answers made 3 of 16 as wide as [0.04, 0.92]: a wrong answer counted half."""
    right = np.array([1.0] * 3 + [0.0] * 13)[:, None]
    levels = Levels(np.zeros(16, dtype=np.int64), np.arange(16))
    (interval,) = ratio_intervals(right, np.ones_like(right), levels, outcomes=[True])
    assert interval is not None
    # Student's t of the logarithm, by hand: leaving out a right answer gives 2/15, a wrong one 3/15.
    logs = np.log([2 / 15] * 3 + [3 / 15] * 13)
    error = (15 / 16 * ((logs - logs.mean()) ** 2).sum()) ** 0.5
    assert interval.high / (3 / 16) == pytest.approx(np.exp(2.1314 * error), rel=1e-4)
    assert interval.high < 0.75


def test_a_difference_may_be_negative_where_no_observation_is() -> None:
    """Two gains of one point on ten prompts were significant: the interval was that of a logarithm."""
    gains = np.array([[1.0], [1], *[[0]] * 8])
    less = (np.zeros((10, 1)), np.ones((10, 1)))
    (found,) = ratio_intervals(gains, np.ones((10, 1)), _levels(1, 10, 1), less=less, outcomes=[True])
    assert found is not None
    half_width = critical(0.05, 9) * gains.std(ddof=1) / 10**0.5
    assert (found.low, found.high) == pytest.approx((0.2 - half_width, 0.2 + half_width))


def _judged(values: Sequence[float], column: str) -> pd.DataFrame:
    """One judged answer per prompt."""
    session = {"file": 0, "session": 0, "file_baseline": 0, "session_baseline": 0, "suite": "koala"}
    return pd.DataFrame({column: values, "checked_answers": 1.0, **session, "batch": range(len(values))})


def test_a_difference_of_scores_that_is_never_negative_may_be_by_chance() -> None:
    (found,) = estimates(_judged([1, 1, *[0] * 8], "difference"), [SCORE_DIFFERENCE])
    assert found.value == pytest.approx(0.2)
    assert found.interval is not None and found.interval.low < 0


@pytest.mark.parametrize(
    ("right", "ends"), [(0, (0, 0.0881)), (1, (0.0006, 0.1316)), (39, (0.8684, 0.9994)), (40, (0.9119, 1))]
)
def test_a_share_of_answers_is_at_least_as_uncertain_as_a_binomial_one(right: int, ends: tuple[float, ...]) -> None:
    """None of 40 right had the interval [0, 0]; 1 - 0.025^(1/40) is 0.0881."""
    (found,) = estimates(_judged([1] * right + [0] * (40 - right), "right_answers"), [EXACT_MATCH])
    assert found.interval is not None
    assert found.interval.low <= ends[0] + 1e-4 and found.interval.high >= ends[1] - 1e-4
    if right in (0, 40):
        assert (found.interval.low, found.interval.high) == pytest.approx(ends, abs=1e-4)


def _observations(sessions: Sequence[Sequence[str]]) -> Observations:
    """Prompts k of a baseline time of 1.2 and prompts m of 2.0, where the method takes 1."""
    names = [(number, name) for number, session in enumerate(sessions) for name in session]
    tops = np.array([1.2 if name.startswith("k") else 2.0 for _, name in names])
    return Observations(
        tops, np.ones(len(names)), np.array([number for number, _ in names]), [name for _, name in names]
    )


def test_a_session_that_was_interrupted_changes_no_ratio_of_two_runs() -> None:
    """The second session has one of two suites. The ratio was 0.923, since its prompts counted twice."""
    slow, fast = [f"k{number}" for number in range(10)], [f"m{number}" for number in range(10)]
    found = quotient(_observations([[*slow, *fast], slow]), _observations([[*slow, *fast]]), 0.03)
    assert found is not None
    assert found.now / found.then == pytest.approx(1)
    assert found.by_sessions == pytest.approx(0, abs=1e-9)


def _interrupted(
    kept: Sequence[int], drift: float = 0.0, pace: float = 1.0, lengths: Sequence[float] = (1, 1)
) -> tuple[float, float]:
    """The ratio, and the logarithm of the interval's ends divided, of so many prompts of each session.

    Of 40 prompts the first 20 have a ratio of 1.2 and the others of 2. Every second session has a ratio higher by
    `drift`, and takes `pace` times as long for both. `lengths` are those of the first and of the last 20.
    """
    chance = np.random.default_rng(5)
    ratios, bottoms = np.repeat([1.2, 2.0], 20) * chance.lognormal(0, 0.05, 40), np.repeat(np.array(lengths, float), 20)
    sessions, places = np.repeat(range(len(kept)), kept), np.concatenate([np.arange(prompts) for prompts in kept])
    second = sessions % 2
    below = bottoms[places] * np.where(second, pace, 1.0)
    above = below * ratios[places] * np.where(second, 1 + drift, 1.0)
    levels = Levels(sessions, places)
    weights = evened(levels)
    interval = _interval(weights * above, weights * below, levels)
    return float((weights * above).sum() / (weights * below).sum()), log(interval.high / interval.low)


def test_prompts_that_a_session_lacks_are_no_difference_between_sessions() -> None:
    """An interrupted second session, of prompts with a small ratio alone, made the interval three times as wide."""
    ratio, width = _interrupted((40, 40))
    for kept in ((40, 20), (40, 19), (40, 40, 3), (40, 20, 20)):
        assert _interrupted(kept)[0] == pytest.approx(ratio)
        assert _interrupted(kept)[1] == pytest.approx(width, rel=0.05), "sessions are equal"
    assert _interrupted((40, 20), pace=1.3)[1] == pytest.approx(width, rel=0.3), "what slows both down cancels"


@pytest.mark.parametrize("lengths", [(1, 1), (1, 4), (4, 1)])
def test_sessions_that_differ_widen_the_interval_also_where_one_was_interrupted(lengths: tuple[float, ...]) -> None:
    width = _interrupted((40, 40), drift=0.05, lengths=lengths)[1]
    assert width > 2 * _interrupted((40, 40), lengths=lengths)[1]
    assert _interrupted((40, 20), drift=0.05, lengths=lengths)[1] == pytest.approx(width, rel=0.3)
    three = _interrupted((40, 40, 40), drift=0.2, lengths=lengths)[1]
    assert _interrupted((40, 19, 19), drift=0.2, lengths=lengths)[1] == pytest.approx(three, rel=0.3)


def test_a_later_turn_of_an_engine_is_not_compared_with_one_after_another_text() -> None:
    """Its first turns differ by rounding, so the same short second answer may come in other steps."""
    turns = pd.DataFrame(
        {"label": "a", "suite": "s", "prompt_id": "p", "turn": [0, 1, 0, 1], "error": None, "steps": 2}
    )
    answers = turns.assign(answer_id=[1, 9, 2, 9], steps_id=[1, 5, 2, 6])
    assert remembering(answers, same_answers=True) == []
    assert remembering(answers.assign(answer_id=[1, 9, 1, 9]), same_answers=True) == ["a"]
