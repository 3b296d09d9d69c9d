"""Acceptance of the methods that draft, under all of its names, as a table, Markdown, CSV or JSON."""

import csv
import io
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from benchctl.analysis.comparison import POOLED, Group, SuiteFigures
from benchctl.analysis.frame.build import pair
from benchctl.analysis.frame.rows import POSITIONS
from benchctl.analysis.metrics.drafting import (
    ACCEPTANCE_RATE,
    BLOCK_EFFICIENCY,
    MEAN_ACCEPTED,
    ROW_ACCEPTANCE,
    by_position,
)
from benchctl.analysis.names import label_lines
from benchctl.analysis.stats.estimates import Estimate, estimates
from benchctl.analysis.tables.columns import NONE, spread
from benchctl.errors import UserError

WIDTH = 80
_NAMED = (ACCEPTANCE_RATE, ROW_ACCEPTANCE, MEAN_ACCEPTED, BLOCK_EFFICIENCY)
_NOTE = (
    "By position: percent of the steps that drafted. conditional: of those that accepted all positions before; "
    "unconditional: of all; histogram: that accepted exactly so many tokens. In a tree a position is a depth, and the "
    "acceptance rate counts its depth, not its rows."
)
Row = tuple[str, ...]


@dataclass(frozen=True)
class Acceptance:
    """One method on one suite. `conditional` and `unconditional` go from position 1 to the deepest it tried,
    `histogram` from 0 to that."""

    group: int
    suite: str
    label: str
    named: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    unconditional: tuple[Estimate, ...]
    histogram: tuple[Estimate, ...]

    @property
    def named_cells(self) -> Row:
        rate, *others = self.named
        return spread(rate, "{:.3f}"), *(spread(other, other.metric.cell, interval=False) for other in others)

    def figures(self) -> Iterator[tuple[str, int | None, Estimate]]:
        """Name, position and estimate of every figure."""
        for estimate in self.named:
            yield estimate.metric.name, None, estimate
        for name, first in (("conditional", 1), ("unconditional", 1), ("histogram", 0)):
            for position, estimate in enumerate(getattr(self, name), first):
                yield name, position, estimate


def render_acceptance(groups: Sequence[Group], format: str = "table") -> str:
    """The acceptance of every method that drafts, in each group and suite; format as in text.render.

    Raises UserError where no method drafted anything.
    """
    drafting = [each for number, group in enumerate(groups, 1) for each in acceptances(number, group)]
    if not drafting:
        raise UserError("no_drafts", "no method drafted a token. Measure one that does: benchctl list methods.")
    if format == "json":
        document: dict[str, object] = {
            "acceptance": [
                {"group": each.group, "suite": each.suite, "label": each.label}
                | {"figures": [{"name": name, "position": at, **found.numbers} for name, at, found in each.figures()]}
                for each in drafting
            ]
        }
        return json.dumps(document, indent=2, allow_nan=False)
    if format == "csv":
        return _csv(drafting)
    return "\n\n".join(_markdown(drafting) if format == "md" else _terminal(drafting))


def acceptances(number: int, group: Group) -> Iterator[Acceptance]:
    """Of every method of a group that drafts, by suite; `number` is the group's."""
    for suite in group.suites:
        yield from acceptances_on(number, group, suite)


def acceptances_on(number: int, group: Group, suite: SuiteFigures) -> Iterator[Acceptance]:
    """The same on one of its suites."""
    is_pooled = suite.suite == POOLED
    frame = group.frame if is_pooled else group.frame[group.frame["suite"] == suite.suite]
    metrics = by_position(frame)
    for method in suite.methods:
        if method.estimate(ACCEPTANCE_RATE).value is None:
            continue
        pairs = group.pairs(method.label) if is_pooled else pair(frame, method.label, group.run.baseline)
        shares = estimates(pairs, tuple(chain(*metrics)))
        deepest = len(metrics.conditional)
        tried = max((at for at, each in enumerate(shares[:deepest], 1) if each.value is not None), default=0)
        yield Acceptance(
            group=number,
            suite=group.title(suite),
            label=method.label,
            named=tuple(method.estimate(metric) for metric in _NAMED),
            conditional=shares[:tried],
            unconditional=shares[deepest : deepest + tried],
            histogram=shares[2 * deepest : 2 * deepest + tried + 1],
        )


