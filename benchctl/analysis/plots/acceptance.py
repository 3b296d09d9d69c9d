"""How far drafts are accepted, by position and by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, nan
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE
from benchctl.analysis.plots.axes import dress, new_panels, reaches
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Style, line_inches, shown_labels, wrapped
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.tables.acceptance import Acceptance, acceptances, position_name
from benchctl.errors import UserError

_MOST_NUMBERS = 8  # of positions, along an axis
_MOST: Final = {"screen": 8, "column": 6}  # methods
_COLUMNS: Final = {"screen": 4, "column": 2}
_INCHES: Final = {"screen": 1.2, "column": 0.7}  # height of a method's axes


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """For every method that drafts, how many tokens its steps accept, and the conditional acceptance by position. Lines
    of the other methods stand behind it in grey.

    Raises UserError where none of the chosen methods drafts, and for more methods or groups than there is room for.
    """
    style = request.style
    labels = drafting(groups, request.methods)
    check_count(labels, _MOST[style.size], "methods that draft")
    names = shown_labels(labels, groups)
    found = [(group, accepted(number, group, labels)) for number, group in enumerate(groups, 1)]
    shown = [(group, methods) for group, methods in found if methods]
    heights = [_height(methods, names, style) for _, methods in shown]
    titles = ["How many drafted tokens are accepted"] * len(shown)
    figure, panels = new_panels([group for group, _ in shown], titles, style, heights, keys=[list(_key(style))])
    for panel, (_, methods) in zip(panels, shown, strict=True):
        _draw(panel, methods, names, style)
    idle = [label for label in chosen(groups, request.methods) if label not in labels] if request.methods else []
    notes = [f"{label}: drafted nothing, so it is not in the picture." for label in idle]
    notes += [
        f"{group.files[0].path}: no method drafts, so it is not in the picture." for group, each in found if not each
    ]
    return Drawing(figure, notes)


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def drafting(groups: Sequence[Group], methods: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels of those of `methods` (see chosen) that drafted. Raises UserError where none did."""
    drafted = {
        method.label
        for group in groups
        for method in group.pooled.methods
        if method.estimate(ACCEPTANCE_RATE).value is not None
    }
    labels = tuple(label for label in chosen(groups, methods) if label in drafted)
    if not labels:
        others = [label for label in chosen(groups) if label in drafted]
        instead = f"These did: {' '.join(others)}." if others else "Measure one that does: benchctl list methods."
        path = groups[0].files[0].path
        raise UserError("no_drafts", f"{path}: none of {' '.join(methods) or 'its methods'} drafted a token. {instead}")
    return labels


def accepted(number: int, group: Group, labels: Sequence[str]) -> tuple[Acceptance, ...]:
    """Those of `labels` that drafted in a group, which is the `number`-th, over all its suites."""
    wanted = tuple(method for method in group.pooled.methods if method.label in labels)
    return tuple(acceptances(number, group, [replace(group.pooled, methods=wanted)]))


def _key(style: Style) -> Iterator[Artist]:
    yield Patch(facecolor=style.faded(style.muted), label="bars: share of drafts that accept this many tokens")
    yield Line2D([], [], color=style.muted, marker="o", markersize=style.marker * 0.6, linewidth=style.line,
                 label="line: token accepted, if all before it were (grey: others)")  # fmt: skip


def _title(label: str, names: Mapping[str, str], style: Style) -> str:
    columns = _COLUMNS[style.size]
    return wrapped([names[label]], style.small, style.width * 0.85 / columns)


def _height(methods: Sequence[Acceptance], names: Mapping[str, str], style: Style) -> float:
    rows = ceil(len(methods) / _COLUMNS[style.size])
    lines = max(_title(each.label, names, style).count("\n") + 1 for each in methods)
    return rows * (_INCHES[style.size] + (lines + 0.5) * line_inches(style)) + 2.5 * line_inches(style)


def _draw(part: SubFigure, methods: Sequence[Acceptance], names: Mapping[str, str], style: Style) -> None:
    columns = min(len(methods), _COLUMNS[style.size])
    grid = part.subplots(ceil(len(methods) / columns), columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(methods) :]:
        axes.set_visible(False)
    deepest = max(len(each.histogram) for each in methods)
    for number, (axes, method) in enumerate(zip(grid.flat, methods, strict=False)):
        for other in methods:
            _draw_line(axes, other, style.faded(style.muted, 0.3), style, zorder=2)
        _draw_method(axes, method, style)
        dress(axes, style)
        axes.set_title(_title(method.label, names, style), loc="left", fontsize=style.small, color=style.ink)
        axes.tick_params(labelbottom=number + columns >= len(methods))
    ticks = range(deepest)[:: ceil(deepest / _MOST_NUMBERS)]
    axes = grid[0, 0]  # all share theirs
    axes.set_xticks(ticks, [position_name(tick) for tick in ticks])
    axes.set_xlim(-0.6, deepest - 0.4)
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    part.supxlabel("drafted tokens (95% intervals)", fontsize=style.text, color=style.ink)


def _draw_method(axes: Axes, method: Acceptance, style: Style) -> None:
    colour = style.colour_of(method.label)
    axes.bar(
        range(len(method.histogram)),
        [estimate.value or 0.0 for estimate in method.histogram],
        yerr=reaches(method.histogram, missing=nan),
        width=0.8,
        color=style.faded(colour, 0.45),
        error_kw={"ecolor": style.faded(colour, 0.8), "elinewidth": style.line * 0.6},
        zorder=1,
    )
    _draw_line(axes, method, colour, style, zorder=4)
    sure = _sure(method)
    axes.errorbar(
        [position for position, _ in sure],
        [estimate.value or 0.0 for _, estimate in sure],
        yerr=reaches([estimate for _, estimate in sure], missing=nan),
        fmt="o",
        color=colour,
        markersize=style.marker * 0.6,
        elinewidth=style.line * 0.7,
        zorder=5,
    )


def _draw_line(axes: Axes, method: Acceptance, colour: str, style: Style, zorder: int) -> None:
    sure = _sure(method)
    axes.plot([position for position, _ in sure], [estimate.value or 0.0 for _, estimate in sure], color=colour,
              linewidth=style.line * 0.9, zorder=zorder)  # fmt: skip


def _sure(method: Acceptance) -> list[tuple[int, Estimate]]:
    """The positions that enough drafts came to for an interval."""
    return [(position, each) for position, each in enumerate(method.conditional, 1) if each.interval]
