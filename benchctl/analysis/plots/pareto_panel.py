"""One panel of the Pareto plot: the band of lossless methods above, the others below, the frontier through both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchctl.analysis.plots.axes import LINE_SPACING, in_lines, text_inches
from benchctl.analysis.plots.curves import Curve
from benchctl.analysis.plots.labels import Labelled, collisions, covered, write_labels
from benchctl.analysis.plots.pareto_names import BADGE, Names
from benchctl.analysis.plots.pareto_view import Dot, Look, View
from benchctl.analysis.plots.placing import Box
from benchctl.analysis.plots.style import Mark, Style

_FULLEST_ROW = 2  # lines of a name in the band
_LEAST_FREE = 0.4  # of a panel of fixed height, for the dots that are not in the band


@dataclass(frozen=True)
class Row:
    """A line of the band: how high it is, and what stands beside its dot, on which side. `y` is its middle, in inches
    above the band's lower end."""

    dot: Dot
    y: float
    height: float
    text: str
    right: bool
    fits: bool


@dataclass(frozen=True)
class Room:
    """How many inches a panel may be high: `height`, band included, if that `is_fixed`, else `height` besides a band
    that is at most as high as `most_band`."""

    height: float
    is_fixed: bool
    most_band: float = 0.0

    def band(self, others: bool) -> float:
        """How high the band may be, with other dots below it or without."""
        if self.is_fixed:
            return self.height * (1 - _LEAST_FREE) if others else self.height
        return self.most_band


@dataclass(frozen=True)
class Frame:
    """Where a panel's data lie: `x` and `y` are its limits, the band begins at `y` = `band`; sizes are inches.
    `is_roomy` is whether the band is no higher than it may be."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    band: float
    rows: tuple[Row, ...]
    is_roomy: bool

    def inches_across(self, x: float) -> float:
        return (x - self.x[0]) / (self.x[1] - self.x[0]) * self.width

    def in_band(self, inches: float) -> float:
        """The y of what lies so far above the band's lower end."""
        return self.band + inches / self.height * (self.y[1] - self.y[0])

    def place(self, dot: Dot) -> tuple[float, float]:
        row = next((row for row in self.rows if row.dot == dot), None)
        return (dot.point.x, self.in_band(row.y) if row else dot.point.y)


def frame(view: View, names: Names, style: Style, width: float, room: Room) -> Frame:
    """The panel's frame, as high as its band and, where not all are in the band, the rest of `room`."""
    low, high = _span([end for dot in view.dots for end in (*dot.across, 1.0)], 0.2)
    number = style.marker / 72 + text_inches("00", style.small)[0]  # has room at the right edge
    x = (low - 0.06 * (high - low), high + max(0.06, number / width) * (high - low))
    rows = _rows(view, names, style, Frame(width, 1.0, x, (0.0, 1.0), 0.0, (), True), room.band(bool(view.free)))
    band = sum(row.height for row in rows) + (_heading(style) if rows else 0.0)
    is_roomy = not rows or band <= room.band(bool(view.free)) + 1e-9
    if not view.free:
        return Frame(width, band, x, (0.0, band), 0.0, rows, is_roomy)
    free = max(room.height - band, room.height * _LEAST_FREE) if room.is_fixed else room.height
    bottom, top = _span([*(end for dot in view.free for end in dot.along), *([1.0] if rows else [])], 0.1)
    bottom, top = bottom - 0.10 * (top - bottom), top + (0.06 if rows else 0.25) * (top - bottom)
    return Frame(width, band + free, x, (bottom, top + band / free * (top - bottom)), top, rows, is_roomy)


def _span(ends: Sequence[float], least: float) -> tuple[float, float]:
    low, high = min(ends), max(ends)
    return (low, high) if high - low >= least else ((low + high - least) / 2, (low + high + least) / 2)


def _heading(style: Style) -> float:
    return 1.8 * style.small / 72


def _rows(view: View, names: Names, style: Style, bare: Frame, most: float) -> tuple[Row, ...]:
    """From the top down, though each knows its height above the band's lower end. Those without a name share what the
    others leave of `most` inches."""
    rows = [_row(dot, names.in_band(dot), style, bare) for dot in view.band]
    silent = sum(not row.text for row in rows)
    left = most - _heading(style) - sum(row.height for row in rows if row.text)
    thin = min(style.marker * 1.2 / 72, max(left, 0.0) / silent) if silent else 0.0
    found: list[Row] = []
    y = 0.1 * style.small / 72
    for row in reversed(rows):
        height = row.height if row.text else thin
        found.insert(0, replace(row, y=y + height / 2, height=height))
        y += height
    return tuple(found)


