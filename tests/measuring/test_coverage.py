"""Intervals hold what they promise: in simulations whose truth is known, under drift, and on published runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchctl.analysis.stats.intervals import Floats, Interval, Ints, Levels, p_value, ratio_intervals
from benchctl.measuring.plan import Plan
from benchctl.measuring.prompts.files import Prompt

DATA_SETS = 1000
PROMPTS = 40
SPEEDUP = 1.5


@dataclass(frozen=True)
class World:
    """How far things vary, each as the standard deviation of a logarithm. A session, here, favours the method or not;
    a noise is that of one generation."""

    sessions: int = 1
    repeats: int = 1
    session: float = 0.0
    prompt: float = 0.1
    both: float = 0.0
    noise: float = 0.03


def measured(world: World, rng: np.random.Generator) -> tuple[Floats, Floats, Levels]:
    """Times of baseline and method on prompts of uneven length, measured in turns."""
    session, prompt, _ = (code.ravel() for code in np.indices((world.sessions, PROMPTS, world.repeats)))
    length = rng.lognormal(0, 0.5, PROMPTS)[prompt]
    pace = rng.lognormal(0, world.prompt, PROMPTS)[prompt] * rng.lognormal(0, world.session, world.sessions)[session]
    pace *= rng.lognormal(0, world.both, (world.sessions, PROMPTS))[session, prompt]
    noises = rng.lognormal(0, world.noise, (2, len(prompt)))
    return SPEEDUP * length * noises[0], length * pace * noises[1], Levels(session, prompt)


@pytest.mark.parametrize(
    "world",
    [
        World(repeats=2),
        World(repeats=2, prompt=0.0, noise=0.05),
        World(sessions=3),
        World(sessions=3, session=0.02, both=0.02),
        World(sessions=3, repeats=2, session=0.02, prompt=0.03),
        World(sessions=2, session=0.02, both=0.02),
    ],
    ids=["prompts", "noise", "sessions alike", "sessions apart", "sessions above all", "two sessions"],
)
def test_the_interval_covers_the_true_ratio_in_93_to_98_of_100_data_sets(world: World) -> None:
    """Drawing two or three sessions with replacement covers 56% to 73% where sessions are most of the error."""
    rng = np.random.default_rng(0)
    true = SPEEDUP / np.exp((world.prompt**2 + world.session**2 + world.both**2) / 2)
    hits = 0
    for _ in range(DATA_SETS):
        top, bottom, levels = measured(world, rng)
        found = _interval(top, bottom, levels)
        hits += found.low <= true <= found.high
    assert 0.93 <= hits / DATA_SETS <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (1, 3), (1, 2)])
def test_it_does_so_for_arms_that_were_measured_in_sessions_of_their_own(ours: int, theirs: int) -> None:
    """Sessions differ by 4%, as those of the published runs below do."""
    rng = np.random.default_rng(0)
    session, other, prompt = (code.ravel() for code in np.indices((ours, theirs, PROMPTS)))
    hits = 0
    for _ in range(DATA_SETS):
        length = rng.lognormal(0, 0.5, PROMPTS)
        arms = [
            length * pace * rng.lognormal(0, 0.04, (count, 1)) * rng.lognormal(0, 0.02, (count, PROMPTS))
            for count, pace in ((ours, rng.lognormal(0, 0.03, PROMPTS)), (theirs, SPEEDUP))
        ]
        found = _interval(arms[1][other, prompt], arms[0][session, prompt], Levels(session, prompt, other))
        hits += found.low <= SPEEDUP / np.exp(0.03**2 / 2) <= found.high
    assert 0.93 <= hits / DATA_SETS <= 0.97


def test_two_equal_arms_are_called_different_once_in_twenty() -> None:
    rng = np.random.default_rng(1)
    world = World(repeats=2, prompt=0.0, noise=0.05)
    called = 0
    for _ in range(DATA_SETS):
        top, bottom, levels = measured(world, rng)
        called += p_value(top / SPEEDUP, bottom, levels) < 0.05
    assert 0.03 <= called / DATA_SETS <= 0.07


def _off_by(order: Sequence[tuple[str, float]]) -> float:
    """By what share two equal arms differ: (arm, seconds) in order, on a machine that loses 10% of its pace on the way
    from the first to the last."""
    total, clock, spent = sum(seconds for _, seconds in order), 0.0, {"A": 0.0, "B": 0.0}
    for arm, seconds in order:
        spent[arm] += seconds * (1 + 0.1 * (clock + seconds / 2) / total)
        clock += seconds
    return max(spent.values()) / min(spent.values()) - 1


def test_under_a_drift_of_10_percent_two_equal_arms_differ_by_half_a_percent_at_most() -> None:
    """In the order of the real plan, whose prompts are of uneven length; one arm after the other is off by 4.9%."""
    for seed in range(40):
        length = np.random.default_rng(seed).lognormal(0, 0.6, PROMPTS)
        prompts = tuple(Prompt(f"p{number}", "koala", ("Hi",)) for number in range(PROMPTS))
        for repeats in (1, 2, 3):
            plan = Plan(prompts, ("A", "B"), repeats)
            tasks = [task for jobs in plan.by_batch() for job in jobs for task in job]
            timed = [(task.label, float(length[int(task.prompt.id[1:])])) for task in tasks]
            assert _off_by(timed) <= 0.005
            assert _off_by(sorted(timed)) == pytest.approx(0.049, abs=0.001)


def published(shared: Path) -> list[tuple[Floats, Floats]]:
    """New tokens and seconds per prompt of three runs of one program, Medusa on Vicuna-7B: the same text each time."""
    name = "medusa-vicuna-7b-v1.3{}-temperature-0.0-posterior_threshold-0.09-posterior_alpha-0.3.jsonl"
    runs = []
    for number in ("", "-1", "-2"):
        lines = (shared / "data/published_results/medusa" / name.format(number)).read_text().splitlines()
        answers = [json.loads(line)["choices"][0] for line in lines]
        sums = [[float(sum(answer[key])) for answer in answers] for key in ("new_tokens", "wall_time")]
        runs.append((np.array(sums[0]), np.array(sums[1])))
    return runs


def _apart(one: Sequence[Floats], other: Sequence[Floats]) -> tuple[Floats, Floats, Levels]:
    session, others, prompt = (code.ravel() for code in np.indices((len(one), len(other), len(one[0]))))
    return np.array(other)[others, prompt], np.array(one)[session, prompt], Levels(session, prompt, others)


def test_published_runs_of_one_program_are_different_by_prompts_alone_and_not_with_sessions(shared: Path) -> None:
    """101.3, 102.6 and 94.7 tokens/s: whatever one takes for another arm, sessions explain it, or nothing can."""
    runs = published(shared)
    paces = [tokens.sum() / seconds.sum() for tokens, seconds in runs]
    assert paces == pytest.approx([101.30, 102.65, 94.66], abs=5e-3)
    seconds = [run[1] for run in runs]
    for one, other in combinations(seconds, 2):
        alone = _interval(one, other, _one_session(one))
        assert not alone.low <= 1 <= alone.high
        assert ratio_intervals(one[:, None], other[:, None], _apart([one], [other])[2]) == [None]
    for number, one in enumerate(seconds):
        rest = seconds[:number] + seconds[number + 1 :]
        found = _interval(*_apart([one], rest))
        assert found.low < 1 < found.high
        assert p_value(*_apart([one], rest)) > 0.05


def test_a_difference_that_sessions_do_not_explain_is_still_found(shared: Path) -> None:
    """The same runs, one of them made twice as fast: far beyond what the other two differ by, were there but more of
    them. Of three sessions each, 25% is called; of one and two, with one degree, not even twice the speed is."""
    seconds = [run[1] for run in published(shared)]
    found = _interval(*_apart([each * 0.75 for each in seconds], seconds))
    assert 1 < found.low < 1 / 0.75 < found.high
    few = _interval(*_apart([seconds[0] / 2], seconds[1:]))
    assert few.low < 1 < 2 < few.high


def test_pairing_narrows_the_interval_of_published_runs_threefold(shared: Path) -> None:
    """Prompts drawn for both at once, against prompts drawn for each."""
    rng = np.random.default_rng(0)
    for (_, one), (tokens, other) in combinations(published(shared), 2):
        paired = _interval(one, other, _one_session(one))
        draws = [rng.integers(len(one), size=(4000, len(one))) for _ in range(2)]
        paces = [tokens[drawn].sum(axis=1) / s[drawn].sum(axis=1) for drawn, s in zip(draws, (one, other), strict=True)]
        low, high = np.percentile(paces[1] / paces[0], (2.5, 97.5))
        assert high - low > 3 * (paired.high - paired.low)


def _one_session(values: Floats) -> Levels:
    codes: Ints = np.arange(len(values))
    return Levels(np.zeros_like(codes), codes)


def _interval(top: Floats, bottom: Floats, levels: Levels) -> Interval:
    (found,) = ratio_intervals(top[:, None], bottom[:, None], levels)
    assert found is not None
    return found
