"""What `benchctl compare` holds a comparison to, and says on stderr of what it finds: stdout is the tables' alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.analysis.gates import Requirement

FAILED = 1


def check_comparable(groups: Sequence[Group]) -> None:
    """Raises UserError, naming what differs, unless all files may be compared with each other."""
    if len(groups) > 1:
        differing = [
            f"{group.files[0].path} in {', '.join(one.field for one in group.differs)}" for group in groups[1:]
        ]
        raise UserError(
            f"not all files can be compared: {'; '.join(differing)}, from {groups[0].files[0].path}. They are shown as "
            f"{len(groups)} groups; name only files of one."
        )


def missed(group: Group, required: Requirement | None) -> list[str]:
    """What breaks a requirement, said as well."""
    from benchctl.analysis.gates import unmet, unsupported

    if not required:
        return []
    for notice in unsupported(group):
        click.echo(f"Note: {notice}", err=True)
    problems = list(unmet(group, required))
    for problem in problems:
        click.echo(f"FAIL: {problem}", err=True)
    return problems


def regressions(group: Group, earlier: Sequence[Group], least: float | None, floor: float) -> list[str]:
    """The methods that became slower beyond chance and `floor`, to less than `least`; of all it is said what became.

    Raises UserError where the earlier run cannot be compared with this one.
    """
    from benchctl.analysis.gates import kept, told
    from benchctl.analysis.sessions import count

    if least is None:
        return []
    check_comparable(earlier)
    found = kept(group, earlier[0])
    for line in told(found, least, floor):
        click.echo(line, err=True)
    if min(count(group), count(earlier[0])) == 1:
        click.echo(
            "Note: one of these was measured in one session, so what of a change is the difference between sessions "
            "cannot be told: --sessions 3 for both would tell, or --floor.",
            err=True,
        )
    return [one.label for one in found if one.slower(least, floor)]
