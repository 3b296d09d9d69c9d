"""Figures of judged answers, each over pairs of an answer and the baseline's (see judgements.JudgedPair).

Intervals come from drawing prompts, each with all its turns, orders, repeats, samples and sessions: a session makes
times faster or slower, but the texts of two sessions are as good as those of two repeats.
"""

from collections.abc import Callable
from math import nan

import numpy as np
import pandas as pd

from benchctl.analysis.comparison import Estimate, estimates, levels
from benchctl.analysis.metrics import Column, Metric, ones
from benchctl.analysis.stats import Floats, bootstrap_of


def _column(name: str) -> Column:
    return lambda pairs: pairs[name].astype(float)


def _where(condition: Callable[[pd.DataFrame], pd.Series]) -> Column:
    """1 for the pairs that it is true of, 0 for the others."""
    return lambda pairs: condition(pairs).astype(float)


def _lengths_differ(pairs: pd.DataFrame) -> pd.Series:
    """Unknown lengths do not."""
    longer_by = _longer_by(pairs)
    return (longer_by > 0).astype(float) - (longer_by < 0).astype(float)


def _longer_by(pairs: pd.DataFrame) -> pd.Series:
    return pairs["length"].astype(float) - pairs["baseline_length"].astype(float)


SCORE = Metric("score", "judge's score", "points", "higher", _column("score"), ones)
SCORE_DIFFERENCE = Metric(
    "score_difference", "judge's score, difference to the baseline", "points", "higher", _column("difference"), ones
)
WIN = Metric("win", "answers judged better", "share", "higher", _where(lambda pairs: pairs["verdict"] > 0), ones)
TIE = Metric("tie", "answers judged equal", "share", "higher", _where(lambda pairs: pairs["verdict"] == 0), ones)
LOSS = Metric("loss", "answers judged worse", "share", "lower", _where(lambda pairs: pairs["verdict"] < 0), ones)
# Of a judge that is blind to places one half, whatever the answers: each pair is judged in both orders.
FIRST_WINS = Metric(
    "first_wins",
    "judgements with a winner that stood first",
    "share",
    "lower",
    _column("first_won"),
    _column("decided"),
)
CONSISTENCY = Metric(
    "consistency",
    "pairs judged alike in both orders",
    "share",
    "higher",
    _column("consistent"),
    _where(lambda pairs: pairs["orders"] == 2),
)
# Of a judge that is blind to length one half, where longer answers are neither better nor worse.
LONGER_WINS = Metric(
    "longer_wins",
    "wins and losses in which the longer answer won",
    "share",
    "lower",
    _where(lambda pairs: pairs["verdict"] * _lengths_differ(pairs) > 0),
    _where(lambda pairs: pairs["verdict"] * _lengths_differ(pairs) != 0),
)
LENGTH_CORRELATION = Metric(
    "length_correlation",
    "rank correlation of the differences in score and in length",
    "correlation",
    "lower",
    lambda pairs: pd.Series(nan, index=pairs.index),  # no ratio of sums: see length_correlation
    ones,
)
JUDGE_METRICS = (SCORE, SCORE_DIFFERENCE, WIN, TIE, LOSS, CONSISTENCY, FIRST_WINS, LONGER_WINS)


def judge_estimates(pairs: pd.DataFrame) -> tuple[Estimate, ...]:
    """All of them over whole `pairs` of one method and judge."""
    return (*estimates(by_prompt(pairs), JUDGE_METRICS), length_correlation(pairs))


def by_prompt(pairs: pd.DataFrame) -> pd.DataFrame:
    """As `estimates` wants them, with prompts to draw and no sessions or batches."""
    return pairs.assign(file=0, session=0, file_baseline=0, session_baseline=0, batch=pairs["prompt_id"])


def length_correlation(pairs: pd.DataFrame) -> Estimate:
    """Spearman's, over the answers that a judge was asked about: does a longer answer score higher?

    Ranks are kept while prompts are drawn. None where lengths are unknown, or where either does not vary.
    """
    told = pairs[_longer_by(pairs).notna() & ~pairs["identical"].astype(bool)]
    if len(told) < 2:
        return Estimate(LENGTH_CORRELATION, None, None)
    x, y = (values.rank().to_numpy(float) for values in (_longer_by(told), told["difference"].astype(float)))
    x, y = x - x.mean(), y - y.mean()
    moments = np.column_stack([np.ones_like(x), x, y, x * x, y * y, x * y])
    value = float(correlation(moments.sum(axis=0, keepdims=True))[0])
    if np.isnan(value):
        return Estimate(LENGTH_CORRELATION, None, None)
    return Estimate(LENGTH_CORRELATION, value, bootstrap_of(correlation, moments, levels(by_prompt(told)).prompt))


def correlation(moments: Floats) -> Floats:
    """Pearson's, [R], from sums of 1, x, y, x x, y y and x y, [R, 6]; not a number where x or y does not vary."""
    count, x, y, xx, yy, xy = moments.T
    spread = np.sqrt(np.maximum((count * xx - x * x) * (count * yy - y * y), 0.0))
    return np.asarray(np.divide(count * xy - x * y, spread, out=np.full_like(xy, np.nan), where=spread > 1e-9))
