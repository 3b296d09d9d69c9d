"""A comparison with the overlap of texts added to it, which takes too long to be in every one."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from benchctl.analysis.frame.build import pair
from benchctl.analysis.frame.comparison import POOLED, Group, MethodFigures, SuiteFigures, estimates
from benchctl.analysis.metrics.faithfulness import OVERLAP_METRICS


def with_overlap(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The same figures, and ROUGE-L and chrF to the baseline's answer for every method but the baseline.

    Raises ValueError for a comparison that was made without `texts`.
    """
    if any(bool(group.frame["text"].isna().any()) for group in groups):
        raise ValueError("answers overlap in their texts: compare them with texts=True")
    return tuple(_group_with_overlap(group, group.frame) for group in groups)


def _group_with_overlap(group: Group, frame: pd.DataFrame) -> Group:
    return replace(group, suites=tuple(_suite_with_overlap(group.run.baseline, suite, frame) for suite in group.suites))


def _suite_with_overlap(baseline: str, suite: SuiteFigures, frame: pd.DataFrame) -> SuiteFigures:
    answers = frame if suite.suite == POOLED else frame[frame["suite"] == suite.suite]

    def added(method: MethodFigures) -> MethodFigures:
        if method.is_baseline:
            return method
        found = estimates(pair(answers, method.label, baseline), OVERLAP_METRICS)
        return replace(method, estimates=(*method.estimates, *found))

    return replace(suite, methods=tuple(map(added, suite.methods)))
