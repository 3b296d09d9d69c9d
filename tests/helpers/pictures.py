"""What a test can see of a picture: its texts, whether they can be read, and what lies where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from itertools import combinations
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots import catalogue
from benchctl.analysis.plots.axes import save, settle
from benchctl.analysis.plots.catalogue import Drawing, Request
from benchctl.analysis.plots.style import Style

LOOKS = (("screen", ".svg"), ("column", ".png"))
_TOUCH = 1.5  # pixels by which the boxes around two texts may overlap, for letters do not fill them


def texts(path: Path) -> str:
    """The texts of an SVG picture, line by line."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"), re.DOTALL)
    return "\n".join(unescape(re.sub(r"<[^>]*>", "", text)).strip() for text in found)


def draw(name: str, groups: Sequence[Group], style: Style, **asked: Any) -> Drawing:
    """A picture by its name, as `benchctl plot` draws it."""
    return catalogue.plot(name).draw(groups, Request(style, **asked))


def figure_of(name: str, groups: Sequence[Group], style: Style, **asked: Any) -> Figure:
    """The figure of a picture, laid out."""
    figure = draw(name, groups, style, **asked).figure
    settle(figure)
    return figure


def write_picture(name: str, groups: Sequence[Group], path: Path, style: Style, **asked: Any) -> tuple[str, ...]:
    """Draw and write a picture; its notes."""
    drawing = draw(name, groups, style, **asked)
    save(drawing.figure, path)
    return tuple(drawing.notes)


def assert_readable(figure: Figure, style: Style) -> None:
    """No text leaves the picture, none is smaller than small, none lies on another one."""
    boxes = list(_boxes(figure))
    assert boxes
    whole = figure.bbox.padded(1)
    for text, box in boxes:
        said = text.get_text()
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, said
        assert float(text.get_fontsize()) >= style.small, said
    for (one, box), (other, other_box) in combinations(boxes, 2):
        shared = Bbox.intersection(box, other_box)
        clear = shared is None or min(shared.width, shared.height) <= _TOUCH
        assert clear, f"{one.get_text()!r} lies on {other.get_text()!r}"


def assert_picture_readable(name: str, groups: Sequence[Group], style: Style, path: Path) -> None:
    """The same of a picture by its name, which can be written to this path."""
    write_picture(name, groups, path, style)
    assert_readable(figure_of(name, groups, style), style)


def words_of(figure: Figure) -> list[Text]:
    """Every text that can be seen."""
    return [text for text, _ in _boxes(figure)]


def _boxes(figure: Figure) -> Iterator[tuple[Text, Bbox]]:
    undrawn = set(_undrawn(figure))
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in undrawn:
            yield text, text.get_window_extent()


def _undrawn(figure: Figure) -> Iterator[int]:
    """The labels of ticks beyond the ends of an axis, and all texts of axes that are off or hidden."""
    for axes in figure.axes:
        if not axes.get_visible():
            yield from map(id, axes.findobj(Text))
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not (axes.axison and low <= tick.get_loc() <= high):
                    yield from (id(tick.label1), id(tick.label2))
