"""What the Pareto plot shows: each method's place, intervals and looks, who is beaten, and in which order they stand.

Answers of lossless methods are the target's own, so by token agreement and by verdicts these methods, and the baseline,
would all lie on one line at 1. They get a line each in a band of its own instead, the fastest lowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.frame.fidelity import claims_exact
from benchctl.analysis.metrics.faithfulness import TARGET_ANSWERS, TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.curves import Curve, curves
from benchctl.analysis.plots.frontier import Point, frontier
from benchctl.analysis.plots.heights import Height
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError

Look = Literal["baseline", "lossless", "unproven", "lossy"]
LOOKS: tuple[Look, ...] = ("baseline", "lossless", "unproven", "lossy")
_ONE_BY_DEFINITION = (TOKEN_AGREEMENT, TARGET_ANSWERS)  # of lossless methods and of the baseline


@dataclass(frozen=True)
class Dot:
    """A method in a panel. `across` and `along` are both ends of its bars of speed and of height, the point itself
    where there is none; `best` is whether none beats it, `banded` whether it is in the band of lossless methods."""

    label: str
    look: Look
    point: Point
    across: tuple[float, float]
    along: tuple[float, float]
    best: bool
    banded: bool

    @property
    def speed(self) -> str:
        return f"{self.point.x:.2f}x"

    @property
    def speed_and_interval(self) -> str:
        low, high = self.across
        return f"{self.speed} [{low:.2f}, {high:.2f}]" if high > low else self.speed


@dataclass(frozen=True)
class View:
    """A panel. `band` are the dots of the band, from its top (the slowest) to its bottom; `free` are the others.
    `swept` are the curves that lossy methods lie on."""

    group: Group
    dots: tuple[Dot, ...]
    swept: tuple[Curve, ...]

    @property
    def band(self) -> tuple[Dot, ...]:
        return tuple(sorted((dot for dot in self.dots if dot.banded), key=lambda dot: (dot.point.x, dot.label)))

    @property
    def free(self) -> tuple[Dot, ...]:
        return tuple(dot for dot in self.dots if not dot.banded)


def view(group: Group, height: Height) -> View:
    """What a panel of `group` shows, its suites taken together.

    Raises UserError for runs without that height, and where the baseline answered no prompt.
    """
    methods = [method for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None]
    if not methods:
        raise UserError(f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.")
    heights = [height.of(group, method) for method in methods]
    points = [Point(_speed(method), of.value or 0.0) for method, of in zip(methods, heights, strict=True)]
    looks = [_look(group, method) for method in methods]
    band = height.metric in _ONE_BY_DEFINITION and "lossless" in looks
    dots = []
    for method, of, point, best, look in zip(methods, heights, points, frontier(points), looks, strict=True):
        across, along = _ends(method.estimate(SPEEDUP), point.x), _ends(of, point.y)
        banded = band and look in ("baseline", "lossless")
        dots.append(Dot(method.label, look, point, across, along, best, banded))
    return View(group, tuple(dots), _swept(group, dots))


def _speed(method: MethodFigures) -> float:
    return 1.0 if method.is_baseline else method.estimate(SPEEDUP).value or 0.0


def _look(group: Group, method: MethodFigures) -> Look:
    if method.is_baseline:
        return "baseline"
    if method.lossless:
        return "lossless"
    return "unproven" if claims_exact(method.exactness, group.run.temperature) else "lossy"


def _ends(estimate: Estimate, value: float) -> tuple[float, float]:
    """Of an interval, whose resamples may differ from the value in its last digit."""
    interval = estimate.interval
    return (min(interval.low, value), max(interval.high, value)) if interval else (value, value)


def _swept(group: Group, dots: Sequence[Dot]) -> tuple[Curve, ...]:
    """Curves of lossy methods. Exact ones are no curve: they all agree."""
    lossy = {dot.label for dot in dots if dot.look == "lossy"}
    return curves([method for method in group.methods if method.label in lossy])


def named_first(views: Sequence[View]) -> tuple[str, ...]:
    """All labels but the baseline's, the more telling first: those that nothing beats in some panel, and the others,
    the fastest first."""
    dots = [dot for view in views for dot in view.dots if dot.look != "baseline"]
    rank: dict[str, tuple[int, float]] = {}
    for dot in dots:
        place = 0 if dot.best else 1
        rank[dot.label] = min(rank.get(dot.label, (place, 0.0)), (place, -dot.point.x))
    return tuple(sorted(rank, key=lambda label: rank[label]))
