"""What a report draws beside the Pareto plot: acceptance by position, and how the time per token varies."""

from dataclasses import dataclass

import pandas as pd

from benchctl.analysis.comparison import POOLED, Group, MethodFigures, SuiteFigures
from benchctl.analysis.frame.row_figures import POSITIONS
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, MEAN_ACCEPTED
from benchctl.analysis.metrics.speed import TPOT, TTFT
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.tables.acceptance import Acceptance, acceptances
from benchctl.analysis.tables.columns import cell, spread
from benchctl.analysis.tables.latency import times

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Bar:
    """A share of drafts at a position: its bar, both ends of its interval if it has one, and `dot`, a second share."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    dot: float | None = None


@dataclass(frozen=True)
class Accepted:
    """A method that drafts, on one suite. `positions` has conditional shares, with unconditional ones as dots."""

    method: int
    suite: str
    title: str
    label: str
    rate: str
    mean: str
    positions: tuple[Bar, ...]
    histogram: tuple[Bar, ...]


@dataclass(frozen=True)
class Spread:
    """TPOT of a method's generations on one suite: quantiles in ms, and their places in percent of the scale,
    which goes from 0 to `scale_ms`.

    `tpot` and `ttft` are the figures of the tables: of all tokens together, not of the middle generation.
    """

    method: int
    suite: str
    title: str
    label: str
    quantiles_ms: tuple[float, ...]
    places: tuple[float, ...]
    scale_ms: float
    tpot: str
    ttft: str
    generations: int


def accepted(number_of_group: int, group: Group) -> tuple[Accepted, ...]:
    """Of every method that drafts, on every suite."""
    suites = {group.title(figures): figures for figures in group.suites}
    labels = [method.label for method in group.methods]
    return tuple(
        _accepted(each, labels, suites[each.suite].suite, suites[each.suite].methods)
        for each in acceptances(number_of_group, group)
    )


def spreads(group: Group) -> tuple[Spread, ...]:
    """Of every method with steps that were timed, on every suite."""
    times = {method.label: _times(group, method.label) for method in group.pooled.methods}
    found = [
        (figures, method, _of_suite(times[method.label], figures.suite))
        for figures in group.suites
        for method in figures.methods
    ]
    most = max((float(of_suite.quantile(_QUANTILES[-1])) for _, _, of_suite in found if len(of_suite)), default=0.0)
    return tuple(
        _spread(group, figures, method, of_suite, most) for figures, method, of_suite in found if len(of_suite)
    )


def _accepted(each: Acceptance, labels: list[str], suite: str, methods: tuple[MethodFigures, ...]) -> Accepted:
    method = next(method for method in methods if method.label == each.label)
    both = zip(each.conditional, each.unconditional, strict=True)
    return Accepted(
        method=labels.index(each.label),
        suite=suite,
        title=each.suite,
        label=each.label,
        rate=spread(method.estimate(ACCEPTANCE_RATE), "{:.3f}"),
        mean=cell(MEAN_ACCEPTED)(method),
        positions=tuple(_bar(at, found, beside.value) for at, (found, beside) in enumerate(both, 1)),
        histogram=tuple(_bar(at, found) for at, found in enumerate(each.histogram)),
    )


def _bar(at: int, found: Estimate, dot: float | None = None) -> Bar:
    name = f"{at}+" if at == POSITIONS else str(at)
    interval = found.interval
    return Bar(name, found.value, interval.low if interval else None, interval.high if interval else None, dot)


def _times(group: Group, label: str) -> pd.Series:
    """TPOT in ms of the generations that a method's figures rest on, by their suites."""
    return (1e3 * times(group, label).set_index("suite")[TPOT.name]).dropna()


def _of_suite(times: pd.Series, suite: str) -> pd.Series:
    return times if suite == POOLED else times[times.index == suite]


def _spread(group: Group, figures: SuiteFigures, method: MethodFigures, times: pd.Series, most: float) -> Spread:
    quantiles = tuple(float(times.quantile(part)) for part in _QUANTILES)
    return Spread(
        method=[known.label for known in group.methods].index(method.label),
        suite=figures.suite,
        title=group.title(figures),
        label=method.label,
        quantiles_ms=quantiles,
        places=tuple(round(100 * quantile / most, 2) if most else 0.0 for quantile in quantiles),
        scale_ms=most,
        tpot=cell(TPOT)(method),
        ttft=cell(TTFT)(method),
        generations=len(times),
    )