def _percent(shares: Sequence[Estimate]) -> Row:
    return tuple(NONE if each.value is None else f"{100 * each.value:.0f}" for each in shares)


def _position_rows(each: Acceptance) -> tuple[Row, ...]:
    """One cell per position, from 0 to the deepest."""
    return (
        ("conditional", "", *_percent(each.conditional)),
        ("unconditional", "", *_percent(each.unconditional)),
        ("histogram", *_percent(each.histogram)),
    )


def _positions(drafting: Sequence[Acceptance]) -> Row:
    deepest = max(len(each.histogram) for each in drafting)
    return tuple(map(position_name, range(deepest)))


def position_name(position: int) -> str:
    """The last position of the records includes all later ones."""
    return f"{position}+" if position == POSITIONS else str(position)


def _terminal(drafting: Sequence[Acceptance]) -> Iterator[str]:
    for part in _by_suite(drafting):
        yield _heading(drafting, part)
        named: list[Row] = [
            ("", "acceptance rate [95%]", "of drafted", "accepted", "committed"),
            ("", "", "rows", "a step", "a step"),
        ]
        by_position: list[Row] = [("position", *_positions(part))]
        for each in part:
            lines = [" " * bool(number) + line for number, line in enumerate(label_lines(each.label))]
            named += [(line,) for line in lines[:-1]] + [(lines[-1], *each.named_cells)]
            by_position += [(line,) for line in lines] + list(_position_rows(each))
        yield _aligned(named, "  ")
        yield _aligned(by_position, " ")
    yield textwrap.fill(_NOTE, WIDTH)


def _markdown(drafting: Sequence[Acceptance]) -> Iterator[str]:
    for part in _by_suite(drafting):
        yield f"**{_heading(drafting, part)}**"
        head: Row = ("method", "acceptance rate [95%]", *(metric.label for metric in _NAMED[1:]))
        yield _piped([head, *((f"`{each.label}`", *each.named_cells) for each in part)])
        width = len(positions := _positions(part))
        rows = [(f"`{each.label}`", *row) for each in part for row in _position_rows(each)]
        yield _piped([("method", "% of drafts", *positions), *(row + ("",) * (width + 2 - len(row)) for row in rows)])
    yield _NOTE


def _by_suite(drafting: Sequence[Acceptance]) -> Iterator[list[Acceptance]]:
    """The methods of each group and suite."""
    return (list(part) for _, part in groupby(drafting, key=lambda each: (each.group, each.suite)))


def _heading(drafting: Sequence[Acceptance], part: Sequence[Acceptance]) -> str:
    group = f", group {part[0].group}" if drafting[-1].group > 1 else ""
    return f"Acceptance on {part[0].suite}{group}"


def _aligned(rows: Sequence[Row], gap: str) -> str:
    """Columns below each other, the first to the left. A row of one cell is a heading and does not widen columns."""
    wide = [row for row in rows if len(row) > 1]
    widths = [max(len(row[at]) for row in wide if at < len(row)) for at in range(max(map(len, wide)))]
    cells = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join(gap.join(row).rstrip() for row in cells)


def _piped(rows: Sequence[Row]) -> str:
    rule: Row = ("---", *("---:" for _ in rows[0][1:]))
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _csv(drafting: Sequence[Acceptance]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "suite", "label", "figure", "position", "value", "low", "high"])
    for each in drafting:
        for name, position, estimate in each.figures():
            writer.writerow([each.group, each.suite, each.label, name, position, *estimate.numbers.values()])
    return text.getvalue().rstrip("\n")
