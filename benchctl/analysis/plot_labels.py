"""Labels beside the points of a plot, off each other and off the points' bars, each joined to its point by a line."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.text import Text

from benchctl.analysis.placing import Box, Label, place

_LABEL_POINTS = 8.5
_EDGE = 2  # pixels between labels and the frame


@dataclass(frozen=True)
class Labelled:
    """A point, both ends of its bars, and what stands beside it ("" for nothing: then it only is in the way)."""

    x: float
    y: float
    across: tuple[float, float]
    along: tuple[float, float]
    text: str
    colour: str


def write_labels(axes: Axes, points: Sequence[Labelled], marker_pixels: float) -> None:
    """Write each text near its point. The axes must have been drawn once, so that sizes are known."""
    told = [point for point in points if point.text]
    texts = [_text(axes, point) for point in told]
    labels = [_measure(axes, point, text) for point, text in zip(told, texts, strict=True)]
    frame = axes.get_window_extent()
    area = Box(frame.x0 + _EDGE, frame.y0 + _EDGE, frame.x1 - _EDGE, frame.y1 - _EDGE)
    obstacles = [box for point in points for box in _obstacles(axes, point, marker_pixels / 2 + 2)]
    for point, text, label, box in zip(told, texts, labels, place(labels, obstacles, area), strict=True):
        _move(axes, point, text, label, box)


def _text(axes: Axes, point: Labelled) -> Text:
    return axes.text(
        point.x,
        point.y,
        point.text,
        fontsize=_LABEL_POINTS,
        color=point.colour,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        ha="center",
        va="center",
        linespacing=1.05,
        zorder=4,
    )


def _measure(axes: Axes, point: Labelled, text: Text) -> Label:
    x, y = axes.transData.transform((point.x, point.y))
    size = text.get_window_extent()
    return Label(float(x), float(y), size.width + 10, size.height + 6)


def _obstacles(axes: Axes, point: Labelled, reach: float) -> tuple[Box, Box]:
    """The marker with its bar across, and with its bar along, in pixels."""
    (left, bottom), (right, top), (x, y) = axes.transData.transform(
        [(point.across[0], point.along[0]), (point.across[1], point.along[1]), (point.x, point.y)]
    )
    return (
        Box(float(min(left, x - reach)), float(y - reach), float(max(right, x + reach)), float(y + reach)),
        Box(float(x - reach), float(min(bottom, y - reach)), float(x + reach), float(max(top, y + reach))),
    )


def _move(axes: Axes, point: Labelled, text: Text, label: Label, box: Box) -> None:
    """The line starts where the bar towards the label ends, for drawn over the bar it would look like a part of it."""
    low, high = (float(axes.transData.transform((point.x, end))[1]) for end in point.along)
    start = high if box.bottom >= high else low if box.top <= low else label.y
    to_data = axes.transData.inverted()
    middle_x, middle_y = to_data.transform(((box.left + box.right) / 2, (box.bottom + box.top) / 2))
    text.set_position((float(middle_x), float(middle_y)))
    (x, y), (end_x, end_y) = to_data.transform([(label.x, start), label.line_end(box)])
    axes.plot([x, end_x], [y, end_y], color="#777777", linewidth=0.7, zorder=2)
