"""Judges' scores as figures: what each judge says of each method's answers, and how judges agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from benchctl.analysis.judges.agreement import Agreement, agreements, deviation, prompts_needed
from benchctl.analysis.judges.judgements import PAIRED, Judge, Judged, judged
from benchctl.analysis.metrics.metric import Column, Metric, column, ones
from benchctl.analysis.stats.bootstrap import Floats, bootstrap_of
from benchctl.analysis.stats.estimates import Estimate, estimates, levels
from benchctl.records.scores import Score, once, read_scores, scores_path
from benchctl.records.writer import RunFile

MARGIN = 0.1  # points of 10: two methods that differ by less count as equal
FEWEST_PROMPTS = 10  # that can represent a suite


def _where(condition: Callable[[pd.DataFrame], pd.Series]) -> Column:
    """1 for the pairs that meet the condition, 0 for the others."""
    return lambda pairs: condition(pairs).astype(float)


def _length_sign(pairs: pd.DataFrame) -> pd.Series:
    """1 where the method's answer is longer, -1 where it is shorter, 0 where lengths are equal or unknown."""
    difference = _length_difference(pairs)
    return (difference > 0).astype(float) - (difference < 0).astype(float)


def _length_difference(pairs: pd.DataFrame) -> pd.Series:
    return pairs["length"].astype(float) - pairs["baseline_length"].astype(float)


