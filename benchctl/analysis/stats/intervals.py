"""Intervals of ratios of sums: a paired jackknife over prompts, combined with the spread of sessions.

A pair (method, baseline) stays together throughout: what slows both down cancels. The error has two parts:

* Prompts are left out one at a time, each with all that was measured of it: all of its sessions, repeats and turns.
  Repeats are not left out alone: their noise is part of how prompts differ, and would count twice. The spread of what
  remains gives the standard error (Tukey 1958; Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 11),
  and Student's t gives the interval. Prompts that take most of the time count for many, so few of them make a wide
  interval (see `_standard_errors`). `python -m benchmarks.coverage` counts how often such intervals contain the truth.
* A prompt that only some of the sessions have counts like any other (`evened`).
* Sessions are few. The variance between sessions, less what the noise within them explains, gives their error by
  Student's t (Cornfield, Tukey: Average Values of Mean Squares in Factorials, 1956). Sessions and prompts are crossed:
  another session measures the same prompts again, so it adds no information about how prompts differ.

The two errors are independent. They are added as the squares of their half-widths (Zou, Donner: Construction of
confidence limits about effect measures, 2008, Statistics in Medicine 27).

One session does not show how sessions differ. Where one process measured method and baseline in turns, an interval of
one session holds for that session. Where different processes measured them, the difference between the processes is
part of the error; with one session of each its size is unknown, so there is no interval.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEVEL = 0.05  # the chance that an interval misses
LEAST_PROMPTS = 5  # fewer have no interval
# This times v / (v + noise) is the share of the noise within sessions that is subtracted, v being the variance by
# prompts. Where equal methods differ by noise alone, the share is 0.7. To subtract all would make intervals too narrow:
# the noise is itself estimated, and a negative rest counts as 0.
_NOISE_SHARE = 1.4
_EQUAL = 6  # weight of the second variance in `_standard_errors`, as a number of prompts
_MANY = 1000  # degrees of freedom of a spread that is assumed
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
    leaving them out one at a time would make few measurements look like many.
    """

    session: Ints
    prompt: Ints
    other_session: Ints | None = None


def codes_of(keys: Sequence[Hashable]) -> Ints:
    """The number of each key, in the order in which the keys occur first."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def critical(level: float, freedom: float) -> float:
    """The value that |T| of Student's t exceeds with probability `level`: 1.96 at 0.05 and many degrees, 12.7 at 1."""
    return float(-stdtrit(freedom, level / 2))


def ratios_of_sums(tops: Floats, bottoms: Floats) -> Floats:
    """[N, M] and [N, M] -> [M]; NaN where the bottoms sum to 0 or a value is missing."""
    return _ratios(tops.sum(axis=0), bottoms.sum(axis=0))


def ratio_intervals(
    tops: Floats,
    bottoms: Floats,
    levels: Levels,
    *,
    less: tuple[Floats, Floats] | None = None,
    differences: Sequence[bool] | None = None,
    uses_baseline: Sequence[bool] | None = None,
    outcomes: Sequence[bool] | None = None,
) -> list[Interval | None]:
    """The 95% interval of `tops[:, m].sum() / bottoms[:, m].sum()` for each column m of two [N, M] arrays.

    With `less`, two more such arrays, it is the interval of that ratio minus theirs. `differences` [M] says which
    figures are differences, which may be negative even where none of the observations is (default: all with `less`,
    none without). `uses_baseline` [M] says which figures compare the method with the baseline (default: all). Those
    have no interval where the two were measured in different sessions, one each. `outcomes` [M] says whose tops are
    outcomes, such as right answers or scores (default: none): they say nothing about how much a prompt matters. None
    with fewer than LEAST_PROMPTS prompts that have a bottom.
    """
    figures = tops.shape[1]
    subtracted = _Subtracted(less, np.array(differences or [less is not None] * figures))
    errors = _errors(
        tops, bottoms, levels, subtracted, uses_baseline or [True] * figures, np.array(outcomes or [False] * figures)
    )
    return [None if error is None else error.interval() for error in errors]


