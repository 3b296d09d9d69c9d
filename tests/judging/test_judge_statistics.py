"""Figures of judges hold what they promise: in simulations whose truth is known, and against published numbers."""

import json
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pandas as pd
import pytest

from benchctl.analysis.judges.figures import (
    FIRST_WINS,
    SCORE_DIFFERENCE,
    by_prompt,
    deviation,
    kappa,
    margin,
    prompts_needed,
)
from benchctl.analysis.stats.estimates import estimates
from benchctl.analysis.stats.intervals import Floats, interval_of

DATA_SETS = 600
FEWER_SETS = 300


def _judged(rng: np.random.Generator, prompts: int, turns: int, samples: int) -> tuple[Floats, Floats]:
    """Differences [prompts, turns] of two methods as a judge of whole points from 1 to 10 sees them, who likes the
    first place by 0.6, and how many of the two orders that wins; prompts and turns differ, and so do replies."""
    effect = rng.normal(-0.15, 0.7, (prompts, 1)) + rng.normal(0, 0.3, (prompts, turns))
    level = rng.normal(7, 1.5, (prompts, 1))
    orders = []
    for mine, theirs in ((0.6, 0.0), (0.0, 0.6)):
        noise = rng.normal(0, 0.8, (2, samples, prompts, turns))
        scores = [
            np.clip(np.rint(level + bias + one), 1, 10) for bias, one in ((effect + mine, noise[0]), (theirs, noise[1]))
        ]
        orders.append((scores[0] - scores[1]).mean(axis=0))
    first = (orders[0] > 0).astype(float) + (orders[1] < 0)
    decided = (orders[0] != 0).astype(float) + (orders[1] != 0)
    return (orders[0] + orders[1]) / 2, np.stack([first, decided])


def _frame(difference: Floats, places: Floats | None = None) -> pd.DataFrame:
    prompts, turns = difference.shape
    first, decided = np.zeros((2, prompts, turns)) if places is None else places
    return pd.DataFrame(
        {
            "suite": "mt-bench",
            "prompt_id": np.repeat(np.arange(prompts), turns).astype(str),
            "difference": difference.ravel(),
            "first_won": first.ravel(),
            "decided": decided.ravel(),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "turns", "samples"), [(80, 2, 1), (30, 1, 3)])
def test_the_interval_of_the_mean_difference_covers_the_true_one_as_often(
    prompts: int, turns: int, samples: int
) -> None:
    """The true one is that of 300,000 prompts. So for the share of the first place, whose truth is no half: 0.7."""
    rng = np.random.default_rng(0)
    many, places = _judged(rng, 300_000, turns, samples)
    truths = [float(many.mean()), float(places[0].sum() / places[1].sum())]
    hits = np.zeros(2)
    for _ in range(DATA_SETS):
        frame = _frame(*_judged(rng, prompts, turns, samples))
        found = estimates(by_prompt(frame), (SCORE_DIFFERENCE, FIRST_WINS))
        for place, (estimate, truth) in enumerate(zip(found, truths, strict=True)):
            assert estimate.interval is not None
            hits[place] += estimate.interval.low <= truth <= estimate.interval.high
    assert truths[1] > 0.6
    assert 0.93 <= hits[0] / DATA_SETS <= 0.97
    assert 0.92 <= hits[1] / DATA_SETS <= 0.98


def test_turns_of_a_prompt_count_as_one_in_the_interval() -> None:
    """Ten turns that say the same tell no more than one of them."""
    difference = np.random.default_rng(1).normal(0, 1, (40, 1))
    one, ten = (estimates(by_prompt(_frame(np.tile(difference, (1, n)))), (SCORE_DIFFERENCE,))[0] for n in (1, 10))
    assert one.interval is not None and ten.interval is not None
    assert (one.interval.low, one.interval.high) == pytest.approx((ten.interval.low, ten.interval.high))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([[20, 5], [10, 15]], 0.4),
        ([[45, 15], [25, 15]], 0.1304),
        ([[25, 35], [5, 35]], 0.2593),
        ([[75, 1, 4], [5, 4, 1], [0, 0, 10]], 0.6765),
    ],
)
def test_kappa_is_that_of_worked_examples(table: list[list[int]], expected: float) -> None:
    """The first three are those of every course; the last is Fleiss, Levin, Paik: Statistical Methods for Rates and
    Proportions, 2003, section 18.1: 0.68."""
    found = kappa(np.array([np.ravel(table)], dtype=float))
    assert found[0] == pytest.approx(expected, abs=5e-5)


