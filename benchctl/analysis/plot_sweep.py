"""Speed-up of one method against one of its options, a line for each value of the others, and beside it what a lossy
method loses by it or what the steps of one that drafts yield."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.chosen import chosen
from benchctl.analysis.comparison import Estimate, Group
from benchctl.analysis.metrics import BLOCK_EFFICIENCY, SPEEDUP, Metric
from benchctl.analysis.plot_groups import add_legend, check_groups, legend_columns, line_inches, parted
from benchctl.analysis.plot_style import Mark, Style
from benchctl.analysis.plots import check_image, dress, save
from benchctl.analysis.swept import Line, Sweep, sweeps, swept_names, text
from benchctl.errors import UserError

_MOST_LINES = 8
_PANEL: Final = {"page": 2.6, "column": 2.0, "slide": 3.0}  # inches of height
_ASIDE = 0.6  # of the way from word to word: what lines are spread over, for bars at one place would cover each other
_BAND = 0.16  # of a colour's strength, so that bands can be seen through


def plot_sweep(
    groups: Sequence[Group], path: Path, style: Style, *, methods: Sequence[str] = (), option: str = ""
) -> tuple[str, ...]:
    """Draw the sweep of one method (see swept.sweeps), with 95% intervals as bands; write it to `path`, and return what
    to know of it.

    Raises UserError as swept.sweeps does, for more lines or groups than there is room for, and when the picture cannot
    be written.
    """
    check_image(path)
    check_groups(groups, style)
    found = sweeps(groups, methods, option)
    titles = list(dict.fromkeys(line.title for sweep in found for line in sweep.lines))
    if len(titles) > _MOST_LINES:
        raise UserError(
            f"{found[0].name}: its labels make {len(titles)} lines by {found[0].option}, of which {_MOST_LINES} can be "
            "told apart. Name the labels of fewer with --method, or another option with --by."
        )
    marks = {title: style.mark(number) for number, title in enumerate(titles)}
    heights = [_height(sweep, style) for sweep in found]
    figure, parts = parted([sweep.group for sweep in found], style, heights)
    for part, sweep in zip(parts, found, strict=True):
        _draw(part, sweep, marks, style)
    save(figure, path)
    others = [name for name in swept_names(groups, chosen(groups, methods)) if name != found[0].name]
    notes = [f"the picture is of {found[0].name}. Also swept: --method {', '.join(others)}."] if others else []
    if not any(len(line.points) > 1 for sweep in found for line in sweep.lines):
        notes.append(
            f"no two labels of {found[0].name} differ in {found[0].option} alone: the picture does not show its effect."
        )
    if any(method.estimate(SPEEDUP).interval is None for sweep in found for method in sweep.methods):
        notes.append("where no interval can be told there is a point alone. Measure more prompts.")
    return tuple(notes)


def _stacked(sweep: Sweep, style: Style) -> int:
    return 2 if sweep.beside and style.size == "column" else 1


def _height(sweep: Sweep, style: Style) -> float:
    titles = [line.title for line in sweep.lines]
    legend = ceil(len(titles) / legend_columns(titles, style)) if any(titles) else 0
    return _PANEL[style.size] * _stacked(sweep, style) + (legend + 1) * line_inches(style)


def _draw(part: SubFigure, sweep: Sweep, marks: dict[str, Mark], style: Style) -> None:
    metrics = [SPEEDUP, *([sweep.beside] if sweep.beside else [])]
    rows = _stacked(sweep, style)
    grid = part.subplots(rows, len(metrics) // rows, squeeze=False, sharex=True)
    for axes, metric in zip(grid.flat, metrics, strict=True):
        for number, line in enumerate(sweep.lines):
            aside = 0.0 if sweep.is_numeric else _ASIDE * ((number + 0.5) / len(sweep.lines) - 0.5)
            _draw_line(axes, line, metric, sweep, aside, marks[line.title], style)
        _describe(axes, metric, sweep, style)
    for axes in grid[-1]:
        axes.set_xlabel(f"{sweep.option} of {sweep.name}\n({_spread(sweep)}: 95% interval)")
        axes.tick_params(labelbottom=True)
    if any(line.title for line in sweep.lines):
        handles, titles = grid.flat[0].get_legend_handles_labels()
        add_legend(part, handles, titles, style)


def _draw_line(axes: Axes, line: Line, metric: Metric, sweep: Sweep, aside: float, mark: Mark, style: Style) -> None:
    """Values that were not measured are left out of it."""
    points = [
        (place, estimate)
        for place, value in enumerate(sweep.values)
        if value in line.points and (estimate := line.points[value].estimate(metric)).value is not None
    ]
    xs = [_x(sweep, place) + aside for place, _ in points]
    values = [estimate.value or 0.0 for _, estimate in points]
    lows, highs = [_end(each, "low") for _, each in points], [_end(each, "high") for _, each in points]
    banded = sweep.is_numeric and len(points) > 1 and all(each.interval for _, each in points)
    if banded:
        axes.fill_between(xs, lows, highs, color=mark.colour, alpha=_BAND, linewidth=0, zorder=1)
        for ends in (lows, highs):
            axes.plot(xs, ends, color=mark.colour, linestyle=mark.dashes, linewidth=style.line * 0.35, zorder=2)
    reaches = (
        [value - low for value, low in zip(values, lows, strict=True)],
        [high - value for value, high in zip(values, highs, strict=True)],
    )
    axes.errorbar(
        xs,
        values,
        yerr=None if banded else reaches,
        marker=mark.marker,
        linestyle=mark.dashes if sweep.is_numeric else "",
        color=mark.colour,
        markersize=style.marker,
        markeredgecolor=style.ground,
        markeredgewidth=style.line / 3,
        linewidth=style.line,
        elinewidth=style.line * 0.6,
        capsize=style.marker / 4,
        label=line.title,
        zorder=3,
    )


def _spread(sweep: Sweep) -> str:
    """What intervals are drawn as."""
    kinds = ("bands" if sweep.is_numeric and len(line.points) > 1 else "bars" for line in sweep.lines)
    return " and ".join(dict.fromkeys(kinds))


def _x(sweep: Sweep, place: int) -> float:
    """Numbers stand where they are, other values side by side."""
    return float(str(sweep.values[place])) if sweep.is_numeric else float(place)


def _end(estimate: Estimate, which: str) -> float:
    """Of its interval, whose resamples may differ from the value in its last digit; the value itself without one."""
    value, interval = estimate.value or 0.0, estimate.interval
    if interval is None:
        return value
    return min(interval.low, value) if which == "low" else max(interval.high, value)


def _describe(axes: Axes, metric: Metric, sweep: Sweep, style: Style) -> None:
    axes.set_ylabel("tokens per step (block efficiency)" if metric == BLOCK_EFFICIENCY else metric.label)
    if metric == SPEEDUP:
        axes.axhline(1, color=style.muted, linewidth=style.line * 0.7, linestyle=":", zorder=0)
    places = [_x(sweep, place) for place in range(len(sweep.values))]
    axes.set_xticks(places, [text(value) for value in sweep.values])
    if not sweep.is_numeric:
        axes.set_xlim(-0.5, len(places) - 0.5)
    dress(axes, style)
