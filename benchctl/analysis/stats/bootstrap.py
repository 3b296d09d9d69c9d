"""Intervals of ratios of sums: a paired bootstrap over prompts, combined with the spread of sessions.

A pair (method, baseline) stays together throughout: what slows both down cancels. The error has two parts:

* Prompts are drawn with replacement, each with all that was measured of it: all of its sessions, repeats and turns.
  Repeats are not drawn again: the noise of repeats is part of how prompts differ, and would count twice
  (Davison, Hinkley: Bootstrap Methods and their Application, 1997, section 3.8). Percentiles are taken further out than
  2.5 and 97.5, as Student's t is wider than a normal distribution, so that intervals of few prompts are wide enough
  (Hesterberg: What Teachers Should Know About the Bootstrap, 2015, arXiv 1411.5279: expanded percentiles).
* Sessions are few, and few cannot be drawn: two give only three different draws. The variance between sessions, less
  the part that the noise within them explains, gives their error by Student's t (Cornfield, Tukey: Average Values of
  Mean Squares in Factorials, 1956). Sessions and prompts are crossed: another session measures the same prompts again,
  so it adds no information about how prompts differ.

The two errors are independent. They are added as the squares of their half-widths on either side (Zou, Donner:
Construction of confidence limits about effect measures, 2008, Statistics in Medicine 27).

One session does not show how sessions differ. Where one process measured method and baseline in turns, an interval of
one session holds for that session. Where different processes measured them, the difference between the processes is
part of the error; with one session of each its size is unknown, so there is no interval.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 2000
LEVEL = 0.05  # the chance that an interval misses
_LOTS = 1000  # more prompts are drawn in this many lots, whose sums are normal enough
_LEVELS = np.geomspace(1e-6, 1.0, 400)  # p-values are interpolated between these


@dataclass(frozen=True)
class Interval:
    """A 95% confidence interval."""

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


def codes_of(keys: Sequence[Hashable]) -> Ints:
    """The number of each key, in the order in which the keys occur first."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def critical(level: float, freedom: int) -> float:
    """The value that |T| of Student's t exceeds with probability `level`: 1.96 at 0.05 and many degrees, 12.7 at 1."""
    return float(-stdtrit(freedom, level / 2))


class _Sums:
    """Sums by prompt of two [N, M] arrays, `above` and `below` [P, M], and what follows from them."""

    def __init__(self, tops: Floats, bottoms: Floats, prompts: Ints) -> None:
        self.above, self.below = _totals(tops, prompts), _totals(bottoms, prompts)
        whole = self.below.sum(axis=0)
        self.ratios = _ratios(self.above.sum(axis=0), whole)
        # The first-order contribution of each observation to the ratio's error, [N, M].
        self.influence = _ratios(tops - self.ratios * bottoms, np.broadcast_to(whole, tops.shape))

    def drawn(self, resamples: int, seed: int) -> Floats:
        """The ratios of resampled prompts, [resamples, M]."""
        return _ratios(*(_redrawn(part, resamples, seed) for part in (self.above, self.below)))


def ratios_of_sums(tops: Floats, bottoms: Floats) -> Floats:
    """[N, M] and [N, M] -> [M]; NaN where the bottoms sum to 0 or a value is missing."""
    return _ratios(tops.sum(axis=0), bottoms.sum(axis=0))


def bootstrap(
    tops: Floats,
    bottoms: Floats,
    levels: Levels,
    *,
    less: tuple[Floats, Floats] | None = None,
    uses_baseline: Sequence[bool] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval | None]:
    """The 95% interval of `tops[:, m].sum() / bottoms[:, m].sum()` for each column m of two [N, M] arrays.

    With `less`, two more such arrays, it is the interval of that ratio minus theirs. `uses_baseline` [M] says which
    figures compare the method with the baseline (default: all). Those have no interval where the two were measured in
    different sessions, one each. All columns share the resamples, and so do calls with the same levels and seed.
    None with fewer than two prompts, or when a resample's bottom is 0.
    """
    prompts = _codes(levels.prompt)
    figures = tops.shape[1]
    if prompts.max(initial=0) < 1:
        return [None] * figures
    sums = _Sums(tops, bottoms, prompts)
    value, draws, influence = sums.ratios, sums.drawn(resamples, seed), sums.influence
    if less is not None:
        subtracted = _Sums(*less, prompts)
        value = value - subtracted.ratios
        draws = draws - subtracted.drawn(resamples, seed)
        influence = influence - subtracted.influence
    sessions = _sessions(influence, levels, uses_baseline or [True] * figures)
    logarithmic = (tops >= 0).all(axis=0) & (value > 0)
    if less is not None:
        logarithmic &= ~less[0].any(axis=0)
    return [
        _interval(float(value[m]), draws[:, m], sessions[m], int(prompts.max()) + 1, bool(logarithmic[m]))
        for m in range(figures)
    ]


