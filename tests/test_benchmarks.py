"""What `make bench` says of its goals."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import against_goal


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.8, 0.9, "met"), (0.79, 0.9, "open"), (0.79, 0.8, "open"), (0.7, 0.79, "missed")],
)
def test_a_goal_is_met_or_missed_by_the_whole_interval_or_open(low: float, high: float, told: str) -> None:
    assert against_goal(low, high, goal=0.8).startswith(told)
