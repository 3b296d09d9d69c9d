"""Cautions about answers of which something could not be found out, so that figures speak of the others alone."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from benchctl.analysis.comparison import Group
from benchctl.analysis.fidelity import last_tries
from benchctl.analysis.lines import FIDELITY


def failed_controls(group: Group) -> Iterator[str]:
    """Answers behind which a control failed, as for lack of memory; what was timed of them stands."""
    for label, rows in last_tries(group.frame, group.repeats).groupby("label", sort=False):
        count = int((_told(rows, "failed_controls") > 0).sum())
        if count:
            yield (
                f"{label}: of {count} of {len(rows)} answers the verdict, or how near they are to the target, could "
                "not be found out, and the run said why. Their times count, but no claim rests on them: measure again "
                "with more memory to spare, or a smaller --max-new-tokens."
            )


def divergence_left_out(group: Group) -> Iterator[str]:
    """Answers that the mean KL leaves out, of those whose rounds are in figures at all."""
    for label, rows in group.frame[~group.frame["round_invalid"]].groupby("label", sort=False):
        kinds = ("kl_tokens", "kl_infinite_tokens", "kl_unrepeated_tokens")
        told, infinite, unrepeated = (int(_told(rows, name).notna().sum()) for name in kinds)
        if infinite or unrepeated:
            yield (
                f"{label}: its KL is of {told} of {told + infinite + unrepeated} answers. It is infinite for "
                f"{infinite}, and {unrepeated} were not given a second time: the others may be the better ones."
            )


def _told(rows: pd.DataFrame, name: str) -> pd.Series:
    found = rows.get(FIDELITY + name)
    return pd.Series(float("nan"), index=rows.index) if found is None else found.astype(float)