def p_value(tops: Floats, bottoms: Floats, levels: Levels) -> float:
    """The two-sided p-value of a ratio of sums being 1; `tops` and `bottoms` are [N]. 1 where there is too little data.

    It is the level at which the interval of the ratio's logarithm just reaches 0.
    """
    nothing = _Subtracted(None, np.array([False]))
    (error,) = _errors(tops[:, None], bottoms[:, None], levels, nothing, [True], np.array([False]))
    return 1.0 if error is None or not error.logarithmic else error.p_value()


def interval_of(figure: Callable[[Floats], Floats], values: Floats, prompts: Ints) -> Interval | None:
    """The 95% interval of a figure that is no ratio of two sums, such as a correlation, from prompts alone.

    `figure` maps sums [R, K] over all observations to figures [R]. `values` [N, K] are summed; `prompts` [N] has the
    prompt of each. None with fewer than LEAST_PROMPTS prompts, or where the figure without one of them is NaN.
    """
    sums = _totals(values, _codes(prompts))
    if len(sums) < LEAST_PROMPTS:
        return None
    whole = sums.sum(axis=0, keepdims=True)
    without = figure(whole - sums)[:, None]
    if np.isnan(without).any():
        return None
    error, freedom = _standard_errors(without, [np.ones_like(without)])
    value = float(figure(whole)[0])
    return _Error(value, float(error[0]), float(freedom[0]), _Sessions(0.0, 1), logarithmic=False).interval()


class Observations(NamedTuple):
    """A ratio of sums `tops.sum() / bottoms.sum()`: [N] each, with the session and the prompt of each observation."""

    tops: Floats
    bottoms: Floats
    sessions: Ints
    prompts: Sequence[Hashable]


class Quotient(NamedTuple):
    """A ratio of sums `now` divided by an earlier one, `then`, with its interval and two-sided p-value of being 1.

    `by_prompts` and `by_sessions` are the half-widths of the two errors, on the logarithm.
    """

    now: float
    then: float
    interval: Interval
    p_value: float
    by_prompts: float
    by_sessions: float
    prompts: int


def quotient(now: Observations, then: Observations, session_spread: float) -> Quotient | None:
    """One ratio of sums divided by an earlier one, over the prompts that both have.

    Prompts are paired: what makes a prompt long or easy cancels, also where some were measured more often than others,
    since each counts by the means of its observations. The spread of sessions comes from both runs; with one
    session each it is unknown, and `session_spread` (of a session's logarithm) is assumed.
    None with fewer than LEAST_PROMPTS common prompts, or where a sum is 0.
    """
    common = sorted(set(now.prompts) & set(then.prompts), key=str)
    if len(common) < LEAST_PROMPTS:
        return None
    number = {prompt: code for code, prompt in enumerate(common)}
    sums, sessions = [], []
    for each in (now, then):
        kept = np.array([prompt in number for prompt in each.prompts])
        codes = np.array([number[prompt] for prompt in each.prompts if prompt in number], dtype=np.int64)
        parts = np.column_stack([each.tops, each.bottoms])[kept]
        means = _totals(parts, codes, len(common)) / np.bincount(codes, minlength=len(common))[:, None]
        if not (means > 0).all():
            return None
        sums.append(means)
        by_session, usual = (_totals(values, _codes(each.sessions[kept])) for values in (parts, means[codes]))
        # Relative to what all sessions measured on the same prompts: one that was interrupted has fewer.
        sessions.append(np.log(by_session[:, 0] / by_session[:, 1] / (usual[:, 0] / usual[:, 1])))
    by_prompt = np.column_stack(sums)
    whole = by_prompt.sum(axis=0)
    left = whole - by_prompt
    without = np.log(left[:, 0] / left[:, 1] / (left[:, 2] / left[:, 3]))[:, None]
    errors, freedoms = _standard_errors(without, np.split(by_prompt, 4, axis=1))
    ratios = float(whole[0] / whole[1]), float(whole[2] / whole[3])
    counts = [len(logarithms) for logarithms in sessions]
    degrees = sum(counts) - 2
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in sessions)
    spread = sqrt(squares / degrees) if degrees else session_spread
    session_error = spread * sqrt(1 / counts[0] + 1 / counts[1])
    value = ratios[0] / ratios[1]
    between = _Sessions(value * session_error, degrees or _MANY)
    error = _Error(value, float(errors[0]), float(freedoms[0]), between, logarithmic=True)
    return Quotient(
        *ratios,
        error.interval(),
        error.p_value(),
        critical(LEVEL, error.freedom) * error.prompts,
        critical(LEVEL, between.freedom) * session_error,
        len(common),
    )


