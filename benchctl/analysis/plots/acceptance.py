"""How far drafts are accepted, by position and by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE
from benchctl.analysis.plots.axes import dress, new_panels, reaches
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Mark, Style, broken_label, line_inches, shown_labels
from benchctl.analysis.tables.acceptance import Acceptance, acceptances_on, position_name
from benchctl.errors import UserError

_MOST_NUMBERS = 8  # of positions, along an axis
_SPREAD = 0.35  # of a position: the methods' points are spread over it, so that their bars do not overlap


@dataclass(frozen=True)
class _Layout:
    """Where the histograms of a panel are: next to the curves, or below them. `most` is of methods; heights are
    inches."""

    most: int
    columns: int
    side_by_side: bool
    curves: float
    histogram: float


_LAYOUTS: Final = {
    "screen": _Layout(most=8, columns=2, side_by_side=True, curves=3.0, histogram=0.95),
    "column": _Layout(most=8, columns=2, side_by_side=False, curves=2.0, histogram=0.85),
    "slide": _Layout(most=6, columns=3, side_by_side=True, curves=3.0, histogram=1.5),
}


@dataclass(frozen=True)
class _Drawn:
    """A method with its name and its look, the same in all panels."""

    acceptance: Acceptance
    name: str
    mark: Mark


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """The conditional acceptance of every method that drafts, by position, and the histogram of accepted tokens of its
    steps.

    Raises UserError where none of the chosen methods drafts, and for more methods or groups than there is room for.
    """
    style, layout = request.style, _LAYOUTS[request.style.size]
    labels = drafting(groups, request.methods)
    check_count(labels, layout.most, "methods that draft")
    marks, names = (
        {label: style.mark(number) for number, label in enumerate(labels)},
        shown_labels(labels, style, groups),
    )
    drawn = [
        [_Drawn(each, names[each.label], marks[each.label]) for each in accepted(number, group, labels)]
        for number, group in enumerate(groups, 1)
    ]
    shown = [(group, methods) for group, methods in zip(groups, drawn, strict=True) if methods]
    heights = [_height(methods, style, layout) for _, methods in shown]
    figure, panels = new_panels([group for group, _ in shown], style, heights)
    for panel, (_, methods) in zip(panels, shown, strict=True):
        _draw(panel, methods, style, layout)
    idle = [label for label in chosen(groups, request.methods) if label not in labels] if request.methods else []
    idle_notes = [f"{label}: drafted nothing, so it is not in the picture." for label in idle]
    return Drawing(figure, (*idle_notes, *_notes(groups, drawn)))


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def _notes(groups: Sequence[Group], drawn: Sequence[Sequence[_Drawn]]) -> Iterator[str]:
    for group, methods in zip(groups, drawn, strict=True):
        if not methods:
            yield f"{group.files[0].path}: no method of it drafts, so it is not in the picture."
        if any(estimate.interval is None for each in methods for estimate in each.acceptance.conditional):
            yield "hollow marks have no interval: too few drafts came that far. Measure more prompts."


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
    return tuple(acceptances_on(number, group, replace(group.pooled, methods=wanted)))


def _height(part: Sequence[_Drawn], style: Style, layout: _Layout) -> float:
    """Of histograms, each below its label, and of the curves."""
    rows = ceil(len(part) / layout.columns)
    lines = max(_title(each, style, layout).count("\n") + 1 for each in part)
    histograms = rows * (layout.histogram + lines * line_inches(style)) + 0.5
    return max(layout.curves, histograms) if layout.side_by_side else layout.curves + histograms


def _title(drawn: _Drawn, style: Style, layout: _Layout) -> str:
    width = style.width * (0.45 if layout.side_by_side else 0.8) / layout.columns
    return broken_label(drawn.name, style.small, width)


def _draw(part: SubFigure, drawn: Sequence[_Drawn], style: Style, layout: _Layout) -> None:
    histograms = ceil(len(drawn) / layout.columns)
    if layout.side_by_side:
        left, right = part.subfigures(1, 2, squeeze=False, width_ratios=(0.42, 0.58)).flat
    else:
        share = layout.curves / _height(drawn, style, layout)
        left, right = part.subfigures(2, 1, squeeze=False, height_ratios=(share, 1 - share)).flat
    for side in (left, right):
        side.set_facecolor(style.ground)
    _draw_curves(left.subplots(), drawn, style)
    marks = "marks as on the right" if layout.side_by_side else "marks as below"
    left.axes[0].set_title(marks, loc="left", fontsize=style.small, color=style.muted)
    panels = right.subplots(histograms, layout.columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(drawn) :]:
        axes.set_visible(False)
    for number, each in enumerate(drawn):
        _draw_histogram(panels.flat[number], each, style, layout)
        panels.flat[number].tick_params(labelbottom=number + layout.columns >= len(drawn))
    _number(panels.flat[0], range(max(len(each.acceptance.histogram) for each in drawn)))  # they share their axes
    right.supxlabel("drafted tokens accepted in a step\n(one more is committed)", fontsize=style.text, color=style.ink)
    right.supylabel("share of steps that drafted", fontsize=style.text, color=style.ink)


def _draw_curves(axes: Axes, drawn: Sequence[_Drawn], style: Style) -> None:
    for number, each in enumerate(drawn):
        offset = _SPREAD * ((number + 0.5) / len(drawn) - 0.5)
        _draw_curve(axes, each, offset, style)
    deepest = max(len(each.acceptance.conditional) for each in drawn)
    _number(axes, range(1, deepest + 1))
    _set_shares(axes, 5)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted, if all before were\n(bars: 95% interval)")
    dress(axes, style)


def _draw_curve(axes: Axes, drawn: _Drawn, offset: float, style: Style) -> None:
    """A mark is hollow where so few drafts came to the position that there is no interval."""
    estimates, mark = drawn.acceptance.conditional, drawn.mark
    xs, values = (
        [position + offset for position in range(1, len(estimates) + 1)],
        [estimate.value or 0.0 for estimate in estimates],
    )
    axes.errorbar(
        xs, values, yerr=reaches(estimates, missing=nan), fmt="none", ecolor=mark.colour, elinewidth=style.line * 0.8,
        capsize=style.marker / 3,
    )  # fmt: skip
    axes.plot(xs, values, color=mark.colour, linestyle=mark.dashes, linewidth=style.line)
    for x, estimate in zip(xs, estimates, strict=True):
        is_sure = estimate.interval is not None
        axes.plot(
            [x], [estimate.value or 0.0], mark.marker, color=mark.colour if is_sure else style.ground,
            markersize=style.marker, markeredgecolor=style.ground if is_sure else mark.colour,
            markeredgewidth=style.line / (3 if is_sure else 1.5), clip_on=False,
        )  # fmt: skip


def _draw_histogram(axes: Axes, drawn: _Drawn, style: Style, layout: _Layout) -> None:
    estimates = drawn.acceptance.histogram
    axes.bar(
        range(len(estimates)),
        [estimate.value or 0.0 for estimate in estimates],
        yerr=reaches(estimates, missing=nan),
        width=0.8,
        color=style.faded(drawn.mark.colour),
        edgecolor=drawn.mark.colour,
        linewidth=style.line / 2,
        error_kw={"ecolor": style.ink, "elinewidth": style.line * 0.6, "capsize": style.marker / 4},
    )
    _set_shares(axes, 2)
    axes.plot([0.93], [0.88], drawn.mark.marker, color=drawn.mark.colour, markersize=style.marker,
              transform=axes.transAxes)  # fmt: skip
    dress(axes, style)
    axes.set_title(_title(drawn, style, layout), loc="left", fontsize=style.small, color=style.ink)


def _number(axes: Axes, positions: range) -> None:
    """Ticks at positions, at most _MOST_NUMBERS."""
    ticks = positions[:: ceil(len(positions) / _MOST_NUMBERS)]
    axes.set_xticks(ticks, [position_name(tick) for tick in ticks])
    axes.set_xlim(positions[0] - 0.6, positions[-1] + 0.6)


def _set_shares(axes: Axes, steps: int) -> None:
    """From 0 to 100%, with a little room for marks."""
    axes.set_ylim(0, 1.04)
    axes.set_yticks([step / steps for step in range(steps + 1)], [f"{step / steps:.0%}" for step in range(steps + 1)])
