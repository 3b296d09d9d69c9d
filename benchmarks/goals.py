"""What an interval says of a goal: only one that lies on the right side as a whole has met it."""

from __future__ import annotations

OPEN = "open, the interval holds it; measure again or longer"


def against_goal(low: float, high: float, goal: float) -> str:
    """Of a goal that is a least value."""
    if low >= goal:
        return "met, by the whole interval"
    return "missed, by the whole interval" if high < goal else OPEN


def against_band(low: float, high: float, within: float) -> str:
    """Of a ratio that is to lie ``within`` that share of 1 on either side."""
    if 1 - within <= low and high <= 1 + within:
        return "met, by the whole interval"
    return "missed, by the whole interval" if high < 1 - within or low > 1 + within else OPEN


def is_met(low: float, high: float, within: float) -> bool:
    """Whether the whole interval is within that share of 1."""
    return against_band(low, high, within).startswith("met")
