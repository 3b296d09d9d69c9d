"""Student's t: how large the error of a mean may be where its spread had to be estimated from few values."""

from functools import lru_cache
from math import exp, lgamma, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_REACH = 10.0  # standard deviations from where a tail begins to where nothing is left of it
LEVELS: Floats = np.geomspace(1e-6, 1.0, 400)  # chances of an error, from what may be called certain to none


def tails(statistics: Floats, freedom: int) -> Floats:
    """The chance that |T| is above each of `statistics` [K], at `freedom` degrees (at least 1); [K].

    With T = sqrt(freedom) tan(a) the density is cos(a)**(freedom - 1), which is integrated from a to a right angle.

    >>> [round(float(tails(np.array([t]), freedom)[0]), 3) for t, freedom in ((12.706, 1), (2.045, 29), (1.984, 100))]
    [0.05, 0.05, 0.05]
    """
    start = np.arctan(statistics / sqrt(freedom))
    half = (np.minimum(pi / 2, start + _REACH / sqrt(freedom)) - start) / 2
    angles = start[:, None] + half[:, None] * (1 + _NODES)
    above = half * (np.cos(angles) ** (freedom - 1) @ _WEIGHTS)
    whole = sqrt(pi) / 2 * exp(lgamma(freedom / 2) - lgamma((freedom + 1) / 2))
    return np.asarray(np.minimum(1.0, above / whole))


@lru_cache(maxsize=256)
def critical(level: float, freedom: int) -> float:
    """The statistic that |T| passes with a chance of `level`: 1.96 at 0.05 and many degrees, 12.7 at one."""
    low, high = 0.0, 1.0
    while _tail(high, freedom) > level:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > level else (low, middle)
    return high


@lru_cache(maxsize=64)
def criticals(freedom: int) -> Floats:
    """The critical statistics at LEVELS, [400], interpolated within 0.1%; 0 at level 1."""
    statistics = np.geomspace(1e-4, 1e7, 800)
    reached = np.log(np.maximum(tails(statistics, freedom), 1e-300))
    found = np.exp(np.interp(np.log(LEVELS), reached[::-1], np.log(statistics)[::-1]))
    return np.asarray(np.where(LEVELS < 1, found, 0.0))


def level_of(size: float, halves: Floats) -> float:
    """The p-value of a figure that lies `size` away from what it is tested against: the level at which its interval
    reaches just as far, given how far it reaches at LEVELS [400]. It is at least the least of LEVELS."""
    if size <= 0:
        return 1.0
    return exp(float(np.interp(size, halves[::-1], np.log(LEVELS)[::-1], right=log(LEVELS[0]))))


def _tail(statistic: float, freedom: int) -> float:
    return float(tails(np.array([statistic]), freedom)[0])
