"""What `benchctl compare` holds a comparison to, and says on stderr of what it finds: stdout is the tables' alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.analysis.gates import Gates, Requirement

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


def held(
    groups: Sequence[Group],
    required: Requirement | None,
    earlier: Sequence[Group],
    least: float | None,
    floor: float,
    quality: float | None,
) -> Gates | UserError | None:
    """What became of what the first group is held to, None where nothing was asked for; or why it cannot be said, to be
    raised when the tables are shown."""
    from benchctl.analysis.gates import hold

    try:
        check_comparable(groups)
        if earlier:
            check_comparable(earlier)
        asked = required or earlier or quality is not None
        return hold(groups[0], required, earlier[0] if earlier else None, least, floor, quality) if asked else None
    except UserError as problem:
        return problem


def tell(gates: Gates, group: Group, earlier: Sequence[Group]) -> None:
    """All of it, on stderr."""
    from benchctl.analysis.gates import told
    from benchctl.analysis.sessions import count

    for notice in gates.unsupported:
        click.echo(f"Note: {notice}", err=True)
    for problem in gates.unmet:
        click.echo(f"FAIL: {problem}", err=True)
    if gates.least is None:
        return
    for line in told(gates.kept, gates.least, gates.floor):
        click.echo(line, err=True)
    if min(count(group), count(earlier[0])) == 1:
        click.echo(
            "Note: one of these was measured in one session, so what of a change is the difference between sessions "
            "cannot be told: --sessions 3 for both would tell, or --floor.",
            err=True,
        )
