"""Judges' scores as figures: results for each method, agreement of judges, and how many prompts a difference needs.

Published judgements of GPT-4 (FasterDecoding/Medusa, llm_judge: 80 prompts of MT-Bench, two turns, three models) have a
standard deviation of 3.0 to 3.2 points from prompt to prompt; differences of two models on the same prompts one of 0.84
to 1.25. So 80 prompts give one method's mean score within 0.68. 730 prompts give a paired difference within 0.06 to
0.09.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, count
from math import ceil, sqrt

import numpy as np
import pandas as pd
from scipy.special import ndtri

from benchctl.analysis.judges.judgements import PAIRED, Judge, Judged, judged
from benchctl.analysis.metrics.metric import Better, Column, Metric, column, ones, zeros
from benchctl.analysis.stats.estimates import Estimate, estimates
from benchctl.analysis.stats.intervals import LEVEL, Floats, Interval, critical, interval_of
from benchctl.records.scores import Score, once, read_scores, scores_path
from benchctl.records.writer import RunFile

_PAIR = ["file", "suite", "prompt_id", "turn", "label", "repeat", "session"]
_FEWEST = 2  # prompts: one has no standard deviation
_MANY = 10**5  # from here on Student's t is as good as normal


@dataclass(frozen=True)
class Agreement:
    """Two judges on the same `pairs` of answers, of `prompts`. `alike` is the share of equal verdicts (win, tie, loss).

    `kappa` is Cohen's; None where both judges give the same single verdict to every pair.
    """

    first: Judge
    second: Judge
    pairs: int
    prompts: int
    alike: float
    kappa: float | None
    interval: Interval | None


def agreements(judged: Judged) -> tuple[Agreement, ...]:
    """Of each two judges with pairs in common. Identical answers do not count: no judge is asked about them."""
    pairs = judged.pairs[judged.pairs["whole"].astype(bool) & ~judged.pairs["identical"].astype(bool)]
    by_judge = {judge: pairs[pairs["judge"] == judge.name] for judge in judged.judges}
    found = []
    for first, second in combinations(judged.judges, 2):
        both = by_judge[first].merge(by_judge[second], on=_PAIR, suffixes=("", "_second"))
        if both.empty:
            continue
        cells = 3 * (both["verdict"].to_numpy(int) + 1) + both["verdict_second"].to_numpy(int) + 1
        counts = np.eye(9)[cells]
        value = float(kappa(counts.sum(axis=0, keepdims=True))[0])
        prompts = both.groupby(["suite", "prompt_id"]).ngroup().to_numpy().astype(np.int64)
        known = not np.isnan(value)
        found.append(
            Agreement(
                first=first,
                second=second,
                pairs=len(both),
                prompts=len(np.unique(prompts)),
                alike=float((cells % 4 == 0).mean()),
                kappa=value if known else None,
                interval=interval_of(kappa, counts, prompts) if known else None,
            )
        )
    return tuple(found)


def kappa(tables: Floats) -> Floats:
    """Cohen's kappa of tables of counts: [R, C * C], with C entries for each category of the first judge, -> [R].

    Cohen: A Coefficient of Agreement for Nominal Scales, 1960. NaN where both always give the same one verdict.

    >>> kappa(np.array([[20.0, 5.0, 10.0, 15.0]]))
    array([0.4])
    """
    size = round(tables.shape[1] ** 0.5)
    joint = tables.reshape(-1, size, size) / tables.sum(axis=1)[:, None, None]
    alike = np.trace(joint, axis1=1, axis2=2)
    chance = (joint.sum(axis=1) * joint.sum(axis=2)).sum(axis=1)
    return np.asarray(np.divide(alike - chance, 1 - chance, out=np.full_like(alike, np.nan), where=chance < 1 - 1e-12))


def deviation(pairs: pd.DataFrame) -> float | None:
    """The standard deviation of the differences in score from prompt to prompt; None with fewer than two prompts.

    Where prompts have different numbers of pairs, it is that of each prompt's contribution to the mean of all pairs.
    """
    differences = pairs["difference"].astype(float)
    contributions = (differences - differences.mean()).groupby([pairs["suite"], pairs["prompt_id"]]).sum()
    prompts = len(contributions)
    if prompts < _FEWEST:
        return None
    return float(np.sqrt((contributions**2).sum() / (prompts - 1))) * prompts / len(pairs)


def margin(deviation: float, prompts: int) -> float:
    """Half of the 95% interval of a mean over `prompts` (at least two) with this standard deviation.

    >>> round(margin(3.05, 80), 2), round(margin(0.84, 730), 2), round(margin(1.25, 730), 2)
    (0.68, 0.06, 0.09)
    """
    return critical(LEVEL, prompts - 1) * deviation / sqrt(prompts)


def prompts_needed(deviation: float, wanted: float) -> int:
    """The fewest prompts whose margin is `wanted` (above 0) or less.

    >>> prompts_needed(1.0, 0.1)
    387
    """
    # Student's t is wider than normal, so the normal count is a lower bound.
    few = max(_FEWEST, ceil((float(-ndtri(LEVEL / 2)) * deviation / wanted) ** 2))
    return few if few > _MANY else next(prompts for prompts in count(few) if margin(deviation, prompts) <= wanted)


MARGIN = 0.1  # points of 10: two methods that differ by less count as equal
FEWEST_PROMPTS = 10  # that can represent a suite


def _where(condition: Callable[[pd.DataFrame], pd.Series]) -> Column:
    """1 for the pairs that meet the condition, 0 for the others."""
    return lambda pairs: condition(pairs).astype(float)


def _length_difference(pairs: pd.DataFrame) -> pd.Series:
    """Above 0 where the method's answer is longer; missing where lengths are unknown."""
    return pairs["length"].astype(float) - pairs["baseline_length"].astype(float)


