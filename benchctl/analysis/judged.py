"""Comparisons with what judges say of their answers: figures of each method by judge, and how judges agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from benchctl.analysis.agreement import Agreement, agreements
from benchctl.analysis.comparison import POOLED, Estimate, Group, MethodFigures, SuiteFigures
from benchctl.analysis.judge_metrics import SCORE_DIFFERENCE, judge_estimates
from benchctl.analysis.judgements import Judged, judged
from benchctl.analysis.metrics import Metric
from benchctl.analysis.power import prompts_needed, spread
from benchctl.analysis.scored_answers import PAIRED, Judge, LeftOut, share_out
from benchctl.recordfile import RunFile
from benchctl.scores import Score, once, read_scores, scores_path

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
