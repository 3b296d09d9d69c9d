"""Cautions about the conditions a group was measured under: what was left out for them, what disturbed all of it."""

from __future__ import annotations

from collections.abc import Iterator

from benchctl.analysis.comparison import Group
from benchctl.analysis.frame import CONDITION
from benchctl.analysis.rounds import Round

_MOST_WAITED = 0.05  # of the time ready to run, but without a core: from here on figures are partly others' doing


def left_out(group: Group) -> Iterator[str]:
    """Rounds measured out of bounds; of that which spoke against one, what the free rows tell."""
    rounds = group.frame[list(Round._fields)].drop_duplicates()
    doubted = group.frame[group.frame["round_invalid"]]
    count = len(doubted[list(Round._fields)].drop_duplicates())
    if not count:
        return
    told = doubted[doubted["invalid"] != ""]
    first = (doubted if told.empty else told).iloc[0]
    what = "round was" if count == 1 else "rounds were"
    why = f"{first['suite']}/{first['prompt_id']}: {first['invalid'] or 'see its rows of other modes'}"
    yield (
        f"{count} of {len(rounds)} {what} left out of all figures, for all methods alike, measured out of bounds, the "
        f"first on {why}. Free the machine and run again."
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
