"""The key of a Pareto picture: what looks and curves mean, and whom each number names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from benchctl.analysis.plots.axes import in_lines, text_inches
from benchctl.analysis.plots.curves import Curve
from benchctl.analysis.plots.pareto_names import BADGE, Names
from benchctl.analysis.plots.pareto_panel import look_mark
from benchctl.analysis.plots.pareto_view import LOOKS, Dot, Look, View
from benchctl.analysis.plots.style import Mark, Style

_TITLES: Mapping[Look, str] = {
    "baseline": "baseline",
    "lossless": f"{BADGE} lossless",
    "unproven": "exact by claim, not by its answers",
    "lossy": "lossy",
}
_UNTOLD = "lines: lossy labels that differ in one number"
_HANDLE = 2.0  # of a line in the key, in heights of the font; and as much again for distances


def draw_key(
    figure: Figure,
    views: Sequence[View],
    names: Names,
    style: Style,
    marks: Mapping[Curve, Mark],
    told: Mapping[Curve, Mark],
    width: float,
    is_wide: bool,
) -> Legend:
    """At most `width` inches wide; in as many columns as fit, if `is_wide`, else in one. `told` are those of `marks`,
    which curves have, that it explains."""
    entries = [*_looks(views, style), _frontier(views, names, style), *_curves(told, style)]
    if len(told) < len(marks):
        entries.append(Line2D([], [], color=style.muted, linewidth=style.line * 0.8, label=_UNTOLD))
    named = _named(views, names, style, marks)
    handle = 2 * _HANDLE * style.small / 72
    columns, text_width = _columns([*entries, *named], style, width, handle) if is_wide else (1, width - handle)
    for entry in (*entries, *named):
        entry.set_label(_broken(str(entry.get_label()), style, text_width))
    legend = figure.legend(
        handles=[*entries, *named],
        ncols=columns,
        loc="upper left",
        fontsize=style.small,
        labelcolor=style.ink,
        frameon=False,
        borderpad=0.2,
        handlelength=_HANDLE,
        labelspacing=0.4,
        columnspacing=1.2,
        borderaxespad=0,
    )
    return legend


def size_of(key: Legend, figure: Figure) -> tuple[float, float]:
    """Width and height in inches."""
    box = key.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / figure.dpi, box.height / figure.dpi


def _looks(views: Sequence[View], style: Style) -> list[Line2D]:
    there = {dot.look for view in views for dot in view.dots}
    return [_marker(look_mark(style, look), True, style, _TITLES[look]) for look in LOOKS if look in there]


def _frontier(views: Sequence[View], names: Names, style: Style) -> Line2D:
    everyone = {dot.label for view in views for dot in view.dots if dot.look != "baseline"}
    untold = len(everyone) - len(names.numbers) if names.numbers else 0
    more = f"; {untold} not named" if untold else ""
    return Line2D(
        [],
        [],
        color=style.muted,
        linewidth=style.line * 0.8,
        linestyle=(0, (4, 1.5)),
        label=f"frontier (faded: beaten by another{more})",
    )


def _curves(marks: Mapping[Curve, Mark], style: Style) -> list[Line2D]:
    return [
        Line2D(
            [],
            [],
            color=mark.colour,
            linestyle=mark.dashes,
            linewidth=style.line,
            marker=mark.marker,
            markersize=style.marker * 0.8,
            label=curve.title,
        )
        for curve, mark in marks.items()
    ]


def _named(views: Sequence[View], names: Names, style: Style, marks: Mapping[Curve, Mark]) -> list[Line2D]:
    of_label = {label: mark for curve, mark in marks.items() for label in curve.labels}
    dots: dict[str, Dot] = {}
    for view in views:
        for dot in view.dots:
            dots.setdefault(dot.label, dot)
    return [
        _marker(
            of_label.get(label, look_mark(style, dots[label].look)),
            len(views) > 1 or dots[label].best,
            style,
            names.in_key(dots[label], with_speed=len(views) == 1),
        )
        for label in names.numbers
    ]


def _marker(mark: Mark, is_solid: bool, style: Style, label: str) -> Line2D:
    colour = mark.colour if is_solid else style.faded(mark.colour)
    return Line2D(
        [],
        [],
        marker=mark.marker,
        linestyle="",
        color=colour,
        markerfacecolor=colour if is_solid else style.ground,
        markeredgecolor=style.ground if is_solid else colour,
        markeredgewidth=0 if is_solid else style.line * 0.8,
        markersize=style.marker * 0.9,
        label=label,
    )


def _columns(entries: Sequence[Line2D], style: Style, whole: float, handle: float) -> tuple[int, float]:
    """How many columns, and how many inches each leaves for text. As many as hold all texts unbroken; else one or two,
    whichever needs the fewer lines."""
    texts = [str(entry.get_label()) for entry in entries]
    widths = [text_inches(text, style.small)[0] + handle for text in texts]
    for columns in range(min(len(texts), 5), 1, -1):
        if sum(max(part) for part in _dealt(widths, columns)) <= whole:
            return columns, whole

    def lines(columns: int) -> float:
        return sum(_broken(text, style, whole / columns - handle).count("\n") + 1 for text in texts) / columns

    columns = min((1, 2), key=lines)
    return columns, whole / columns - handle


def _dealt(widths: Sequence[float], columns: int) -> list[Sequence[float]]:
    """As a legend deals its entries: one column after the other, the first ones longer."""
    least, more = divmod(len(widths), columns)
    ends = [sum(least + (number < more) for number in range(place)) for place in range(columns + 1)]
    return [widths[start:end] for start, end in zip(ends, ends[1:], strict=False)]


def _broken(text: str, style: Style, width: float) -> str:
    return "\n".join(in_lines(text, style.small, width, indent="    "))
