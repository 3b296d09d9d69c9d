"""Comparisons with what judges say of their answers: figures of each method by judge, and how judges agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import pandas as pd

from benchctl.analysis.frame.comparison import POOLED, Estimate, Group, MethodFigures, SuiteFigures, estimates, levels
from benchctl.analysis.judges.agreement import Agreement, agreements
from benchctl.analysis.judges.judgements import PAIRED, Judge, Judged, LeftOut, judged, share_out
from benchctl.analysis.judges.power import prompts_needed, spread
from benchctl.analysis.metrics.metric import Column, Metric, ones
from benchctl.analysis.stats.bootstrap import Floats, bootstrap_of
from benchctl.records.scores import Score, once, read_scores, scores_path
from benchctl.records.writer import RunFile


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


MARGIN = 0.1  # points of 10 that two methods may differ by and be called equal
FEWEST_PROMPTS = 10  # that can stand for a suite, as everywhere (analysis.cautions)


@dataclass(frozen=True)
class JudgedFigures:
    """What one judge says of one method's answers, on one suite or all of them.

    Its estimates rest on `pairs` of answers, of `prompts` and their `turns`; `identical` of them are the baseline's own
    text. Of the judgements `asked` for, `unreadable` could not be read, so that `incomplete` pairs have no verdict, and
    of `asked_prompts` perhaps not all count. `by_turn` has the mean score of each turn, of answers judged alone. An
    interval of plus and minus `margin` takes about `prompts_needed` (None where scores are no points, or nothing
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
    margin: float
    prompts_needed: int | None
    estimates: tuple[Estimate, ...]

    def estimate(self, metric: Metric) -> Estimate:
        return next(estimate for estimate in self.estimates if estimate.metric == metric)

    def worse_by_at_most(self, margin: float) -> bool:
        """Whether the method is shown, at 2.5%, to be worse by so many points at most."""
        interval = self.estimate(SCORE_DIFFERENCE).interval
        return interval is not None and interval.low >= -margin

    @property
    def within(self) -> bool | None:
        """Whether the method is as good as the baseline but for the margin: its interval lies inside it (True), outside
        it (False), or neither (None). That is a test of equivalence at 2.5% on either side (Schuirmann: A comparison of
        the two one-sided tests procedure, 1987). Fewer than 10 prompts show nothing: two that tie have an interval
        without width."""
        interval = self.estimate(SCORE_DIFFERENCE).interval
        if interval is None or not self.judge.in_points or self.prompts < FEWEST_PROMPTS:
            return None
        if -self.margin <= interval.low and interval.high <= self.margin:
            return True
        return False if interval.high < -self.margin or interval.low > self.margin else None


@dataclass(frozen=True)
class Judging:
    """What is known of the judges of a group, beside their figures of methods; `scores` are those of each file."""

    judges: tuple[Judge, ...]
    agreements: tuple[Agreement, ...]
    left_out: LeftOut
    notices: tuple[str, ...]
    one_order: tuple[Judge, ...]
    changed_templates: tuple[str, ...]
    mixed_templates: tuple[Judge, ...]
    scores: tuple[tuple[Score, ...], ...]


def with_judgements(groups: Sequence[Group], more: Sequence[Score] = (), margin: float = MARGIN) -> tuple[Group, ...]:
    """The same figures, and those of the scores beside each results file and among `more`, which may be of any of them;
    without any, as they were.

    Raises UserError for a scores file that cannot be read, InvalidData for one that holds what cannot be true.
    """
    shared = iter(share_out([file for group in groups for file in group.files], more))
    return tuple(_with_judgements(group, [next(shared) for _ in group.files], margin) for group in groups)


def _with_judgements(group: Group, more: Sequence[Sequence[Score]], margin: float) -> Group:
    beside = [_beside(file) for file in group.files]
    scores = [once((*scores, *added)) for (scores, _), added in zip(beside, more, strict=True)]
    if not any(scores):
        return group
    found = judged(group.files, scores)
    notices = tuple(notice for _, notices in beside for notice in notices)
    return replace(
        group,
        suites=tuple(_suite(suite, found, margin) for suite in group.suites),
        judging=Judging(
            judges=found.judges,
            agreements=agreements(found),
            left_out=found.left_out,
            notices=notices,
            one_order=tuple(judge for judge in found.judges if len(found.orders.get(judge.name, ())) == 1),
            changed_templates=tuple(name for (_, name), hashes in found.templates.items() if len(hashes) > 1),
            mixed_templates=tuple(judge for judge in found.judges if judge.name in found.mixed),
            scores=tuple(scores),
        ),
    )


def _beside(file: RunFile) -> tuple[Sequence[Score], tuple[str, ...]]:
    path = scores_path(file.path)
    if not path.exists():
        return (), ()
    found = read_scores(path)
    return found.scores, found.notices


def _suite(suite: SuiteFigures, found: Judged, margin: float) -> SuiteFigures:
    pairs = found.pairs if suite.suite == POOLED else found.pairs[found.pairs["suite"] == suite.suite]

    def added(method: MethodFigures) -> MethodFigures:
        own = pairs[pairs["label"] == method.label]
        by_judge = ((judge, own[own["judge"] == judge.name]) for judge in found.judges)
        return replace(method, judged=tuple(_figures(judge, each, margin) for judge, each in by_judge if len(each)))

    return replace(suite, methods=tuple(map(added, suite.methods)))


def _figures(judge: Judge, pairs: pd.DataFrame, margin: float) -> JudgedFigures:
    whole = pairs[pairs["whole"].astype(bool)]
    varies = spread(whole) if len(whole) else None
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
        margin=margin,
        prompts_needed=prompts_needed(varies, margin) if varies and judge.in_points else None,
        estimates=judge_estimates(whole),
    )


def _prompts(pairs: pd.DataFrame) -> int:
    return len(pairs.groupby(["suite", "prompt_id"]))