def _row(dot: Dot, text: str, style: Style, bare: Frame) -> Row:
    """The name right of the bar, or left of it where there is more room; broken where it does not fit on one line."""
    reach = 0.5 * style.marker / 72 + 0.5 * style.small / 72
    left = bare.inches_across(min(dot.across[0], dot.point.x)) - reach
    right = bare.width - bare.inches_across(max(dot.across[1], dot.point.x)) - reach
    room, is_right = max(left, right), right >= left
    if text and text_inches(text, style.small)[0] <= right:
        room, is_right = right, True
    parts = in_lines(text, style.small, room) if text else []
    line = 1.3 * style.small if text.isdigit() else LINE_SPACING * len(parts) * style.small + 0.35 * style.small
    height = max(line, style.marker * 1.1) / 72
    fits = len(parts) <= _FULLEST_ROW and text_inches("\n".join(parts) or " ", style.small)[0] <= room
    return Row(dot, 0.0, height, "\n".join(parts), is_right, fits)


def stairs(view: View, frame: Frame) -> list[tuple[float, float]]:
    """From the dot that leads the band, or from the left edge, down to the lower edge."""
    best = sorted((frame.place(dot) for dot in view.dots if dot.best), key=lambda at: (at[0], -at[1]))
    starts_in_band = any(dot.best for dot in view.band)
    corners = [best[0] if starts_in_band else (frame.x[0], best[0][1])]
    for (x, y), (_, next_y) in zip(best, [*best[1:], (0.0, frame.y[0])], strict=True):
        corners += [(x, y), (x, next_y)]
    return corners


_MARKERS: Mapping[Look, str] = {"baseline": "s", "lossless": "o", "unproven": "X", "lossy": "^"}
_OF_CURVES = ("v", "D", "P", "<", ">", "p", "*", "h", "d")
_BAND = f"{BADGE} lossless"


def look_mark(style: Style, look: Look) -> Mark:
    """Baseline in ink, the others in a colour each; the marker tells the same."""
    numbers: Mapping[Look, int] = {"baseline": 0, "lossless": 0, "lossy": 1, "unproven": 2}
    colour = style.ink if look == "baseline" else style.colours[numbers[look]]
    return Mark(colour, _MARKERS[look], "", "-")


def curve_marks(style: Style, curves: Sequence[Curve]) -> dict[Curve, Mark]:
    """Of curves of lossy methods: colours after those of looks, and markers and dashes that no look has."""
    return {
        curve: Mark(
            style.colours[(number + 3) % len(style.colours)],
            _OF_CURVES[number % len(_OF_CURVES)],
            "",
            style.mark(number).dashes,
        )
        for number, curve in enumerate(curves)
    }


def set_limits(axes: Axes, view: View, frame: Frame, style: Style) -> None:
    axes.set_xlim(*frame.x)
    axes.set_ylim(*frame.y)
    most = max(2, int(frame.width * 72 / (4.5 * style.small)))
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    _set_y_ticks(axes, view, frame, style)


def draw_panel(axes: Axes, view: View, frame: Frame, style: Style, marks: Mapping[Curve, Mark]) -> None:
    """Everything but names, in axes whose limits are set."""
    axes.axvline(1, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
    if frame.rows:
        axes.axhspan(frame.band, frame.y[1], facecolor=_band_colour(style), zorder=0)
        _head_band(axes, frame, style)
    _draw_frontier(axes, view, frame, style)
    of_label: dict[str, Mark] = {}
    for curve in view.swept:
        points = [next(dot.point for dot in view.dots if dot.label == label) for label in curve.labels]
        mark = marks[curve]
        of_label |= dict.fromkeys(curve.labels, mark)
        xs, ys = [at.x for at in points], [at.y for at in points]
        axes.plot(xs, ys, color=mark.colour, linestyle=mark.dashes, linewidth=style.line * 0.8, zorder=2)
    for dot in view.dots:
        _draw_dot(axes, dot, frame.place(dot), style, of_label.get(dot.label, look_mark(style, dot.look)))


def _set_y_ticks(axes: Axes, view: View, frame: Frame, style: Style) -> None:
    """None above the highest point or bar, for agreement ends at 1, and none in the band, which has no scale."""
    if not view.free:
        axes.set_yticks([])
        return
    top = max([*(dot.along[1] for dot in view.free), *([1.0] if frame.rows else [])])
    inches = (frame.band - frame.y[0]) / (frame.y[1] - frame.y[0]) * frame.height
    ticks = MaxNLocator(max(2, int(inches * 72 / (3 * style.small))), steps=[1, 2, 5, 10]).tick_values(frame.y[0], top)
    axes.set_yticks([tick for tick in ticks if frame.y[0] <= tick <= top + 1e-9])


def _band_colour(style: Style) -> str:
    return style.faded(look_mark(style, "lossless").colour, 0.08)


def _head_band(axes: Axes, frame: Frame, style: Style) -> None:
    axes.annotate(
        _BAND,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0.5 * style.small, -0.35 * style.small),
        textcoords="offset points",
        ha="left",
        va="top",
        fontsize=style.small,
        fontweight="bold",
        color=style.ink,
        bbox={"facecolor": _band_colour(style), "edgecolor": "none", "pad": 0.5},
    )


