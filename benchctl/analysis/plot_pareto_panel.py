"""One panel of the Pareto plot: the band of lossless methods above, the others below, the frontier through both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchctl.analysis.curves import Curve
from benchctl.analysis.pareto_names import BADGE, Names
from benchctl.analysis.pareto_view import Dot, Look, View
from benchctl.analysis.placing import Box
from benchctl.analysis.plot_labels import Labelled, collisions, covered, write_labels
from benchctl.analysis.plot_pareto_frame import Frame, Row, stairs
from benchctl.analysis.plot_style import Mark, Style
from benchctl.analysis.plots import LINE_SPACING

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
