"""How far drafts are accepted: position by position, and how many of its drafted tokens a step accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.frame.row_figures import POSITIONS
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE
from benchctl.analysis.plots.axes import check_image, dress, save
from benchctl.analysis.plots.panels import broken, check_groups, line_inches, names, parted
from benchctl.analysis.plots.style import Mark, Style
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.tables.acceptance import Acceptance, acceptances_on
from benchctl.errors import UserError

_MOST_NUMBERS = 8  # of positions, along an axis
_ASIDE = 0.35  # of a position: what the methods' points are spread over, for bars at one place would cover each other


@dataclass(frozen=True)
class _Layout:
    """How the histograms of a part stand: beside the curves, or below them; heights are in inches."""

    most: int
    columns: int
    beside: bool
    curves: float
    histogram: float


_LAYOUTS: Final = {
    "page": _Layout(most=8, columns=2, beside=True, curves=3.0, histogram=0.95),
    "column": _Layout(most=8, columns=2, beside=False, curves=2.0, histogram=0.85),
    "slide": _Layout(most=6, columns=3, beside=True, curves=3.0, histogram=1.5),
}


@dataclass(frozen=True)
class _Drawn:
    """A method, what it is called and how it looks in all panels."""

    acceptance: Acceptance
    name: str
    mark: Mark


def plot_acceptance(
    groups: Sequence[Group], path: Path, style: Style, *, methods: Sequence[str] = ()
) -> tuple[str, ...]:
    """Draw the conditional acceptance of every method that drafts, position by position, and the histogram of accepted
    tokens of its steps; write it to `path`, and return what to know of it.

    Raises UserError where none of the `methods` (all, if not given; see chosen) drafts, for more methods or groups than
    there is room for, and when the picture cannot be written.
    """
    check_image(path)
    check_groups(groups, style)
    layout = _LAYOUTS[style.size]
    labels = drafting(groups, methods)
    check_count(labels, layout.most, "methods that draft")
    found = [accepted(number, group, labels) for number, group in enumerate(groups, 1)]
    marks, called = {label: style.mark(number) for number, label in enumerate(labels)}, names(labels, style)
    drawn = [[_Drawn(each, called[each.label], marks[each.label]) for each in part] for part in found]
    kept = [(group, part) for group, part in zip(groups, drawn, strict=True) if part]
    heights = [_height(part, style, layout) for _, part in kept]
    figure, parts = parted([group for group, _ in kept], style, heights)
    for part, methods_of_part in zip(parts, (part for _, part in kept), strict=True):
        _draw(part, methods_of_part, style, layout)
    save(figure, path)
    idle = [label for label in chosen(groups, methods) if label not in labels] if methods else []
    return (*(f"{label}: drafted nothing, so it is not in the picture." for label in idle), *_notes(groups, drawn))


def _notes(groups: Sequence[Group], drawn: Sequence[Sequence[_Drawn]]) -> Iterator[str]:
    for group, part in zip(groups, drawn, strict=True):
        if not part:
            yield f"{group.files[0].path}: no method of it drafts, so it is not in the picture."
        if any(estimate.interval is None for each in part for estimate in each.acceptance.conditional):
            yield "hollow marks have no interval: too few drafts came that far. Measure more prompts."


def drafting(groups: Sequence[Group], methods: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels of those of `methods` (see chosen) that drafted. Raises UserError where none did."""
    told = {
        method.label
        for group in groups
        for method in group.pooled.methods
        if method.estimate(ACCEPTANCE_RATE).value is not None
    }
    found = tuple(label for label in chosen(groups, methods) if label in told)
    if not found:
        others = [label for label in chosen(groups) if label in told]
        instead = f"These did: {' '.join(others)}." if others else "Measure one that does: benchctl list methods."
        raise UserError(
            f"{groups[0].files[0].path}: none of {' '.join(methods) or 'its methods'} drafted a token. {instead}"
        )
    return found


def accepted(number: int, group: Group, labels: Sequence[str]) -> tuple[Acceptance, ...]:
    """Those of `labels` that drafted in a group, which is the `number`-th, over all its suites."""
    wanted = tuple(method for method in group.pooled.methods if method.label in labels)
    return tuple(acceptances_on(number, group, replace(group.pooled, methods=wanted)))


