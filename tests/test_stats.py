"""Intervals hold what they promise: coverage in simulation, pairing, and no interval where there is no telling."""

import numpy as np
import pytest

from benchctl.analysis.stats import Floats, Interval, Levels, bootstrap


def _levels(sessions: int, prompts: int, repeats: int) -> Levels:
    session, prompt, repeat = (code.ravel() for code in np.indices((sessions, prompts, repeats)))
    return Levels(session, prompt, repeat)


def _interval(top: Floats, bottom: Floats, levels: Levels, resamples: int = 2000) -> Interval:
    (found,) = bootstrap(top.reshape(-1, 1), bottom.reshape(-1, 1), levels, resamples=resamples)
    assert found is not None
    return found


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    """300 runs of 30 prompts x 2 repeats whose true speed-up is 1.5; drift of a repeat hits both of a pair."""
    rng = np.random.default_rng(1)
    levels, hits = _levels(1, 30, 2), 0
    for _ in range(300):
        length = rng.lognormal(0, 0.6, (30, 1)) * rng.lognormal(0, 0.1, (30, 2))
        ratio = rng.normal(1.5, 0.25, (30, 1)) + rng.normal(0, 0.05, (30, 2))
        found = _interval(length * ratio, length, levels, resamples=400)
        hits += found.low <= 1.5 <= found.high
    assert 0.90 <= hits / 300 <= 0.985


def test_pairing_cancels_what_prompts_have_in_common() -> None:
    rng = np.random.default_rng(2)
    length = rng.lognormal(0, 1, 40)
    levels = _levels(1, 40, 1)
    paired = _interval(1.5 * length * rng.normal(1, 0.02, 40), length, levels)
    shuffled = _interval(1.5 * length, rng.permutation(length), levels)
    assert shuffled.high - shuffled.low > 10 * (paired.high - paired.low)


def test_an_interval_is_found_by_counting_on_two_prompts() -> None:
    """Drawing 2 of 2 prompts with ratios 1 and 3 gives 1, 2 or 3; both ends are drawn in a quarter of the resamples."""
    found = _interval(np.array([1.0, 3.0]), np.array([1.0, 1.0]), _levels(1, 2, 1))
    assert (found.low, found.high) == (1.0, 3.0)


def test_measuring_the_same_prompts_in_more_sessions_does_not_make_prompts_vary_less() -> None:
    """With sessions and prompts nested, four sessions would halve the interval without a new prompt."""
    rng = np.random.default_rng(3)
    top, bottom = rng.lognormal(0, 0.5, 30), np.ones(30)
    one = _interval(top, bottom, _levels(1, 30, 1))
    four = _interval(np.tile(top, 4), np.tile(bottom, 4), _levels(4, 30, 1))
    assert four.high - four.low == pytest.approx(one.high - one.low, rel=0.1)


def test_sessions_that_differ_widen_the_interval() -> None:
    levels, bottom = _levels(3, 30, 1), np.ones(90)
    steady = _interval(np.full(90, 1.5) + np.tile(np.linspace(-0.01, 0.01, 30), 3), bottom, levels)
    drifting = _interval(np.repeat([1.3, 1.5, 1.7], 30), bottom, levels)
    assert drifting.high - drifting.low > 10 * (steady.high - steady.low)


def test_repeats_that_differ_widen_the_interval() -> None:
    levels, bottom = _levels(1, 10, 2), np.ones(20)
    found = _interval(np.tile([1.0, 2.0], 10), bottom, levels)
    assert found.low < 1.45 and found.high > 1.55


def test_the_turns_of_a_prompt_are_drawn_together() -> None:
    """Turns that make up for each other leave nothing uncertain."""
    prompt = np.repeat(np.arange(10), 2)
    levels = Levels(np.zeros(20, dtype=np.int64), prompt, np.zeros(20, dtype=np.int64))
    assert _interval(np.tile([1.0, 2.0], 10), np.ones(20), levels) == Interval(1.5, 1.5)


def test_missing_repeats_are_never_drawn() -> None:
    """Prompt 1 has one repeat of two: were the gap drawn, bottoms would be 0."""
    levels = Levels(np.array([0, 0, 0]), np.array([0, 0, 1]), np.array([0, 1, 1]))
    assert _interval(np.full(3, 1.5), np.ones(3), levels) == Interval(1.5, 1.5)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    top, bottom = np.random.default_rng(4).lognormal(size=(20, 1)), np.ones((20, 1))
    levels = _levels(1, 20, 1)
    assert bootstrap(top, bottom, levels) == bootstrap(top, bottom, levels)
    assert bootstrap(top, bottom, levels) != bootstrap(top, bottom, levels, seed=1)


def test_many_prompts_are_resampled_in_blocks_to_the_same_length() -> None:
    top = np.random.default_rng(5).lognormal(size=(3000, 1))
    found = bootstrap(top, np.ones((3000, 1)), _levels(1, 3000, 1))[0]
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * top.std() / 3000**0.5, rel=0.1)


@pytest.mark.parametrize("prompts", [0, 1])
def test_fewer_than_two_prompts_have_no_interval(prompts: int) -> None:
    values = np.ones((prompts * 5, 2))
    assert bootstrap(values, values, _levels(1, prompts, 5)) == [None, None]


def test_a_ratio_without_a_bottom_has_no_interval() -> None:
    top, bottom = np.ones((3, 2)), np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    assert bootstrap(top, bottom, _levels(1, 3, 1)) == [None, Interval(1.0, 1.0)]


def test_the_difference_of_two_ratios_is_paired_and_covers_the_true_one() -> None:
    """300 runs of 30 prompts: acceptance 0.5 and 0.4 of the same prompts, whose difficulty both feel."""
    rng = np.random.default_rng(5)
    levels, hits, widths, unpaired = _levels(1, 30, 1), 0, [], []
    for _ in range(300):
        drafted, ease = rng.integers(20, 200, 30).astype(float), rng.normal(0, 0.15, 30)
        ours, theirs = ((share + ease + rng.normal(0, 0.03, 30)) * drafted for share in (0.5, 0.4))
        one, other, of = (values.reshape(-1, 1) for values in (ours, theirs, drafted))
        (found,) = bootstrap(one, of, levels, less=(other, of), resamples=400)
        assert found is not None
        hits += found.low <= 0.1 <= found.high
        widths.append(found.high - found.low)
        alone = _interval(ours, drafted, levels, resamples=400)
        unpaired.append(alone.high - alone.low)
    assert 0.90 <= hits / 300 <= 0.985
    assert np.mean(widths) < np.mean(unpaired) / 2


def test_a_difference_has_no_interval_where_the_other_drafted_nothing() -> None:
    one, none = np.ones((4, 1)), np.zeros((4, 1))
    assert bootstrap(one, one, _levels(1, 4, 1), less=(none, none)) == [None]
