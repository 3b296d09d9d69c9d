"""Which methods a picture is of."""

from collections.abc import Sequence

from benchctl.analysis.comparison import Group
from benchctl.errors import UserError


def chosen(groups: Sequence[Group], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels that `groups` have measured, each once, baselines first; of these the `wanted` ones, each a label or
    the name of a method for all its labels, in the order in which they are wanted.

    Raises UserError for one that nothing was measured of.
    """
    labels = list(dict.fromkeys(method.label for group in groups for method in group.pooled.methods))
    found: dict[str, None] = {}
    for name in wanted:
        alike = [label for label in labels if name in (label, label.partition("[")[0])]
        if not alike:
            raise UserError(f"--method {name}: was not measured here. These were: {' '.join(labels)}.")
        found |= dict.fromkeys(alike)
    return tuple(found or labels)


def check_count(labels: Sequence[str], most: int, what: str) -> None:
    """Raises UserError for more methods than a picture has room for; `what` says which they are."""
    if len(labels) > most:
        raise UserError(
            f"{len(labels)} {what} are too many for one picture of this size, which has room for {most}: choose with "
            f"--method, of {' '.join(labels[:most])} and {len(labels) - most} more."
        )
