"""Whether answers were drawn with the chances they ought to have: a G-test, and what it would have found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

Text = tuple[int, ...]

CHANCE = 1e-4  # of failing a method that is right
POWER = 0.99  # the chance that a deviation as large as `found` is found
_FEWEST = 5.0  # answers expected in a cell of the test


@dataclass(frozen=True)
class GTest:
    """The p-value of `draws` answers in `cells` cells."""

    p: float
    cells: int
    draws: int

    @property
    def fails(self) -> bool:
        return self.p < CHANCE

    @property
    def finds(self) -> float:
        """The least total variation over the cells, whatever its direction, that fails with a chance of POWER.

        A deviation d of the chances c has chi-squared sum(d**2 / c), by which the statistic grows with each draw, and
        total variation v = sum(|d|) / 2. By Cauchy and Schwarz the first is at least 4 v**2.
        """
        return math.sqrt(_noncentrality(self.cells - 1) / (4 * self.draws))


def g_test(counts: Counter[Text], expected: dict[Text, float]) -> GTest | None:
    """The G-test (Sokal and Rohlf, Biometry) that ``counts`` were drawn from ``expected``.

    Cells are taken together, the rarest first, until each is expected five times: below, the test's chi-squared is no
    good. None where that leaves one cell.
    """
    total = counts.total()
    cells: list[tuple[float, float]] = []
    seen, due = 0.0, 0.0
    for text, chance in sorted(expected.items(), key=lambda item: item[1]):
        seen, due = seen + counts[text], due + chance * total
        if due >= _FEWEST:
            cells.append((seen, due))
            seen, due = 0.0, 0.0
    if due and cells:  # what rounding leaves of the last and largest
        cells[-1] = (cells[-1][0] + seen, cells[-1][1] + due)
    if len(cells) < 2:
        return None
    g = 2 * sum(seen * math.log(seen / due) for seen, due in cells if seen)
    return GTest(_above(max(g, 0.0), len(cells) - 1), len(cells), total)


def _above(statistic: float, freedom: int, noncentrality: float = 0.0) -> float:
    """The chance that chi-squared is above `statistic`; a noncentral one is a mixture of central ones, by Poisson."""
    most = int(noncentrality + 20 * math.sqrt(noncentrality + 1)) + 20
    more = torch.arange(most if noncentrality else 1, dtype=torch.float64)
    mean = torch.tensor(noncentrality / 2, dtype=torch.float64)
    weights = (torch.special.xlogy(more, mean) - mean - torch.lgamma(more + 1)).exp()
    tails = torch.special.gammaincc(freedom / 2 + more, torch.full_like(more, statistic / 2))
    return float((weights * tails).sum())


def _noncentrality(freedom: int) -> float:
    """Of a chi-squared that is above the one that CHANCE belongs to with a chance of POWER."""
    critical = _crossing(lambda statistic: _above(statistic, freedom) < CHANCE)
    return _crossing(lambda noncentrality: _above(critical, freedom, noncentrality) > POWER)


def _crossing(passed: Callable[[float], bool]) -> float:
    """Where `passed` becomes true."""
    low, high = 0.0, 1.0
    while not passed(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if passed(middle) else (middle, high)
    return high
