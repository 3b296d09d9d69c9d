"""Groups of runs as the panels of a picture: all suites of a group together, or each suite alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchctl.analysis.frame.comparison import Group
from benchctl.errors import UserError
from benchctl.records.writer import RunFile


def by_suite(groups: Sequence[Group]) -> tuple[Group, ...]:
    """A group for each suite of each group, as if it had been measured alone; the figures are those of the group."""
    return tuple(
        replace(
            group,
            frame=group.frame[group.frame["suite"] == figures.suite],
            others={mode: frame[frame["suite"] == figures.suite] for mode, frame in group.others.items()},
            suites=(figures,),
        )
        for group in groups
        for figures in (group.suites[:-1] or group.suites)
    )


def only_suites(files: Sequence[RunFile], names: Sequence[str]) -> list[RunFile]:
    """The files with the rows of these suites alone, as if nothing else had been measured.

    Raises UserError for a suite that no file has, naming those there are.
    """
    there = list(dict.fromkeys(row.suite for file in files for row in file.rows))
    for name in names:
        if name not in there:
            raise UserError(f"--suite {name}: was not measured in these files. There are: {', '.join(there)}.")
    kept = [_only(file, set(names)) for file in files]
    return [file for file in kept if file.rows]


def _only(file: RunFile, names: set[str]) -> RunFile:
    run = replace(file.run, suites=tuple(suite for suite in file.run.suites if suite.name in names))
    return replace(file, run=run, rows=tuple(row for row in file.rows if row.suite in names))


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
