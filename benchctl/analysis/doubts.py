"""Cautions about the conditions a group was measured under: what was left out for them, what disturbed all of it."""

from __future__ import annotations

from collections.abc import Iterator

from benchctl.analysis.comparison import Group
from benchctl.analysis.frame import CONDITION

_MOST_WAITED = 0.05  # of the time ready to run, but without a core: from here on figures are partly others' doing


def left_out(group: Group) -> Iterator[str]:
    """Generations measured out of bounds, by label, as failed ones are told of."""
    doubted = group.frame[group.frame["invalid"] != ""]
    for label, rows in doubted.groupby("label", sort=False):
        first = rows.iloc[0]
        what = "generation was" if len(rows) == 1 else "generations were"
        yield (
            f"{len(rows)} {what} left out of the figures of {label}, measured out of bounds, the first on "
            f"{first['suite']}/{first['prompt_id']}: {first['invalid']}. Free the machine and run again."
        )


def disturbed(group: Group) -> Iterator[str]:
    """A load that lasted all the time is usual to its session, and marks nothing."""
    column = CONDITION + "waited_share"
    if column not in group.frame:
        return
    for number, file in enumerate(group.files):
        waited = group.frame.loc[group.frame["file"] == number, column].median()
        if waited > _MOST_WAITED:
            yield (
                f"{file.path}: half of its generations waited {waited:.0%} of the time or more for a core that others "
                "used: their times are partly those of the waiting. Stop other work and measure again."
            )