SCORE = Metric("score", "judge's score", "points", "higher", column("score"), ones)
SCORE_DIFFERENCE = Metric(
    "score_difference", "judge's score, difference to the baseline", "points", "higher", column("difference"), ones
)
WIN = Metric("win", "answers judged better", "share", "higher", _where(lambda pairs: pairs["verdict"] > 0), ones)
TIE = Metric("tie", "answers judged equal", "share", "higher", _where(lambda pairs: pairs["verdict"] == 0), ones)
LOSS = Metric("loss", "answers judged worse", "share", "lower", _where(lambda pairs: pairs["verdict"] < 0), ones)
# One half for a judge without position bias, whatever the answers: each pair is judged in both orders.
FIRST_WINS = Metric(
    "first_wins",
    "judgements with a winner that stood first",
    "share",
    "lower",
    column("first_won"),
    column("decided"),
)
CONSISTENCY = Metric(
    "consistency",
    "pairs judged alike in both orders",
    "share",
    "higher",
    column("consistent"),
    _where(lambda pairs: pairs["orders"] == 2),
)
# One half for a judge without length bias, where longer answers are neither better nor worse.
LONGER_WINS = Metric(
    "longer_wins",
    "wins and losses in which the longer answer won",
    "share",
    "lower",
    _where(lambda pairs: pairs["verdict"] * _length_sign(pairs) > 0),
    _where(lambda pairs: pairs["verdict"] * _length_sign(pairs) != 0),
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
    """All judge metrics over whole `pairs` of one method and judge."""
    return (*estimates(by_prompt(pairs), JUDGE_METRICS), length_correlation(pairs))


def by_prompt(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the columns that `levels` needs: prompts to draw, and no sessions or batches."""
    return pairs.assign(file=0, session=0, file_baseline=0, session_baseline=0, batch=pairs["prompt_id"])


def length_correlation(pairs: pd.DataFrame) -> Estimate:
    """Spearman's correlation of score and length differences: does a longer answer score higher?

    Ranks are kept while prompts are drawn. None where lengths are unknown, or where either does not vary.
    """
    known = pairs[_length_difference(pairs).notna() & ~pairs["identical"].astype(bool)]
    if len(known) < 2:
        return Estimate(LENGTH_CORRELATION, None, None)
    x, y = (values.rank().to_numpy(float) for values in (_length_difference(known), known["difference"].astype(float)))
    x, y = x - x.mean(), y - y.mean()
    moments = np.column_stack([np.ones_like(x), x, y, x * x, y * y, x * y])
    value = float(correlation(moments.sum(axis=0, keepdims=True))[0])
    if np.isnan(value):
        return Estimate(LENGTH_CORRELATION, None, None)
    return Estimate(LENGTH_CORRELATION, value, bootstrap_of(correlation, moments, levels(by_prompt(known)).prompt))


def correlation(moments: Floats) -> Floats:
    """Pearson's correlation, [R], from sums of 1, x, y, x x, y y and x y, [R, 6]; NaN where x or y does not vary."""
    count, x, y, xx, yy, xy = moments.T
    spread = np.sqrt(np.maximum((count * xx - x * x) * (count * yy - y * y), 0.0))
    return np.asarray(np.divide(count * xy - x * y, spread, out=np.full_like(xy, np.nan), where=spread > 1e-9))


@dataclass(frozen=True)
class JudgedFigures:
    """What one judge says of one method's answers, on one suite or all of them.

    The estimates rest on `pairs` of answers, of `prompts` and their `turns`; in `identical` pairs the answer equals the
    baseline's. Of `asked` judgements `unreadable` could not be read, so `incomplete` pairs have no verdict, and of
    `asked_prompts` perhaps not all count. `by_turn` has the mean score of each turn, for answers judged alone. An
    interval of plus and minus MARGIN takes about `prompts_needed` prompts (None where scores are no points, or nothing
    differs).
    """

    judge: Judge
    pairs: int
    prompts: int
    turns: int
    asked_prompts: int
    identical: int
    incomplete: int
    asked: int
    unreadable: int
    by_turn: tuple[float, ...]
    prompts_needed: int | None
    estimates: tuple[Estimate, ...]

    def estimate(self, metric: Metric) -> Estimate:
        return next(estimate for estimate in self.estimates if estimate.metric == metric)

    def worse_by_at_most(self, margin: float) -> bool:
        """Whether the method is shown, at 2.5%, to be worse by at most so many points."""
        interval = self.estimate(SCORE_DIFFERENCE).interval
        return interval is not None and interval.low >= -margin

    @property
    def within(self) -> bool | None:
        """Whether the method is equivalent to the baseline up to MARGIN: True, False, or None where that is open.

        True if its interval lies inside the margin, False if outside: a test of equivalence at 2.5% on either side
        (Schuirmann: A comparison of the two one-sided tests procedure, 1987). Fewer than 10 prompts leave it open: two
        prompts that tie have an interval without width.
        """
        interval = self.estimate(SCORE_DIFFERENCE).interval
        if interval is None or not self.judge.in_points or self.prompts < FEWEST_PROMPTS:
            return None
        if interval.low >= -MARGIN and interval.high <= MARGIN:
            return True
        return False if interval.high < -MARGIN or interval.low > MARGIN else None


@dataclass(frozen=True)
class Judging:
    """The judgements of a group of files: `scores` of each file, `agreements`, `notices` about score files."""

    judged: Judged
    agreements: tuple[Agreement, ...]
    notices: tuple[str, ...]
    scores: tuple[tuple[Score, ...], ...]

    @property
    def judges(self) -> tuple[Judge, ...]:
        return self.judged.judges

    @property
    def one_order(self) -> tuple[Judge, ...]:
        """The judges that saw each pair in one order only."""
        return tuple(judge for judge in self.judges if len(self.judged.orders.get(judge.name, ())) == 1)

    def figures(self, label: str, suite: str | None) -> tuple[JudgedFigures, ...]:
        """What each judge says of a method's answers on a suite, or on all suites (None)."""
        pairs = self.judged.pairs
        own = pairs[(pairs["label"] == label) & ((pairs["suite"] == suite) if suite is not None else True)]
        by_judge = ((judge, own[own["judge"] == judge.name]) for judge in self.judges)
        return tuple(_figures(judge, of_judge) for judge, of_judge in by_judge if len(of_judge))


def judging(files: Sequence[RunFile], more: Sequence[Sequence[Score]]) -> Judging | None:
    """The judgements in the scores file next to each results file, and `more` of each file; None without any.

    Raises UserError for a scores file that cannot be read, InvalidData for one with impossible values.
    """
    stored = [read_scores(path) if (path := scores_path(file.path)).exists() else None for file in files]
    scores = [once((*(own.scores if own else ()), *added)) for own, added in zip(stored, more, strict=True)]
    if not any(scores):
        return None
    pairs = judged(files, scores)
    notices = tuple(notice for own in stored if own for notice in own.notices)
    return Judging(pairs, agreements(pairs), notices, tuple(tuple(each) for each in scores))


def _figures(judge: Judge, pairs: pd.DataFrame) -> JudgedFigures:
    whole = pairs[pairs["whole"].astype(bool)]
    varies = deviation(whole) if len(whole) else None
    return JudgedFigures(
        judge=judge,
        pairs=len(whole),
        prompts=_prompts(whole),
        turns=len(whole.groupby(["suite", "prompt_id", "turn"])),
        asked_prompts=_prompts(pairs),
        identical=int(whole["identical"].sum()),
        incomplete=len(pairs) - len(whole),
        asked=int(pairs["asked"].sum()),
        unreadable=int(pairs["unreadable"].sum()),
        by_turn=tuple(whole.groupby("turn")["score"].mean()) if judge.protocol not in PAIRED else (),
        prompts_needed=prompts_needed(varies, MARGIN) if varies and judge.in_points else None,
        estimates=judge_estimates(whole),
    )


def _prompts(pairs: pd.DataFrame) -> int:
    return len(pairs.groupby(["suite", "prompt_id"]))
