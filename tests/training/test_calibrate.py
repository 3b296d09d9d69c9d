"""Calibration keeps its promise: on simulated risks that are known, and on a target whose answers can be recounted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from scipy.stats import binom

from benchctl.training.modules.calibrate import Calibration, Risk, disagreement, learn_then_test, p_value

PROMISED = Risk(0.2, 0.1)
PROMPTS = 80
REPEATS = 1500
# Three standard deviations of a share of REPEATS that is epsilon.
ALLOWED = PROMISED.epsilon + 3 * (PROMISED.epsilon * (1 - PROMISED.epsilon) / REPEATS) ** 0.5
RISING = {0.9: 0.02, 0.8: 0.08, 0.7: 0.14, 0.6: 0.19, 0.5: 0.22, 0.4: 0.24, 0.3: 0.3}
ALL_ABOVE = {0.99 - number / 100: 0.205 for number in range(20)}
# The safest is not the highest: fewer pass, none wrongly.
FALLING = {0.9: 0.3, 0.8: 0.21, 0.7: 0.21, 0.6: 0.21, 0.5: 0.1}


def _losses(risk: float, chance: random.Random, kind: str) -> list[float]:
    """Losses with this mean: all or nothing, or in between."""
    if kind == "coins":
        return [float(chance.random() < risk) for _ in range(PROMPTS)]
    return [min(1.0, chance.betavariate(risk, 1 - risk)) for _ in range(PROMPTS)]


def _ours(losses: dict[float, list[float]]) -> float | None:
    chosen = learn_then_test(tuple(losses), losses.__getitem__, PROMISED).chosen
    return None if chosen is None else chosen.threshold


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coins", "shares"])
@pytest.mark.parametrize("risks", [RISING, ALL_ABOVE, FALLING], ids=["rising", "all above", "falling"])
def test_no_more_than_epsilon_of_calibrations_break_the_promise(risks: dict[float, float], kind: str) -> None:
    chance, wrong = random.Random(0), 0
    for _ in range(REPEATS):
        chosen = _ours({threshold: _losses(risk, chance, kind) for threshold, risk in risks.items()})
        wrong += chosen is not None and risks[chosen] > PROMISED.delta
    assert wrong / REPEATS <= ALLOWED


def test_calibration_finds_a_threshold_where_there_is_one() -> None:
    """Else the promise would be kept by never choosing: nearly all end, and half well below the highest."""
    lows = []
    chance = random.Random(1)
    for _ in range(200):
        lows.append(_ours({at: _losses(risk, chance, "coins") for at, risk in RISING.items()}))
    assert sum(low is not None for low in lows) >= 198
    assert sum(low is not None and low <= 0.8 for low in lows) > 100


def test_p_values_are_bounds_of_the_true_chance() -> None:
    """Of coins whose risk is delta itself, the worst case: P(p <= level) <= level, by enumeration of all counts."""
    for count, delta in ((20, 0.1), (80, 0.2), (150, 0.05)):
        found = [p_value([1.0] * hits + [0.0] * (count - hits), delta) for hits in range(count + 1)]
        assert found == sorted(found)
        for level in (0.01, 0.05, 0.1, 0.3):
            chance = sum(binom.pmf(hits, count, delta) for hits in range(count + 1) if found[hits] <= level)
            assert chance <= level
    assert p_value([0.0] * 29, 0.1) == pytest.approx(0.9**29)
    assert Risk(0.1, 0.05).fewest == 29 and 0.9**28 > 0.05 >= 0.9**29


def test_a_prompt_counts_up_to_its_first_difference() -> None:
    """The example of the docstring; what comes after the first difference is another text."""
    assert disagreement([5, 6, 7, 8], [5, 6, 9]) == 0.5
    assert disagreement([5, 6], [5, 6]) == 0.0
    assert disagreement([5, 6], [5, 6, 7, 8]) == 0.5
    assert disagreement([9, 6, 7], [5, 6, 7]) == 1.0


def test_testing_stops_at_the_first_threshold_that_is_not_shown_to_be_safe() -> None:
    asked: list[float] = []

    def losses_at(threshold: float) -> Sequence[float]:
        asked.append(threshold)
        return [0.0] * 50 if threshold > 0.5 or threshold < 0.2 else [1.0] * 50

    found = learn_then_test((0.9, 0.6, 0.4, 0.1), losses_at, PROMISED)
    assert asked == [0.9, 0.6, 0.4]
    assert found.chosen is not None and found.chosen.threshold == 0.6
    assert Calibration(PROMISED, found.tested[2:]).chosen is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("0.1", "two numbers"), ("0,0.1", "delta is 0.0"), ("0.1,1", "epsilon is 1.0"), ("nan,0.1", "delta is nan")],
)
def test_promises_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Risk.read(text)
