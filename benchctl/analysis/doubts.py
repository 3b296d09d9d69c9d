"""Cautions about the conditions a group was measured under: what was left out for them, what disturbed all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from benchctl.analysis.comparison import Group
from benchctl.analysis.lines import CONDITION
from benchctl.analysis.rounds import Round, stands_for

UNJUDGED = 8  # rounds of a session that pass until what is usual is known: measuring.validity.ENOUGH
_UNSTEADY = 0.1  # by which the slowest twentieth of equal pieces of work may take longer than the median
_MOST_WAITED = 0.05  # of the time ready to run, but without a core: from here on figures are partly others' doing

_JUDGED = (CONDITION + "waited_share", CONDITION + "foreign_cores")  # what rounds are judged by


def left_out(group: Group) -> Iterator[str]:
    """Rounds measured out of bounds, and how many of them another measurement stands in for; of that which spoke
    against one, what the free rows tell."""
    doubted = group.frame[group.frame["round_invalid"]]
    if doubted.empty:
        return
    told = doubted[doubted["invalid"] != ""]
    first = (doubted if told.empty else told).iloc[0]
    why = f"{first['suite']}/{first['prompt_id']}: {first['invalid'] or 'see its rows of other modes'}"
    planned = planned_rounds(group)
    count, good = int(planned["doubted"].sum()), int((planned["doubted"] & planned["good"]).sum())
    left = "was" if count == 1 else "were"
    again = f" {good} of them {'was' if good == 1 else 'were'} measured again, within bounds." if good else ""
    mend = "" if good == count else " Free the machine, and run again or go on with --resume."
    yield (
        f"{count} of {len(planned)} rounds {left} left out of all figures but the counts of verdicts, for all methods "
        f"alike, measured out of bounds, the first on {why}.{again}{mend}"
    )


def planned_rounds(group: Group) -> pd.DataFrame:
    """The rounds that were to be measured: whether any try of one was `doubted`, and any `good`: in bounds, with as
    many answers as any try of it has. So one that a kill cut short, or in which more failed, makes up for nothing."""
    places = list(Round._fields)
    answers = group.frame[[*places, "round_invalid"]].assign(answered=group.frame["error"].isna())
    tried = answers.groupby(places, as_index=False)
    tries = tried.agg(doubted=("round_invalid", "any"), answered=("answered", "sum"))
    tries["repeat"] = stands_for(tries["repeat"], tries["file"].map(group.repeats))
    most = tries.groupby(places)["answered"].transform("max")
    return tries.assign(good=~tries["doubted"] & (tries["answered"] == most)).groupby(places)[["doubted", "good"]].any()


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


def unsteady(group: Group) -> Iterator[str]:
    """The sentinel is the same work every time; it marks nothing, see measuring.validity."""
    column = CONDITION + "sentinel_s"
    if column not in group.frame:
        return
    longer: dict[str, float] = {}
    for number, file in enumerate(group.files):
        told_s = group.frame.loc[group.frame["file"] == number, column].dropna()
        if len(told_s) and (more := float(told_s.quantile(0.95) / told_s.median()) - 1) > _UNSTEADY:
            longer[str(file.path)] = more
    if longer:
        low, high = (f"{end:.0%}" for end in (min(longer.values()), max(longer.values())))
        yield (
            f"{', '.join(longer)}: the machine was unsteady: beside every twentieth generation equal work took "
            f"{low if low == high else f'{low} to {high}'} longer than usual, or more. `benchctl doctor` says what to "
            "mend; more --repeats help."
        )


def hardly_judged(group: Group) -> Iterator[str]:
    """Rounds that are told of, but too few to be held against each other."""
    told = group.frame[[name for name in group.frame if name in _JUDGED]].notna().any(axis=1)
    for number, file in enumerate(group.files):
        of_file = group.frame[told & (group.frame["file"] == number)]
        sessions = of_file[list(Round._fields)].drop_duplicates().groupby("session").size()
        if len(sessions) and sessions.max() <= UNJUDGED:
            yield (
                f"{file.path}: the first {UNJUDGED} rounds of a session, warm-up included, only tell what is usual, so "
                f"of its {sessions.max()} hardly any could be judged: use more prompts or --repeats."
            )