def _height(part: Sequence[_Drawn], style: Style, layout: _Layout) -> float:
    """Of histograms, each below its label, and of the curves."""
    rows = ceil(len(part) / layout.columns)
    lines = max(_title(each, style, layout).count("\n") + 1 for each in part)
    histograms = rows * (layout.histogram + lines * line_inches(style)) + 0.5
    return max(layout.curves, histograms) if layout.beside else layout.curves + histograms


def _title(drawn: _Drawn, style: Style, layout: _Layout) -> str:
    width = style.width * (0.45 if layout.beside else 0.8) / layout.columns
    return broken(drawn.name, style.small, width)


def _draw(part: SubFigure, drawn: Sequence[_Drawn], style: Style, layout: _Layout) -> None:
    histograms = ceil(len(drawn) / layout.columns)
    if layout.beside:
        left, right = part.subfigures(1, 2, squeeze=False, width_ratios=(0.42, 0.58)).flat
    else:
        share = layout.curves / _height(drawn, style, layout)
        left, right = part.subfigures(2, 1, squeeze=False, height_ratios=(share, 1 - share)).flat
    for side in (left, right):
        side.set_facecolor(style.ground)
    _draw_curves(left.subplots(), drawn, style)
    marks = "marks as on the right" if layout.beside else "marks as below"
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
        aside = _ASIDE * ((number + 0.5) / len(drawn) - 0.5)
        _draw_curve(axes, each, aside, style)
    deepest = max(len(each.acceptance.conditional) for each in drawn)
    _number(axes, range(1, deepest + 1))
    _set_shares(axes, 5)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted, if all before were\n(bars: 95% interval)")
    dress(axes, style)


def _draw_curve(axes: Axes, drawn: _Drawn, aside: float, style: Style) -> None:
    """A mark is hollow where so few drafts came to the position that there is no interval."""
    told, mark = drawn.acceptance.conditional, drawn.mark
    xs, values = [place + aside for place in range(1, len(told) + 1)], [estimate.value or 0.0 for estimate in told]
    axes.errorbar(
        xs, values, yerr=_reaches(told), fmt="none", ecolor=mark.colour, elinewidth=style.line * 0.8,
        capsize=style.marker / 3,
    )  # fmt: skip
    axes.plot(xs, values, color=mark.colour, linestyle=mark.dashes, linewidth=style.line)
    for x, estimate in zip(xs, told, strict=True):
        is_sure = estimate.interval is not None
        axes.plot(
            [x], [estimate.value or 0.0], mark.marker, color=mark.colour if is_sure else style.ground,
            markersize=style.marker, markeredgecolor=style.ground if is_sure else mark.colour,
            markeredgewidth=style.line / (3 if is_sure else 1.5), clip_on=False,
        )  # fmt: skip


def _draw_histogram(axes: Axes, drawn: _Drawn, style: Style, layout: _Layout) -> None:
    told = drawn.acceptance.histogram
    axes.bar(
        range(len(told)),
        [estimate.value or 0.0 for estimate in told],
        yerr=_reaches(told),
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


def _number(axes: Axes, places: range) -> None:
    """Name positions, not all where they are many; the last one the records know stands for those beyond too."""
    told = places[:: ceil(len(places) / _MOST_NUMBERS)]
    axes.set_xticks(told, [f"{place}+" if place == POSITIONS else str(place) for place in told])
    axes.set_xlim(places[0] - 0.6, places[-1] + 0.6)


def _set_shares(axes: Axes, parts: int) -> None:
    """From 0 to 100%, with a little room for marks."""
    axes.set_ylim(0, 1.04)
    axes.set_yticks([part / parts for part in range(parts + 1)], [f"{part / parts:.0%}" for part in range(parts + 1)])


def _reaches(told: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """How far intervals go down and up, NaN where there is none, so that nothing is drawn: a cap would read as an
    interval of no width. Resamples that are all alike may differ from the value in its last digit."""
    down, up = [], []
    for estimate in told:
        value, interval = estimate.value or 0.0, estimate.interval
        down.append(max(value - interval.low, 0.0) if interval else nan)
        up.append(max(interval.high - value, 0.0) if interval else nan)
    return down, up
