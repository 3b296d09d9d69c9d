"""Acceptance of the methods that draft, under all of its names, as a table, Markdown, CSV or JSON."""

import csv
import io
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchctl.analysis.frame.build import pair
from benchctl.analysis.frame.comparison import POOLED, Estimate, Group, SuiteFigures, estimates
from benchctl.analysis.gate import Gates
from benchctl.analysis.metrics.acceptance import POSITIONS, by_position
from benchctl.analysis.metrics.metric import (
    ACCEPTANCE_RATE,
    BLOCK_EFFICIENCY,
    MEAN_ACCEPTED,
    ROW_ACCEPTANCE,
)
from benchctl.analysis.tables.export import gates_document
from benchctl.errors import UserError

WIDTH = 80
_NAMED = (ACCEPTANCE_RATE, ROW_ACCEPTANCE, MEAN_ACCEPTED, BLOCK_EFFICIENCY)
_NOTE = (
    "By position: percent of the steps that drafted. conditional: of those in which all positions before were "
    "accepted; unconditional: of all; histogram: that accepted just so many tokens. In a tree a position is a depth, "
    "and the acceptance rate is of its depth, not of its rows."
)
Row = tuple[str, ...]


@dataclass(frozen=True)
class Acceptance:
    """One method on one suite. `conditional` and `unconditional` go from position 1 to the deepest it tried,
    `histogram` from 0 to that."""

    group: int
    suite: str
    label: str
    label_lines: tuple[str, ...]
    named: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    unconditional: tuple[Estimate, ...]
    histogram: tuple[Estimate, ...]


def render_acceptance(groups: Sequence[Group], format: str = "table", gates: Gates | None = None) -> str:
    """The acceptance of every method that drafts, in each group and suite; format and `gates` as in report.render.

    Raises UserError where no method drafted anything.
    """
    found = [each for number, group in enumerate(groups, 1) for each in acceptances(number, group)]
    if not found:
        raise UserError("no method drafted a token. Measure one that does: benchctl list methods.")
    if format == "json":
        document = {"acceptance": [_document(each) for each in found]} | gates_document(gates)
        return json.dumps(document, indent=2, allow_nan=False)
    if format == "csv":
        return _csv(found)
    return "\n\n".join(_markdown(found) if format == "md" else _terminal(found))


def acceptances(number: int, group: Group) -> Iterator[Acceptance]:
    """Of every method of a group that drafts, by suite; `number` is the group's."""
    for suite in group.suites:
        yield from acceptances_on(number, group, suite)


def acceptances_on(number: int, group: Group, suite: SuiteFigures) -> Iterator[Acceptance]:
    """The same on one of its suites."""
    frame = group.frame if suite.suite == POOLED else group.frame[group.frame["suite"] == suite.suite]
    metrics = by_position(frame)
    for method in suite.methods:
        if method.estimate(ACCEPTANCE_RATE).value is None:
            continue
        found = estimates(pair(frame, method.label, group.run.baseline), metrics.metrics)
        deepest = len(metrics.conditional)
        tried = max((place for place, each in enumerate(found[:deepest], 1) if each.value is not None), default=0)
        yield Acceptance(
            group=number,
            suite=group.title(suite),
            label=method.label,
            label_lines=method.label_lines,
            named=tuple(method.estimate(metric) for metric in _NAMED),
            conditional=found[:tried],
            unconditional=found[deepest : deepest + tried],
            histogram=found[2 * deepest : 2 * deepest + tried + 1],
        )


def _number(estimate: Estimate, pattern: str) -> str:
    return "–" if estimate.value is None else format(estimate.value, pattern)


def _with_interval(estimate: Estimate, pattern: str) -> str:
    interval = estimate.interval
    spread = "n/a" if interval is None else f"{interval.low:{pattern}}, {interval.high:{pattern}}"
    return f"{_number(estimate, pattern)} [{spread}]"


def _percent(found: Sequence[Estimate]) -> Row:
    return tuple("–" if each.value is None else f"{100 * each.value:.0f}" for each in found)


def _named_cells(each: Acceptance) -> Row:
    rate, rows, mean, block = each.named
    return _with_interval(rate, ".3f"), _number(rows, ".3f"), _number(mean, ".2f"), _number(block, ".2f")


