"""What is known of imported answers, and what is not (see benchctl.importing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from benchctl.analysis.frame import COUNTER
from benchctl.analysis.metrics import Metric
from benchctl.records import UNKNOWN_TARGET

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group

_SCORE, _JUDGED = COUNTER + "judge_score", COUNTER + "judged"


def has_scores(frame: pd.DataFrame) -> bool:
    """Whether a judge's scores came with any of the answers."""
    return _JUDGED in frame


def _amounts(name: str, pairs: pd.DataFrame) -> pd.Series:
    return pairs[name].astype(float).fillna(0.0)


# As FastChat reports it: the mean over turns of the scores of single answers that could be read.
JUDGE_SCORE = Metric(
    "judge_score",
    "judge's score, 1 to 10",
    "points",
    "higher",
    lambda pairs: _amounts(_SCORE, pairs),
    lambda pairs: _amounts(_JUDGED, pairs),
)


def imported(group: Group) -> Iterator[str]:
    """The cautions that stand beside imported figures."""
    if group.run.imported:
        yield (
            f"imported from files of {group.run.imported}, which hold no token ids: tokens and steps are as those "
            "programs counted them, perhaps past the stop token, there are no verdicts, and machine, warm-up and order "
            "are unknown. To publish a figure, measure it with `benchctl run`."
        )
        if group.run.target.name.startswith(UNKNOWN_TARGET):
            yield (
                "the target is unknown, so nothing tells whether these answers are of one and the same: name it with "
                "`benchctl import --target`, one import for each target."
            )