class _Sessions(NamedTuple):
    """The part of a figure's standard error that sessions add, and the degrees of freedom of its estimate."""

    error: float
    freedom: int


class _Error(NamedTuple):
    """A figure, the standard error by prompts with its degrees of freedom, and the error of sessions.

    `prompts` is an error of the figure's logarithm where that is `logarithmic`, as for ratios that are never negative.
    """

    value: float
    prompts: float
    freedom: float
    sessions: _Sessions
    logarithmic: bool

    def interval(self) -> Interval:
        by_prompts = critical(LEVEL, self.freedom) * self.prompts
        by_sessions = critical(LEVEL, self.sessions.freedom) * self.sessions.error
        if not self.logarithmic:
            half_width = hypot(by_prompts, by_sessions)
            return Interval(self.value - half_width, self.value + half_width)
        with np.errstate(over="ignore"):
            factor = float(np.exp(hypot(by_prompts, by_sessions / self.value)))
        return Interval(self.value / factor, self.value * factor)

    def p_value(self) -> float:
        """Of a logarithmic figure being 1."""
        half_widths = np.hypot(
            _critical(self.freedom) * self.prompts, _critical(self.sessions.freedom) * self.sessions.error / self.value
        )
        return float(np.exp(np.interp(abs(log(self.value)), half_widths[::-1], np.log(_LEVELS)[::-1])))


class _Subtracted(NamedTuple):
    """Sums of ratios that are subtracted, and for each figure whether it is a difference."""

    less: tuple[Floats, Floats] | None
    differences: NDArray[np.bool_]