def _draw_dot(axes: Axes, dot: Dot, place: tuple[float, float], style: Style, mark: Mark) -> None:
    """Solid where nothing beats it, else hollow and faded. In the band there is no scale for a bar upwards."""
    x, y = place
    (left, right), (low, high) = dot.across, (y, y) if dot.banded else dot.along
    colour = mark.colour if dot.best else style.faded(mark.colour)
    axes.errorbar(
        [x],
        [y],
        xerr=[[x - left], [right - x]] if right > left else None,
        yerr=[[y - low], [high - y]] if high > low else None,
        fmt=mark.marker,
        color=colour,
        markersize=style.marker,
        markerfacecolor=colour if dot.best else style.ground,
        markeredgecolor=style.ground if dot.best else colour,
        markeredgewidth=style.line * (0.5 if dot.best else 0.8),
        capsize=style.marker * 0.35,
        capthick=style.line * 0.8,
        elinewidth=style.line * 0.8,
        label=dot.label,
        zorder=4 if dot.best else 3,
    )


def _draw_frontier(axes: Axes, view: View, frame: Frame, style: Style) -> None:
    """Stairs from the most faithful method to the fastest; whatever lies below them is beaten."""
    corners = stairs(view, frame)
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    axes.plot(xs, ys, color=style.muted, linewidth=style.line * 0.8, linestyle=(0, (4, 1.5)), zorder=1.5)


def write_names(axes: Axes, view: View, frame: Frame, names: Names, style: Style) -> int:
    """Write names beside dots; how many of them do not stand free."""
    points = [_labelled(dot, frame, names.beside(dot), style) for dot in view.free]
    (left, bottom), (right, middle), (_, top) = axes.transData.transform(
        [(frame.x[0], frame.y[0]), (frame.x[1], frame.band), (frame.x[1], frame.y[1])]
    ).tolist()
    below = write_labels(axes, points, style, Box(left, bottom, right, middle))
    return below + _write_rows(axes, frame, style, Box(left, middle, right, top))


def _labelled(dot: Dot, frame: Frame, text: str, style: Style) -> Labelled:
    x, y = frame.place(dot)
    along = (y, y) if dot.banded else dot.along
    return Labelled(x, y, dot.across, along, text, style.ink if dot.best else style.muted)


def _write_rows(axes: Axes, frame: Frame, style: Style, area: Box) -> int:
    boxes = [_write_row(axes, frame, row, style) for row in frame.rows if row.text]
    points = [_labelled(row.dot, frame, "", style) for row in frame.rows]
    obstacles = [box for point in points for box in covered(axes, point, style)]
    crowded = sum(not row.fits for row in frame.rows) + len(boxes) * (not frame.is_roomy)
    return collisions(boxes, obstacles, area) + crowded


def _write_row(axes: Axes, frame: Frame, row: Row, style: Style) -> Box:
    """In pixels."""
    bar = max(row.dot.across[1], row.dot.point.x) if row.right else min(row.dot.across[0], row.dot.point.x)
    reach = (style.marker * 0.5 if bar == row.dot.point.x else style.marker * 0.1) + 0.5 * style.small
    text = axes.annotate(
        row.text,
        (bar, frame.in_band(row.y)),
        xytext=(reach if row.right else -reach, 0),
        textcoords="offset points",
        ha="left" if row.right else "right",
        va="center",
        fontsize=style.small,
        linespacing=LINE_SPACING * 0.9,
        color=style.ink if row.dot.best else style.muted,
        bbox={"facecolor": _band_colour(style), "edgecolor": "none", "pad": 0.5},
        parse_math=False,
        zorder=2.5,
    )
    place = text.get_window_extent()
    return Box(place.x0, place.y0, place.x1, place.y1)
