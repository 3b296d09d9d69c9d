"""Intervals of ratios of sums from a paired hierarchical bootstrap of prompts and the spread of sessions.

The pair (method, baseline) stays together throughout: what slows both down cancels. Three levels add to the error:

* Prompts are drawn with replacement, each with all that was measured of it: all of its sessions, repeats and turns.
  Repeats are not drawn once more, for the noise of repeats is in what prompts differ by, and would count twice
  (Davison, Hinkley: Bootstrap Methods and their Application, 1997, section 3.8). Percentiles are taken a little further
  out than 2.5 and 97.5, as Student's t is wider than a normal distribution, so that few prompts promise no more than
  they hold (Hesterberg: What Teachers Should Know About the Bootstrap, 2015, arXiv 1411.5279: expanded percentiles).
* Sessions are few, and few cannot be drawn: two give only three different draws. How far they lie apart, less what
  the noise within them explains, gives their error by Student's t (Cornfield, Tukey: Average Values of Mean Squares in
  Factorials, 1956). Sessions and prompts are crossed: another session measures the same prompts again, and says
  nothing new about how prompts differ.
* The two errors are independent and are added as the squares of their reaches on either side (Zou, Donner: Construction
  of confidence limits about effect measures, 2008, Statistics in Medicine 27).

What one session cannot tell: how sessions differ. Where method and baseline were measured in turns by one process, an
interval of one session is that session's own. Where they were measured by different processes, the difference between
these is part of the error itself; one session of each says nothing about its size, so there is no interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.stats.student import critical, criticals, level_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 2000
LEVEL = 0.05  # the chance that an interval misses
_LOTS = 1000  # more prompts than these are drawn in as many lots: their sums are as good as normal by then


@dataclass(frozen=True)
class Interval:
    """Where the figure lies with 95% confidence."""

    low: float
    high: float


@dataclass(frozen=True)
class Levels:
    """Which session and which prompt each observation belongs to: integer codes, [N] each.

    `other_session` holds the baseline's sessions where method and baseline were measured by different processes.
    Where prompts are decoded in batches a batch is what `prompt` stands for: its answers share one time, so that
    drawing them apart would make few measurements look like many.
    """

    session: Ints
    prompt: Ints
    other_session: Ints | None = None


@dataclass(frozen=True)
class _Sums:
    """Figures by prompt and session: `above` and `below` [P, M] with their observations [N, M], and ratios [M]."""

    above: Floats
    below: Floats
    values: tuple[Floats, Floats]

    @property
    def ratios(self) -> Floats:
        return _ratios(self.above.sum(axis=0), self.below.sum(axis=0))

    @property
    def influence(self) -> Floats:
        """What each observation adds to the error of the ratio, to first order: [N, M], summing to 0."""
        tops, bottoms = self.values
        return _ratios(tops - self.ratios * bottoms, np.broadcast_to(self.below.sum(axis=0), tops.shape))


def ratios_of_sums(tops: Floats, bottoms: Floats) -> Floats:
    """[M] of two [N, M]; not a number where nothing is below, or where some of it is not known."""
    return _ratios(tops.sum(axis=0), bottoms.sum(axis=0))


def bootstrap(
    tops: Floats,
    bottoms: Floats,
    levels: Levels,
    *,
    less: tuple[Floats, Floats] | None = None,
    both: Sequence[bool] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval | None]:
    """The 95% interval of `tops[:, m].sum() / bottoms[:, m].sum()` for each column m of two [N, M] arrays.

    With `less`, two more such arrays, it is the interval of that ratio less theirs. `both` [M] says which figures set
    the baseline against the method (all, if not given): those have no interval where the two were measured apart, with
    one session each. All columns share the resamples, and so do calls with the same levels and seed. None where nothing
    can be told: with fewer than two prompts, or when a resample's bottom is 0.
    """
    prompts = _codes(levels.prompt)
    figures = tops.shape[1]
    if prompts.max(initial=0) < 1:
        return [None] * figures
    sums = [_sums(above, below, prompts) for above, below in ((tops, bottoms), *([less] if less else []))]
    sign = (1, -1)
    value = sum((s * part.ratios for s, part in zip(sign, sums, strict=False)), np.zeros(figures))
    draws = sum((s * _drawn(part, resamples, seed) for s, part in zip(sign, sums, strict=False)), np.zeros(figures))
    influence = sum((s * part.influence for s, part in zip(sign, sums, strict=False)), np.zeros(figures))
    sessions = _sessions(influence, levels, both or [True] * figures)
    logarithmic = (tops >= 0).all(axis=0) & (value > 0)
    if less is not None:
        logarithmic &= ~less[0].any(axis=0)
    return [
        _interval(float(value[m]), draws[:, m], _reach(sessions[m]), int(prompts.max()) + 1, bool(logarithmic[m]))
        for m in range(figures)
    ]


def bootstrap_of(
    figure: Callable[[Floats], Floats], values: Floats, prompts: Ints, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """The 95% interval of a figure that is no ratio of two sums, such as a correlation, from drawing prompts alone.

    `figure` makes of sums [R, K] over all observations figures [R]; `values` [N, K] are what is summed, `prompts` [N]
    whose each is. None with fewer than two prompts, or where the figure of a resample has no meaning (not a number).
    """
    codes = _codes(prompts)
    count = int(codes.max(initial=0)) + 1
    if count < 2:
        return None
    sums = _totals(values, codes)
    value = float(figure(sums.sum(axis=0, keepdims=True))[0])
    return _interval(value, figure(_redrawn(sums, resamples, seed)), 0.0, count, logarithmic=False)


def p_value(tops: Floats, bottoms: Floats, levels: Levels) -> float:
    """How likely a ratio of sums at least so far from 1 is, either way, where the true one is 1; `tops` and `bottoms`
    [N]. The same errors as in `bootstrap`, those of prompts without drawing. 1 where nothing can be told."""
    prompts = _codes(levels.prompt)
    count = int(prompts.max(initial=0)) + 1
    if count < 2:
        return 1.0
    sums = _sums(tops[:, None], bottoms[:, None], prompts)
    value = float(sums.ratios[0])
    if not value > 0:
        return 1.0
    influence = sums.influence / value  # of the ratio's logarithm
    spread = count / (count - 1) * float((_totals(influence, prompts) ** 2).sum())
    session = _sessions(influence, levels, [True])[0]
    if session is None:
        return 1.0
    halves = np.hypot(criticals(count - 1) * sqrt(spread), criticals(session.freedom) * session.error)
    return level_of(abs(float(np.log(value))), halves)


@dataclass(frozen=True)
class _Sessions:
    """What sessions add to the error of a figure: a standard error, and from how many degrees it was estimated."""

    error: float
    freedom: int


def _sessions(influence: Floats, levels: Levels, both: Sequence[bool]) -> list[_Sessions | None]:
    """For each figure; None where sessions are part of its error and nothing tells how large a part."""
    together = _within(influence, _codes(levels.session), _codes(levels.prompt))
    if levels.other_session is None:
        return list(together)
    ours, theirs = _codes(levels.session), _codes(levels.other_session)
    freedom = int(ours.max()) + int(theirs.max())
    apart = _apart(influence, ours, theirs) if freedom else None
    return [
        alone if not against else None if apart is None else _Sessions(float(apart[m]), freedom)
        for m, (alone, against) in enumerate(zip(together, both, strict=True))
    ]


def _within(influence: Floats, sessions: Ints, prompts: Ints) -> list[_Sessions]:
    """Sessions crossed with prompts: by how much sessions differ, less what their noise alone makes them differ by."""
    s, p = int(sessions.max()) + 1, int(prompts.max()) + 1
    if s < 2:
        return [_Sessions(0.0, 1)] * influence.shape[1]
    cells = _totals(influence, sessions * p + prompts, s * p).reshape(s, p, -1)
    by_session, by_prompt = cells.sum(axis=1), cells.sum(axis=0)
    noise = cells - by_session[:, None] / p - by_prompt[None] / s
    spread = s / (s - 1) * (by_session**2).sum(axis=0)
    explained = s * p / ((s - 1) * (p - 1)) * (noise**2).sum(axis=(0, 1))
    return [_Sessions(sqrt(more), s - 1) for more in np.maximum(spread - explained, 0)]


def _apart(influence: Floats, ours: Ints, theirs: Ints) -> Floats:
    """The standard error [M] from sessions of the method and sessions of the baseline that are not the same ones.

    Both are taken to vary by the same share, for they ran on the same machine: so several sessions of one tell what a
    single one of the other may be off by.
    """
    shifts = [(n := int(codes.max()) + 1) * _totals(influence, codes, n) for codes in (ours, theirs)]
    counts = [len(shift) for shift in shifts]
    variance = sum((shift**2).sum(axis=0) for shift in shifts) / (sum(counts) - 2)
    return np.asarray(np.sqrt(variance * sum(1 / count for count in counts)))


def _reach(sessions: _Sessions | None) -> float | None:
    return None if sessions is None else critical(LEVEL, sessions.freedom) * sessions.error


def _interval(value: float, draws: Floats, reach: float | None, prompts: int, logarithmic: bool) -> Interval | None:
    """The percentiles of the draws, widened by what sessions add. A ratio of what cannot be negative is widened by a
    factor, so that it stays one."""
    if reach is None or np.isnan(draws).any():
        return None
    wide = critical(LEVEL, prompts - 1) * sqrt(prompts / (prompts - 1))
    outside = NormalDist().cdf(-wide)
    low, high = (float(end) for end in np.quantile(draws, (outside, 1 - outside)))
    if not reach:
        return Interval(low, high)
    if not logarithmic:
        return Interval(value - float(np.hypot(value - low, reach)), value + float(np.hypot(high - value, reach)))
    with np.errstate(divide="ignore"):
        down, up = np.hypot(np.log(np.array([low, high]) / value), reach / value)
    return Interval(value * float(np.exp(-down)), value * float(np.exp(up)))


def _drawn(sums: _Sums, resamples: int, seed: int) -> Floats:
    """The ratios of resampled prompts, [resamples, M]."""
    above, below = (_redrawn(part, resamples, seed) for part in (sums.above, sums.below))
    return _ratios(above, below)


def _redrawn(sums: Floats, resamples: int, seed: int) -> Floats:
    """Sums by prompt [P, K] -> sums over resampled prompts, [resamples, K]."""
    if len(sums) > _LOTS:
        lots = np.random.default_rng(seed).permutation(len(sums)) % _LOTS
        sums = _totals(sums, lots, _LOTS)
    return _weights(len(sums), resamples, seed) @ sums


@lru_cache(maxsize=4)  # every figure of a comparison is drawn alike: of each suite, and of all together
def _weights(prompts: int, resamples: int, seed: int) -> Floats:
    """How often each prompt is drawn, [resamples, prompts]."""
    drawn = np.random.default_rng(seed).integers(prompts, size=(resamples, prompts))
    cells = drawn + np.arange(resamples)[:, None] * prompts
    return np.bincount(cells.ravel(), minlength=resamples * prompts).reshape(resamples, prompts).astype(float)


def _sums(tops: Floats, bottoms: Floats, prompts: Ints) -> _Sums:
    return _Sums(_totals(tops, prompts), _totals(bottoms, prompts), (tops, bottoms))


def _totals(values: Floats, codes: Ints, count: int = 0) -> Floats:
    """Sums of `values` [N, M] by code, [codes, M]."""
    count = count or int(codes.max()) + 1
    return np.column_stack([np.bincount(codes, values[:, m], count) for m in range(values.shape[1])])


def _codes(labels: Ints) -> Ints:
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _ratios(above: Floats, below: Floats) -> Floats:
    """Elementwise; not a number where there is nothing below."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)
