"""The points that no other beats."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A trade-off, higher being better on both axes."""

    x: float
    y: float


def frontier(points: Sequence[Point]) -> tuple[bool, ...]:
    """For each point, whether no other beats it; equal points do not beat each other.

    >>> frontier([Point(1, 1), Point(2, 1), Point(3, 0.5), Point(2, 0.4)])
    (False, True, True, False)
    """
    return tuple(not any(_beats(other, point) for other in points) for point in points)


def _beats(one: Point, other: Point) -> bool:
    """At least as good on both axes, and better on one."""
    return one.x >= other.x and one.y >= other.y and one != other