def _longer_won(pairs: pd.DataFrame) -> pd.Series:
    """1 where the longer answer won, -1 where it lost, 0 where lengths or verdicts are equal or unknown."""
    signs: pd.Series = np.sign(_length_difference(pairs)).fillna(0.0)
    return signs * pairs["verdict"].astype(float)


SCORE = Metric("score", "judge's score", "points", "higher", column("score"), ones)
SCORE_DIFFERENCE = Metric(
    "score_difference",
    "judge's score, difference to the baseline",
    "points",
    "higher",
    column("difference"),
    ones,
    less=(zeros, ones),
)


def _share(name: str, label: str, better: Better, counted: Column, of: Column = ones) -> Metric:
    return Metric(name, label, "share", better, counted, of, of_answers=True)


WIN = _share("win", "answers judged better", "higher", _where(lambda pairs: pairs["verdict"] > 0))
TIE = _share("tie", "answers judged equal", "higher", _where(lambda pairs: pairs["verdict"] == 0))
LOSS = _share("loss", "answers judged worse", "lower", _where(lambda pairs: pairs["verdict"] < 0))
# One half for a judge without position bias, whatever the answers: each pair is judged in both orders.
FIRST_WINS = _share(
    "first_wins", "judgements with a winner that stood first", "lower", column("first_won"), column("decided")
)
CONSISTENCY = _share(
    "consistency",
    "pairs judged alike in both orders",
    "higher",
    column("consistent"),
    _where(lambda pairs: pairs["orders"] == 2),
)
# One half for a judge without length bias, where longer answers are neither better nor worse.
LONGER_WINS = _share(
    "longer_wins",
    "wins and losses in which the longer answer won",
    "lower",
    _where(lambda pairs: _longer_won(pairs) > 0),
    _where(lambda pairs: _longer_won(pairs) != 0),
)
JUDGE_METRICS = (SCORE, SCORE_DIFFERENCE, WIN, TIE, LOSS, CONSISTENCY, FIRST_WINS, LONGER_WINS)


def by_prompt(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the columns that `levels` needs: prompts to draw, and no sessions or batches."""
    return pairs.assign(file=0, session=0, file_baseline=0, session_baseline=0, batch=pairs["prompt_id"])


@dataclass(frozen=True)
class JudgedFigures:
    """One judge's figures of one method's answers, on one suite or all of them.

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

    @property
    def blind(self) -> tuple[Judge, ...]:
        """The judges that give points and prefer no answer to a different one, or none in both orders."""
        pairs = self.judged.pairs
        differing = pairs[pairs["whole"].astype(bool) & ~pairs["identical"].astype(bool)]
        verdicts = {judge: differing.loc[differing["judge"] == judge.name, "verdict"] for judge in self.judges}
        return tuple(judge for judge, own in verdicts.items() if judge.in_points and len(own) and not own.any())

    def figures(self, label: str, suite: str | None, prompts: Set[str] | None = None) -> tuple[JudgedFigures, ...]:
        """Each judge's figures of a method's answers on a suite, or on all suites (None), or on these prompts of it."""
        pairs = self.judged.pairs
        pairs = pairs if prompts is None else pairs[pairs["prompt_id"].isin(prompts)]
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
        estimates=estimates(by_prompt(whole), JUDGE_METRICS),
    )


def _prompts(pairs: pd.DataFrame) -> int:
    return len(pairs.groupby(["suite", "prompt_id"]))
