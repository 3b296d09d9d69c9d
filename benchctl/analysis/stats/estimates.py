"""Metrics over pairs as values with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan

import numpy as np
import pandas as pd
from scipy.special import betaincinv

from benchctl.analysis.metrics.metric import Column, Metric, ones, zeros
from benchctl.analysis.stats.intervals import (
    LEVEL,
    Floats,
    Interval,
    Ints,
    Levels,
    evened,
    ratio_intervals,
    ratios_of_sums,
)

_FEW = 5  # prompts that differ from the others, below which a share has at least the exact binomial interval
_OUTCOMES = ("share", "points", "nats/token")  # units of figures whose tops say nothing about a prompt's length


@dataclass(frozen=True)
class Estimate:
    """A metric of one method. `value` is None where it has no meaning, `interval` where there is too little data."""

    metric: Metric
    value: float | None
    interval: Interval | None

    @property
    def numbers(self) -> dict[str, float | None]:
        """Value, and both ends of the interval, for JSON and CSV."""
        low, high = (self.interval.low, self.interval.high) if self.interval else (None, None)
        return {"value": self.value, "low": low, "high": high}


def estimates(pairs: pd.DataFrame, metrics: Sequence[Metric]) -> tuple[Estimate, ...]:
    """The metrics over `pairs`, with intervals.

    A value is None where it has no meaning, such as an acceptance rate where nothing was drafted.
    """
    drawn = levels(pairs)
    weights = evened(drawn)[:, None]
    tops, bottoms, less_tops, less_bottoms = (weights * sums for sums in _sums(pairs, metrics))
    uses_baseline = [metric.uses_baseline for metric in metrics]
    subtracted = [metric.less is not None for metric in metrics]
    intervals = ratio_intervals(
        tops,
        bottoms,
        drawn,
        less=(less_tops, less_bottoms),
        differences=subtracted,
        uses_baseline=uses_baseline,
        outcomes=[metric.unit in _OUTCOMES for metric in metrics],
    )
    ratios = ratios_of_sums(tops, bottoms)
    values = np.where(subtracted, ratios - ratios_of_sums(less_tops, less_bottoms), ratios)
    found = []
    for m, (metric, value, interval) in enumerate(zip(metrics, values.tolist(), intervals, strict=True)):
        if interval and metric.unit == "share":
            interval = Interval(max(interval.low, -1.0 if metric.less else 0.0), min(interval.high, 1.0))
            if metric.of_answers and not metric.less:
                above, below = (np.bincount(drawn.prompt, of[:, m]) for of in (tops, bottoms))
                # A prompt may have several answers: with some that count and some that do not, it says more than one.
                if min(int((above > 0).sum()), int((above < below).sum())) < _FEW:
                    interval = _at_least_binomial(interval, value, int((below > 0).sum()))
        found.append(Estimate(metric, None if isnan(value) else value, interval))
    return tuple(found)


def _at_least_binomial(interval: Interval, share: float, prompts: int) -> Interval:
    """The interval of a share, at least as wide as the exact one of as many prompts that are right or wrong (Clopper,
    Pearson 1934): where few prompts differ from the others, their spread does not show how many of other prompts may.

    >>> round(_at_least_binomial(Interval(0.0, 0.0), 0.0, 40).high, 4)
    0.0881
    """
    count = share * prompts
    low = float(betaincinv(count, prompts - count + 1, LEVEL / 2)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, prompts - count, 1 - LEVEL / 2)) if count < prompts else 1.0
    return Interval(min(interval.low, low), max(interval.high, high))


def measured_apart(pairs: pd.DataFrame) -> bool:
    """Whether a pair is of two sessions, so that every ratio includes the difference between the sessions."""
    same = (pairs["file"] == pairs["file_baseline"]) & (pairs["session"] == pairs["session_baseline"])
    return not bool(same.all())


def levels(pairs: pd.DataFrame) -> Levels:
    """The session and the prompt of each of `pairs`; a batch of prompts is drawn as one."""
    baseline_sessions = pairs.groupby(["file_baseline", "session_baseline"]).ngroup()
    return Levels(
        session=_integers(pairs.groupby(["file", "session"]).ngroup()),
        prompt=_integers(pairs.groupby(["suite", "batch"]).ngroup()),
        other_session=_integers(baseline_sessions) if measured_apart(pairs) else None,
    )


def _sums(pairs: pd.DataFrame, metrics: Sequence[Metric]) -> tuple[Floats, ...]:
    """Four arrays [pairs, metrics]: top and bottom of each ratio, and of the ratio that is subtracted.

    Metrics share columns, and each column is computed once: this is most of the time of a comparison with many methods.
    """

    @cache
    def values(column: Column) -> Floats:
        return column(pairs).to_numpy(dtype=float)

    sides = zip(*((metric.top, metric.bottom, *(metric.less or (zeros, ones))) for metric in metrics), strict=True)
    return tuple(np.stack([values(column) for column in side]).T for side in sides)


def _integers(codes: pd.Series) -> Ints:
    return codes.to_numpy().astype(np.int64)
