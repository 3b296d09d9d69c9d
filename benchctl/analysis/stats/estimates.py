"""Metrics over pairs as values with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan

import numpy as np
import pandas as pd

from benchctl.analysis.metrics.metric import Column, Metric, ones, zeros
from benchctl.analysis.stats.intervals import LEVEL, Floats, Interval, Ints, Levels, ratio_intervals, ratios_of_sums

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
    tops, bottoms, less_tops, less_bottoms = _sums(pairs, metrics)
    uses_baseline = [metric.uses_baseline for metric in metrics]
    subtracted = [metric.less is not None for metric in metrics]
    drawn = levels(pairs)
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
    prompts = [len(np.unique(drawn.prompt[bottoms[:, m] > 0])) for m in range(len(metrics))]
    return tuple(
        Estimate(metric, None if isnan(value) else value, _within_bounds(metric, value, interval, count))
        for metric, value, interval, count in zip(metrics, values.tolist(), intervals, prompts, strict=True)
    )


def _within_bounds(metric: Metric, value: float, interval: Interval | None, prompts: int) -> Interval | None:
    """A share is from 0 to 1 and a difference of shares from -1 to 1, also at the ends of an interval.

    Where none or all of the answers count, they do not vary. The exact binomial interval of as many prompts shows how
    many of other prompts may (Clopper, Pearson 1934).
    """
    if interval is None or metric.unit != "share":
        return interval
    if metric.of_answers and not metric.less and value in (0, 1):
        most = 1 - (LEVEL / 2) ** (1 / prompts)
        return Interval(0.0, most) if value == 0 else Interval(1 - most, 1.0)
    return Interval(max(interval.low, -1.0 if metric.less else 0.0), min(interval.high, 1.0))


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