def _errors(
    tops: Floats,
    bottoms: Floats,
    levels: Levels,
    subtracted: _Subtracted,
    uses_baseline: Sequence[bool],
    outcomes: NDArray[np.bool_],
) -> list[_Error | None]:
    """For each column; None where there is too little data."""
    prompts, figures = _codes(levels.prompt), tops.shape[1]
    if prompts.max(initial=0) + 1 < LEAST_PROMPTS:
        return [None] * figures
    value, without, influence = _left_out(tops, bottoms, prompts)
    logarithmic = (tops >= 0).all(axis=0) & (value > 0) & ~subtracted.differences
    below = _totals(bottoms, prompts)
    counted = (below != 0).sum(axis=0)
    if subtracted.less is not None:
        less, less_without, less_influence = _left_out(*subtracted.less, prompts)
        value, without, influence = value - less, without - less_without, influence - less_influence
    # Where leaving out the only prompt with a value gives 0, the logarithm has no error.
    logarithmic &= (without > 0).all(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(logarithmic, np.log(without), without)
    prompt_errors, freedoms = _standard_errors(scaled, [np.where(outcomes, below, _totals(tops, prompts)), below])
    by_prompts = (prompt_errors * np.where(logarithmic, value, 1)) ** 2
    sessions = _sessions(influence, by_prompts, levels, uses_baseline)
    crossed = _crossed(levels)
    if crossed.any() and not crossed.all():  # the same figures of what all sessions share show how sessions differ
        minus = subtracted.less and (subtracted.less[0][crossed], subtracted.less[1][crossed])
        other = None if levels.other_session is None else levels.other_session[crossed]
        part = _errors(
            tops[crossed],
            bottoms[crossed],
            Levels(levels.session[crossed], levels.prompt[crossed], other),
            subtracted._replace(less=minus),
            uses_baseline,
            outcomes,
        )
        for m, error in enumerate(part):
            if error is not None and error.sessions is not None:
                scale = value[m] / error.value if logarithmic[m] and error.logarithmic else 1.0
                sessions[m] = _Sessions(error.sessions.error * scale, error.sessions.freedom)
    return [
        _Error(float(value[m]), float(prompt_errors[m]), float(freedoms[m]), session, bool(logarithmic[m]))
        if (session := sessions[m]) is not None and counted[m] >= LEAST_PROMPTS and not np.isnan(without[:, m]).any()
        else None
        for m in range(figures)
    ]


def evened(levels: Levels) -> Floats:
    """A weight for each observation, [N], by which every prompt counts alike, however many sessions have it.

    A session that was interrupted has only the first prompts, which are no sample of all. 1 where all have all.
    """
    sessions, prompts = _codes(levels.session), _codes(levels.prompt)
    width = int(prompts.max(initial=0)) + 1
    counts = np.bincount(np.unique(sessions * width + prompts) % width, minlength=width)
    return np.asarray(counts.max() / counts[prompts])


def _crossed(levels: Levels) -> NDArray[np.bool_]:
    """Which observations, [N], tell how sessions differ: as many sessions and prompts as possible, all with all.

    A prompt that a session lacks is no difference between the two. None where no LEAST_PROMPTS prompts are shared.
    """
    sessions, prompts = _codes(levels.session), _codes(levels.prompt)
    there = np.zeros((int(sessions.max()) + 1, int(prompts.max()) + 1), dtype=np.bool_)
    there[sessions, prompts] = True
    if there.all():
        return np.ones(len(sessions), dtype=np.bool_)
    longest = np.argsort(-there.sum(axis=1), kind="stable")
    shared = np.logical_and.accumulate(there[longest], axis=0)  # by the first session, the first two, and so on
    counts = shared.sum(axis=1)
    sizes = np.where(counts >= LEAST_PROMPTS, counts * np.arange(1, len(counts) + 1), 0)
    sizes[0] = 0
    best = int(sizes.argmax())
    return np.asarray(np.isin(sessions, longest[: best + 1]) & shared[best][prompts] & (sizes[best] > 0))


def _left_out(tops: Floats, bottoms: Floats, prompts: Ints) -> tuple[Floats, Floats, Floats]:
    """Ratios of sums [M], those without each prompt [P, M], and each observation's first-order contribution to the
    ratio's error [N, M]."""
    above, below = tops.sum(axis=0), bottoms.sum(axis=0)
    ratios = _ratios(above, below)
    without = _ratios(above - _totals(tops, prompts), below - _totals(bottoms, prompts))
    return ratios, without, _ratios(tops - ratios * bottoms, np.broadcast_to(below, tops.shape))


def _standard_errors(without: Floats, sums: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Standard errors [M] and their degrees of freedom [M], from figures without each prompt [P, M].

    `sums`, [P, M] each, have what each prompt adds to the sums of the figure. The weight w of a prompt is its mean
    share of them. So n = 1 / sum w^2 prompts matter (Kish: Survey Sampling, 1965). Two variances are averaged:

    * the jackknife's, n times. It is right for many prompts, and too small for few without one of the rare long ones;
    * the weighted variance of the errors relative to the weights, divided by n - 1, _EQUAL times. It is right where
      these relative errors are equally large, and short prompts then show how far the long ones may be off.

    Equal weights make both the variance of a mean, with P - 1 degrees of freedom.
    """
    count = len(without)
    errors = (without - without.mean(axis=0)) * (count - 1) / count
    jackknife = count / (count - 1) * (errors**2).sum(axis=0)
    weights = sum(_shares(np.abs(each)) for each in sums)
    shares = _shares(np.asarray(weights))
    matter = 1 / (shares**2).sum(axis=0)
    freedoms = np.maximum(matter - 1, 1.0)
    relative = np.divide(errors**2, shares, out=np.zeros_like(errors), where=shares > 0).sum(axis=0) / freedoms
    return np.sqrt((matter * jackknife + _EQUAL * relative) / (matter + _EQUAL)), freedoms


def _shares(amounts: Floats) -> Floats:
    """Of each column's sum; equal ones where it is 0."""
    whole = np.broadcast_to(amounts.sum(axis=0), amounts.shape)
    return np.asarray(np.divide(amounts, whole, out=np.full_like(amounts, 1 / len(amounts)), where=whole > 0))


@lru_cache(maxsize=64)
def _critical(freedom: float) -> Floats:
    """`critical` at each of _LEVELS, [400]."""
    return np.asarray(-stdtrit(freedom, _LEVELS / 2))


def _sessions(
    influence: Floats, by_prompts: Floats, levels: Levels, uses_baseline: Sequence[bool]
) -> list[_Sessions | None]:
    """For each figure, whose variances by prompts are known; None where sessions are part of its error and the size of
    that part is unknown."""
    together = _within(influence, by_prompts, _codes(levels.session), _codes(levels.prompt))
    if levels.other_session is None:
        return list(together)
    ours, theirs = _codes(levels.session), _codes(levels.other_session)
    freedom = int(ours.max()) + int(theirs.max())
    apart = _apart(influence, ours, theirs) if freedom else None
    return [
        own if not compared else None if apart is None else _Sessions(float(apart[m]), freedom)
        for m, (own, compared) in enumerate(zip(together, uses_baseline, strict=True))
    ]


def _within(influence: Floats, by_prompts: Floats, sessions: Ints, prompts: Ints) -> list[_Sessions]:
    """Sessions crossed with prompts: the variance between sessions, less most of what the noise within explains.

    None of it where a session lacks prompts, which are no difference between sessions.
    """
    s, p = int(sessions.max()) + 1, int(prompts.max()) + 1
    numbers = sessions * p + prompts
    if s < 2 or len(np.unique(numbers)) < s * p:
        return [_Sessions(0.0, 1)] * influence.shape[1]
    cells = _totals(influence, numbers, s * p).reshape(s, p, -1)
    by_session, by_prompt = cells.sum(axis=1), cells.sum(axis=0)
    noise = cells - by_session[:, None] / p - by_prompt[None] / s
    spread = s / (s - 1) * (by_session**2).sum(axis=0)
    explained = s * p / ((s - 1) * (p - 1)) * (noise**2).sum(axis=(0, 1))
    whole = by_prompts + explained
    shares = _NOISE_SHARE * np.divide(by_prompts, whole, out=np.zeros_like(whole), where=whole > 0)
    return [_Sessions(sqrt(more), s - 1) for more in np.maximum(spread - shares * explained, 0)]


def _apart(influence: Floats, ours: Ints, theirs: Ints) -> Floats:
    """The standard error [M] from sessions of the method and sessions of the baseline that are not the same ones.

    We assume that both vary by the same share, since they ran on the same machine. Several sessions of one then show
    how far off a single session of the other may be.
    """
    shifts = [(n := int(codes.max()) + 1) * _totals(influence, codes, n) for codes in (ours, theirs)]
    counts = [len(shift) for shift in shifts]
    variance = sum((shift**2).sum(axis=0) for shift in shifts) / (sum(counts) - 2)
    return np.asarray(np.sqrt(variance * sum(1 / count for count in counts)))


def _totals(values: Floats, codes: Ints, count: int = 0) -> Floats:
    """Sums of `values` [N, M] by code, [codes, M]."""
    count = count or int(codes.max()) + 1
    return np.column_stack([np.bincount(codes, values[:, m], count) for m in range(values.shape[1])])


def _codes(labels: Ints) -> Ints:
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _ratios(above: Floats, below: Floats) -> Floats:
    """Elementwise; NaN where `below` is 0."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)