def test_kappa_has_no_meaning_where_both_always_say_the_same() -> None:
    assert np.isnan(kappa(np.array([[0.0, 0, 0, 0, 40, 0, 0, 0, 0]]))[0])


def test_the_interval_of_kappa_covers_the_true_one() -> None:
    """Two judges who both see the verdict seven times of ten, on two turns of a prompt that are alike half the time."""
    rng, hits = np.random.default_rng(5), 0

    def seen(verdict: np.ndarray) -> np.ndarray:
        return np.where(rng.random(verdict.shape) < 0.7, verdict, rng.choice(3, verdict.shape, p=shares))

    shares = np.array([0.2, 0.5, 0.3])
    prompts = np.repeat(np.arange(80), 2)
    for _ in range(FEWER_SETS):
        first = rng.choice(3, 80, p=shares)
        second = np.where(rng.random(80) < 0.5, first, rng.choice(3, 80, p=shares))
        verdict = np.column_stack([first, second]).ravel()
        found = interval_of(kappa, np.eye(9)[3 * seen(verdict) + seen(verdict)], prompts)
        assert found is not None
        hits += found.low <= 0.7**2 <= found.high
    assert 0.92 <= hits / FEWER_SETS <= 0.98


def _published(shared: Path) -> dict[str, list[float]]:
    """The mean score of each prompt's two turns, by model."""
    found: dict[str, dict[int, list[float]]] = {}
    lines = (shared / "data/published_results/medusa/gpt-4_single.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        found.setdefault(line["model"], {}).setdefault(line["question_id"], []).append(line["score"])
    return {model: [fmean(turns[number]) for number in sorted(turns)] for model, turns in found.items()}


def test_published_spreads_give_the_margins_that_are_quoted_for_80_and_730_prompts(shared: Path) -> None:
    """80 prompts give about 0.68 on a scale of 1 to 10: the mean score of one model, whose prompts spread by 3.02 to
    3.22 points. 730 give 0.06 to 0.09 paired: differences of two models on the same prompts spread by 0.84 to 1.25."""
    scores = _published(shared)
    alone = [stdev(of) for of in scores.values()]
    paired = [stdev(a - b for a, b in zip(one, other, strict=True)) for one, other in combinations(scores.values(), 2)]
    assert [round(of, 2) for of in sorted(alone)] == [3.02, 3.13, 3.22]
    assert [round(of, 2) for of in sorted(paired)] == [0.84, 1.22, 1.25]
    assert [round(margin(of, 80), 2) for of in sorted(alone)] == [0.67, 0.7, 0.72]
    assert [round(margin(of, 730), 2) for of in sorted(paired)] == [0.06, 0.09, 0.09]


@pytest.mark.parametrize(("spread_of", "wanted"), [(1.0, 0.1), (0.84, 0.09), (3.1, 0.68), (0.5, 2.0), (1.2, 0.05)])
def test_the_prompts_needed_are_the_fewest_that_keep_the_margin(spread_of: float, wanted: float) -> None:
    found = prompts_needed(spread_of, wanted)
    assert margin(spread_of, found) <= wanted
    assert found == 2 or margin(spread_of, found - 1) > wanted


def test_the_spread_of_prompts_with_more_turns_is_that_of_what_they_add_to_the_mean() -> None:
    """Half of the prompts have two turns that say the same: the interval, by the spread, is that of the figure."""
    rng = np.random.default_rng(7)
    difference = rng.normal(0, 1, 200)
    twice = np.concatenate([np.arange(200), np.arange(100)])
    frame = _frame(difference[twice][:, None]).assign(prompt_id=twice.astype(str))
    (found,) = estimates(by_prompt(frame), (SCORE_DIFFERENCE,))
    varies = deviation(frame)
    assert found.interval is not None and varies is not None
    assert margin(varies, 200) == pytest.approx((found.interval.high - found.interval.low) / 2, rel=0.05)
    assert deviation(frame[frame["prompt_id"] == "0"]) is None
