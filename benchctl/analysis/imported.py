"""What is known of imported answers, and what is not (see benchctl.importing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchctl.records import UNKNOWN_TARGET

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group


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