def bootstrap_of(
    figure: Callable[[Floats], Floats], values: Floats, prompts: Ints, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """The 95% interval of a figure that is no ratio of two sums, such as a correlation, from drawing prompts alone.

    `figure` maps sums [R, K] over all observations to figures [R]. `values` [N, K] are summed; `prompts` [N] has the
    prompt of each. None with fewer than two prompts, or where the figure of a resample is NaN.
    """
    codes = _codes(prompts)
    count = int(codes.max(initial=0)) + 1
    if count < 2:
        return None
    sums = _totals(values, codes)
    value = float(figure(sums.sum(axis=0, keepdims=True))[0])
    return _interval(value, figure(_redrawn(sums, resamples, seed)), _Sessions(0.0, 1), count, logarithmic=False)


def p_value(tops: Floats, bottoms: Floats, levels: Levels) -> float:
    """The two-sided p-value of a ratio of sums being 1; `tops` and `bottoms` are [N]. 1 where there is too little data.

    It is the level at which the interval of the ratio's logarithm just reaches 0. The errors are those of `bootstrap`,
    with Student's t for the prompts instead of draws: half-width(level)**2 = (t_prompts s_prompts)**2 + (t_sessions
    s_sessions)**2.
    """
    prompts = _codes(levels.prompt)
    count = int(prompts.max(initial=0)) + 1
    if count < 2:
        return 1.0
    sums = _Sums(tops[:, None], bottoms[:, None], prompts)
    value = float(sums.ratios[0])
    if not value > 0:
        return 1.0
    influence = sums.influence / value  # on the ratio's logarithm
    error = sqrt(count / (count - 1) * float((_totals(influence, prompts) ** 2).sum()))
    session = _sessions(influence, levels, [True])[0]
    if session is None:
        return 1.0
    half_widths = np.hypot(_critical(count - 1) * error, _critical(session.freedom) * session.error)
    return float(np.exp(np.interp(abs(log(value)), half_widths[::-1], np.log(_LEVELS)[::-1])))


@lru_cache(maxsize=64)
def _critical(freedom: int) -> Floats:
    """`critical` at each of _LEVELS, [400]."""
    return np.asarray(-stdtrit(freedom, _LEVELS / 2))


class _Sessions(NamedTuple):
    """The part of a figure's standard error that sessions add, and the degrees of freedom of its estimate."""

    error: float
    freedom: int


def _sessions(influence: Floats, levels: Levels, uses_baseline: Sequence[bool]) -> list[_Sessions | None]:
    """For each figure; None where sessions are part of its error and the size of that part is unknown."""
    together = _within(influence, _codes(levels.session), _codes(levels.prompt))
    if levels.other_session is None:
        return list(together)
    ours, theirs = _codes(levels.session), _codes(levels.other_session)
    freedom = int(ours.max()) + int(theirs.max())
    apart = _apart(influence, ours, theirs) if freedom else None
    return [
        own if not compared else None if apart is None else _Sessions(float(apart[m]), freedom)
        for m, (own, compared) in enumerate(zip(together, uses_baseline, strict=True))
    ]


def _within(influence: Floats, sessions: Ints, prompts: Ints) -> list[_Sessions]:
    """Sessions crossed with prompts: the variance between sessions, less the part that the noise within explains."""
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

    We assume that both vary by the same share, since they ran on the same machine. Several sessions of one then show
    how far off a single session of the other may be.
    """
    shifts = [(n := int(codes.max()) + 1) * _totals(influence, codes, n) for codes in (ours, theirs)]
    counts = [len(shift) for shift in shifts]
    variance = sum((shift**2).sum(axis=0) for shift in shifts) / (sum(counts) - 2)
    return np.asarray(np.sqrt(variance * sum(1 / count for count in counts)))


def _interval(
    value: float, draws: Floats, sessions: _Sessions | None, prompts: int, logarithmic: bool
) -> Interval | None:
    """The percentiles of the draws, widened by what sessions add; on a log scale where the ratio cannot be negative."""
    if sessions is None or np.isnan(draws).any():
        return None
    half_width = critical(LEVEL, sessions.freedom) * sessions.error
    wide = critical(LEVEL, prompts - 1) * sqrt(prompts / (prompts - 1))
    outside = float(ndtr(-wide))
    low, high = (float(end) for end in np.quantile(draws, (outside, 1 - outside)))
    if not half_width:
        return Interval(low, high)
    if not logarithmic:
        below, above = np.hypot([value - low, high - value], half_width)
        return Interval(value - float(below), value + float(above))
    with np.errstate(divide="ignore"):
        down, up = np.hypot(np.log(np.array([low, high]) / value), half_width / value)
    return Interval(value * float(np.exp(-down)), value * float(np.exp(up)))


def _redrawn(sums: Floats, resamples: int, seed: int) -> Floats:
    """Sums by prompt [P, K] -> sums over resampled prompts, [resamples, K]."""
    if len(sums) > _LOTS:
        lots = np.random.default_rng(seed).permutation(len(sums)) % _LOTS
        sums = _totals(sums, lots, _LOTS)
    return _weights(len(sums), resamples, seed) @ sums


@lru_cache(maxsize=4)  # all figures of a suite share the draws
def _weights(prompts: int, resamples: int, seed: int) -> Floats:
    """How often each prompt is drawn, [resamples, prompts]."""
    drawn = np.random.default_rng(seed).integers(prompts, size=(resamples, prompts))
    cells = drawn + np.arange(resamples)[:, None] * prompts
    return np.bincount(cells.ravel(), minlength=resamples * prompts).reshape(resamples, prompts).astype(float)


def _totals(values: Floats, codes: Ints, count: int = 0) -> Floats:
    """Sums of `values` [N, M] by code, [codes, M]."""
    count = count or int(codes.max()) + 1
    return np.column_stack([np.bincount(codes, values[:, m], count) for m in range(values.shape[1])])


def _codes(labels: Ints) -> Ints:
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _ratios(above: Floats, below: Floats) -> Floats:
    """Elementwise; NaN where `below` is 0."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)
