"""Acceptance of the methods that draft, under all of its names; as tables see text.py."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

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
from benchctl.analysis.stats.estimates import Estimate, estimates
from benchctl.analysis.tables.columns import NONE, spread
from benchctl.analysis.tables.grids import Row

_NAMED = (ACCEPTANCE_RATE, ROW_ACCEPTANCE, MEAN_ACCEPTED, BLOCK_EFFICIENCY)


@dataclass(frozen=True)
class Acceptance:
    """One method on one suite; `refused` as in MethodFigures. `conditional` and `unconditional` go from position 1 to
    the deepest it tried, `histogram` from 0 to that."""

    group: int
    suite: str
    label: str
    refused: str
    named: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    unconditional: tuple[Estimate, ...]
    histogram: tuple[Estimate, ...]

    @property
    def named_cells(self) -> Row:
        rate, *others = self.named
        return spread(rate, "{:.3f}"), *(spread(other, other.metric.cell, interval=False) for other in others)

    @property
    def position_rows(self) -> tuple[Row, ...]:
        """The name of a share, and its percentages by position from 0."""
        return (
            ("conditional", "", *map(_percent, self.conditional)),
            ("unconditional", "", *map(_percent, self.unconditional)),
            ("histogram", *map(_percent, self.histogram)),
        )

    def figures(self) -> Iterator[tuple[str, int | None, Estimate]]:
        """Name, position and estimate of every figure."""
        for estimate in self.named:
            yield estimate.metric.name, None, estimate
        for name, first in (("conditional", 1), ("unconditional", 1), ("histogram", 0)):
            for position, estimate in enumerate(getattr(self, name), first):
                yield name, position, estimate


def acceptances(number: int, group: Group, suites: Sequence[SuiteFigures]) -> Iterator[Acceptance]:
    """Of every method that drafts, on each of these suites of a group; `number` is the group's."""
    for suite in suites:
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
                refused=method.refused,
                named=tuple(method.estimate(metric) for metric in _NAMED),
                conditional=shares[:tried],
                unconditional=shares[deepest : deepest + tried],
                histogram=shares[2 * deepest : 2 * deepest + tried + 1],
            )


def _percent(share: Estimate) -> str:
    return NONE if share.value is None else f"{100 * share.value:.0f}"


def position_name(position: int) -> str:
    """The last position of the records includes all later ones."""
    return f"{position}+" if position == POSITIONS else str(position)


def to_json(drafting: Sequence[Acceptance]) -> str:
    """Every figure at full precision."""
    document: dict[str, object] = {
        "acceptance": [
            {"group": each.group, "suite": each.suite, "label": each.label, "refused": each.refused}
            | {"figures": [{"name": name, "position": at, **found.numbers} for name, at, found in each.figures()]}
            for each in drafting
        ]
    }
    return json.dumps(document, indent=2, allow_nan=False)


def to_csv(drafting: Sequence[Acceptance]) -> str:
    """A line for each figure, at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "suite", "label", "refused", "figure", "position", "value", "low", "high"])
    for each in drafting:
        for name, position, estimate in each.figures():
            place = (each.group, each.suite, each.label, each.refused, name, position)
            writer.writerow([*place, *estimate.numbers.values()])
    return text.getvalue().rstrip("\n")