def _position_rows(each: Acceptance) -> tuple[Row, ...]:
    """The position, 0 to the deepest, stands above the columns."""
    return (
        ("conditional", "", *_percent(each.conditional)),
        ("unconditional", "", *_percent(each.unconditional)),
        ("histogram", *_percent(each.histogram)),
    )


def _positions(found: Sequence[Acceptance]) -> Row:
    deepest = max(len(each.histogram) for each in found)
    return tuple(f"{place}+" if place == POSITIONS else str(place) for place in range(deepest))


def _terminal(found: Sequence[Acceptance]) -> Iterator[str]:
    for part in _parts(found):
        yield _heading(found, part)
        named: list[Row] = [
            ("", "acceptance rate [95%]", "of drafted", "accepted", "committed"),
            ("", "", "rows", "a step", "a step"),
        ]
        places: list[Row] = [("position", *_positions(part))]
        for each in part:
            lines = [" " * bool(number) + line for number, line in enumerate(each.label_lines)]
            named += [(line,) for line in lines[:-1]] + [(lines[-1], *_named_cells(each))]
            places += [(line,) for line in lines] + list(_position_rows(each))
        yield _aligned(named, "  ")
        yield _aligned(places, " ")
    yield textwrap.fill(_NOTE, WIDTH)


def _markdown(found: Sequence[Acceptance]) -> Iterator[str]:
    for part in _parts(found):
        yield f"**{_heading(found, part)}**"
        head: Row = ("method", "acceptance rate [95%]", "accepted share of drafted rows", "mean accepted tokens",
                     "block efficiency")  # fmt: skip
        yield _piped([head, *((f"`{each.label}`", *_named_cells(each)) for each in part)])
        width = len(positions := _positions(part))
        rows = [(f"`{each.label}`", *row) for each in part for row in _position_rows(each)]
        yield _piped([("method", "% of drafts", *positions), *(row + ("",) * (width + 2 - len(row)) for row in rows)])
    yield _NOTE


def _parts(found: Sequence[Acceptance]) -> Iterator[list[Acceptance]]:
    """The methods of one group and suite."""
    for key in dict.fromkeys((each.group, each.suite) for each in found):
        yield [each for each in found if (each.group, each.suite) == key]


def _heading(found: Sequence[Acceptance], part: Sequence[Acceptance]) -> str:
    group = f", group {part[0].group}" if found[-1].group > 1 else ""
    return f"Acceptance on {part[0].suite}{group}"


def _aligned(rows: Sequence[Row], gap: str) -> str:
    """Columns under each other, the first to the left. A row of one cell is a heading and has no say in the widths."""
    wide = [row for row in rows if len(row) > 1]
    widths = [max(len(row[place]) for row in wide if place < len(row)) for place in range(max(map(len, wide)))]
    lines = [
        gap.join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=False))]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _piped(rows: Sequence[Row]) -> str:
    rule: Row = ("---", *("---:" for _ in rows[0][1:]))
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _figures(each: Acceptance) -> Iterator[tuple[str, int | None, Estimate]]:
    """Name, position and estimate of everything."""
    for estimate in each.named:
        yield estimate.metric.name, None, estimate
    for name, first, found in (
        ("conditional", 1, each.conditional),
        ("unconditional", 1, each.unconditional),
        ("histogram", 0, each.histogram),
    ):
        for place, estimate in enumerate(found, first):
            yield name, place, estimate


def _ends(estimate: Estimate) -> dict[str, float | None]:
    interval = estimate.interval
    return {
        "value": estimate.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }


def _document(each: Acceptance) -> dict[str, object]:
    figures = [{"name": name, "position": place, **_ends(estimate)} for name, place, estimate in _figures(each)]
    return {"group": each.group, "suite": each.suite, "label": each.label, "figures": figures}


def _csv(found: Sequence[Acceptance]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "suite", "label", "figure", "position", "value", "low", "high"])
    for each in found:
        for name, place, estimate in _figures(each):
            writer.writerow([each.group, each.suite, each.label, name, place, *_ends(estimate).values()])
    return text.getvalue().rstrip("\n")
