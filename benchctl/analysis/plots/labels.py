"""Labels beside the points of a plot, off each other and off the points' bars, each joined to its point by a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.text import Text

from benchctl.analysis.plots.placing import Box, Label, place
from benchctl.analysis.plots.style import Style

_SPACING = 1.05  # of lines
_USUAL_MARKER = 15.0  # pixels: the distances of `place` are meant for points of this size


@dataclass(frozen=True)
class Labelled:
    """A point, both ends of its bars, and what stands beside it ("" for nothing: then it only is in the way)."""

    x: float
    y: float
    across: tuple[float, float]
    along: tuple[float, float]
    text: str
    colour: str


def write_labels(axes: Axes, points: Sequence[Labelled], style: Style, area: Box) -> int:
    """Write each text near its point, within `area` (pixels); how often one covers another, a point, a bar or the edge:
    0 where there is room. The axes must have their place and limits."""
    told = [point for point in points if point.text]
    if not told:
        return 0
    texts = [_text(axes, point, style) for point in told]
    pixels = style.dpi / 72
    margin = 0.2 * style.small * pixels
    labels = [_measure(axes, point, text, margin) for point, text in zip(told, texts, strict=True)]
    obstacles = [box for point in points for box in covered(axes, point, style)]
    boxes = place(labels, obstacles, _inset(area, margin), unit=style.marker * pixels / _USUAL_MARKER)
    for point, text, label, box in zip(told, texts, labels, boxes, strict=True):
        _move(axes, point, text, label, box, style)
    return collisions(boxes, obstacles, area)


def collisions(boxes: Sequence[Box], obstacles: Sequence[Box], area: Box) -> int:
    """How many boxes lie on another, on an obstacle, or not inside."""
    outside = sum(
        box.left < area.left or box.right > area.right or box.bottom < area.bottom or box.top > area.top
        for box in boxes
    )
    pairs = sum(overlap(one, other) for one, other in combinations(boxes, 2))
    return outside + pairs + sum(overlap(box, obstacle) for box in boxes for obstacle in obstacles)


def overlap(one: Box, other: Box) -> bool:
    across = min(one.right, other.right) > max(one.left, other.left)
    return across and min(one.top, other.top) > max(one.bottom, other.bottom)


def _inset(area: Box, by: float) -> Box:
    return Box(area.left + by, area.bottom + by, area.right - by, area.top - by)


def _text(axes: Axes, point: Labelled, style: Style) -> Text:
    return axes.text(
        point.x,
        point.y,
        point.text,
        fontsize=style.small,
        color=point.colour,
        ha="center",
        va="center",
        bbox={"facecolor": style.ground, "edgecolor": "none", "alpha": 0.85, "pad": 0.3},
        linespacing=_SPACING,
        parse_math=False,
        zorder=2.8,
    )


def _measure(axes: Axes, point: Labelled, text: Text, margin: float) -> Label:
    x, y = axes.transData.transform((point.x, point.y))
    size = text.get_window_extent()
    return Label(float(x), float(y), size.width + 2 * margin, size.height + margin)


def covered(axes: Axes, point: Labelled, style: Style) -> tuple[Box, Box, Box]:
    """What the marker, its bar across and its bar along cover, in pixels."""
    reach = (style.marker / 2 + 1) * style.dpi / 72
    (left, bottom), (right, top), (x, y) = axes.transData.transform(
        [(point.across[0], point.along[0]), (point.across[1], point.along[1]), (point.x, point.y)]
    )
    half = reach * 0.5  # of a bar with its caps
    marker = Box(float(x - reach), float(y - reach), float(x + reach), float(y + reach))
    across = Box(float(min(left, marker.left)), float(y - half), float(max(right, marker.right)), float(y + half))
    along = Box(float(x - half), float(min(bottom, marker.bottom)), float(x + half), float(max(top, marker.top)))
    return (marker, across, along)


def _move(axes: Axes, point: Labelled, text: Text, label: Label, box: Box, style: Style) -> None:
    """The line starts where the bar towards the label ends, for drawn over the bar it would look like a part of it."""
    low, high = (float(axes.transData.transform((point.x, end))[1]) for end in point.along)
    start = high if box.bottom >= high else low if box.top <= low else label.y
    to_data = axes.transData.inverted()
    middle_x, middle_y = to_data.transform(((box.left + box.right) / 2, (box.bottom + box.top) / 2))
    text.set_position((float(middle_x), float(middle_y)))
    (x, y), (end_x, end_y) = to_data.transform([(label.x, start), label.line_end(box)])
    axes.plot([x, end_x], [y, end_y], color=style.muted, linewidth=style.line / 2, zorder=2)
