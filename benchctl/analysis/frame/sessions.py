"""What a comparison can say of how sessions differ, and what it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchctl.analysis.frame.build import measured_apart, pair
from benchctl.analysis.metrics.metric import SPEEDUP

if TYPE_CHECKING:
    from benchctl.analysis.frame.comparison import Group


def count(group: Group) -> int:
    """How many sessions a group was measured in."""
    return len(group.frame.groupby(["file", "session"]))


def note(group: Group) -> str:
    """What the figures and their intervals are."""
    sessions = count(group)
    over = f"prompts, repeats and {sessions} sessions" if sessions > 1 else "prompts and repeats of one session"
    return (
        "Ratios of sums over the prompts that both the method and the baseline answered; "
        f"[95% interval, paired bootstrap over {over}]."
    )


def measured_apart_once(group: Group) -> Iterator[str]:
    """Where a process measured the method and another one the baseline, and no arm was measured twice."""
    apart = [
        method.label
        for method in group.pooled.methods
        if method.estimate(SPEEDUP).value is not None
        and method.estimate(SPEEDUP).interval is None
        and measured_apart(pair(group.frame, method.label, group.run.baseline))
    ]
    if apart:
        yield (
            f"{', '.join(apart)} and {group.run.baseline} were measured in one session each, and not in the same one: "
            "what of the speed-up is the difference between sessions cannot be told, so it has no interval. Several "
            "sessions of either would tell, as would `benchctl run`, which measures both in turns."
        )
