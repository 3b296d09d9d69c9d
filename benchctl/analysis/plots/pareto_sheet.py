"""Where the parts of a Pareto picture stand: panels side by side, titles above them, names of axes, and the key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.axes import LINE_SPACING, shared_headline, text_inches, title_lines, wrapped
from benchctl.analysis.plots.heights import Height
from benchctl.analysis.plots.pareto_panel import Room
from benchctl.analysis.plots.style import Style

_ROOMS = {"page": Room(3.3, is_fixed=False, most_band=4.5), "column": Room(2.3, is_fixed=False, most_band=4.0)}
_SMALL_ROOMS = {"page": Room(2.2, is_fixed=False, most_band=3.0), "column": Room(1.8, is_fixed=False, most_band=3.0)}
_COLUMNS = {"page": 2, "column": 1, "slide": 3}
_TICK = 9.0  # points, of a tick and its distances
_KEY_MOST = 0.3  # of a slide's height, for a key below the panels
_KEY_BESIDE = 0.42  # of its width

Rectangle = tuple[float, float, float, float]
KeyPlace = Literal["below", "beside", "gap"]


@dataclass(frozen=True)
class Sheet:
    """Sizes are inches. `head` stands above all panels, one of `titles` above each; names of axes stand at each row and
    column, or `once`. `key` is the key's width and height, `key_place` where it stands: below the panels, beside the
    only one, or in the gap that the last row leaves."""

    style: Style
    columns: int
    head: str
    titles: tuple[str, ...]
    x_name: str
    y_name: str
    once: bool
    key: tuple[float, float]
    key_place: KeyPlace

    @property
    def gap(self) -> float:
        return self.style.small / 72

    @property
    def rows(self) -> int:
        return ceil(len(self.titles) / self.columns)

    @property
    def above(self) -> float:
        return 0.5 * self.gap + self._lines(self.head, self.style.title)

    @property
    def panel_width(self) -> float:
        beside = self.key[0] + self.gap if self.key_place == "beside" else 0.0
        return (self.style.width - self._left - beside) / self.columns - self._ticks - self.gap

    @property
    def room(self) -> Room:
        """For a panel's data."""
        if self.style.slide_height is None:
            return _ROOMS[self.style.size] if len(self.titles) == 1 else _SMALL_ROOMS[self.style.size]
        taken = self.above + self._below + self.rows * (self._title + self._bottom)
        return Room(max((self.style.slide_height - taken) / self.rows, 0.5), is_fixed=True)

    @property
    def holds_key(self) -> bool:
        """Whether the key fits: a slide has one size."""
        if self.style.slide_height is None:
            return True
        if self.key_place == "gap":
            return self.key[1] <= self.room.height + self._title + self._bottom
        below = self.key_place == "below"
        return self.key[1] <= (_KEY_MOST * self.style.slide_height if below else self.style.slide_height - self.above)

    def height(self, panels: Sequence[float]) -> float:
        """Of the picture, with panels so high."""
        rows = sum(max(row) + self._title + self._bottom for row in self._in_rows(panels))
        return self.style.slide_height or self.above + rows + self._below

    def rectangles(self, panels: Sequence[float]) -> list[Rectangle]:
        """Left, bottom, width and height of each panel's data, as shares of the picture."""
        high, wide = self.height(panels), self.style.width
        top, found = high - self.above, []
        for row in self._in_rows(panels):
            for place, panel in enumerate(row):
                left = self._left + self._ticks + place * self._pitch
                bottom = top - self._title - panel
                found.append((left / wide, bottom / high, self.panel_width / wide, panel / high))
            top -= self._title + max(row) + self._bottom
        return found

    def key_corner(self, figure: Figure, rectangles: Sequence[Rectangle]) -> tuple[float, float]:
        """The upper left corner of the key, as shares of the picture."""
        high, wide = figure.get_figheight(), self.style.width
        if self.key_place == "below":
            return 0.5 * self.gap / wide, (self.key[1] + 0.25 * self.gap) / high
        if self.key_place == "beside":
            return 1 - (self.key[0] + 0.5 * self.gap) / wide, 1 - self.above / high
        left, bottom, width, tall = rectangles[-1]
        return left + width + self.gap / wide, bottom + tall + self._title / high

    def write_titles(self, figure: Figure, rectangles: Sequence[Rectangle]) -> None:
        high, wide, style = figure.get_figheight(), self.style.width, self.style
        left = 0.5 * self.gap / wide
        figure.text(left, 1 - 0.5 * self.gap / high, self.head, va="top", fontsize=style.title, color=style.ink)
        for number, (title, (x, bottom, _, tall)) in enumerate(zip(self.titles, rectangles, strict=True)):
            start = left if number % self.columns == 0 and not self.once else x - self._ticks / wide
            figure.text(
                start, bottom + tall + 0.5 * self.gap / high, title, va="bottom", fontsize=style.title, color=style.ink
            )

    def name_axes(self, figure: Figure, panels: Sequence[Axes]) -> None:
        """The vertical axis at the left of each row and the horizontal one below each column, or both once."""
        if not self.once:
            for number, axes in enumerate(panels):
                if number % self.columns == 0 and axes.get_yticks().size:
                    axes.set_ylabel(self.y_name)
                if number + self.columns >= len(panels):
                    axes.set_xlabel(self.x_name)
            return
        places = [axes.get_position() for axes in panels]
        last = places[self.columns * (self.rows - 1) :] if self.key_place == "gap" else places
        middle_x = (min(place.x0 for place in last) + max(place.x1 for place in last)) / 2
        middle_y = (min(place.y0 for place in places) + max(place.y1 for place in places)) / 2
        high, wide, style = figure.get_figheight(), self.style.width, self.style
        words: dict[str, Any] = {"fontsize": style.text, "color": style.ink, "ma": "center"}
        lowest = (self._below - self._lines(self.x_name, style.text)) / high
        figure.text(middle_x, lowest, self.x_name, ha="center", va="bottom", **words)
        figure.text(0.5 * self.gap / wide, middle_y, self.y_name, ha="left", va="center", rotation=90, **words)

    @property
    def _ticks(self) -> float:
        """The width of numbers at a vertical axis."""
        return text_inches("0.00", self.style.small)[0] + (_TICK + 0.5 * self.style.small) / 72

    @property
    def _left(self) -> float:
        """What the name of the vertical axis takes."""
        return self.gap + self._lines(self.y_name, self.style.text)

    @property
    def _bottom(self) -> float:
        """The height of numbers at a horizontal axis."""
        return (_TICK + LINE_SPACING * self.style.small) / 72

    @property
    def _pitch(self) -> float:
        return self._ticks + self.panel_width + self.gap

    @property
    def _title(self) -> float:
        return max(self._lines(title, self.style.title) for title in self.titles) + 0.8 * self.gap

    @property
    def _below(self) -> float:
        key = self.key[1] if self.key_place == "below" else 0.0
        return self._lines(self.x_name, self.style.text) + 0.8 * self.gap + key

    def _in_rows(self, panels: Sequence[float]) -> list[Sequence[float]]:
        return [panels[start : start + self.columns] for start in range(0, len(panels), self.columns)]

    def _lines(self, text: str, points: float) -> float:
        return (text.count("\n") + 1) * points * LINE_SPACING / 72 if text else 0.0


def key_place(groups: Sequence[Group], style: Style, height: Height, is_long: bool) -> KeyPlace:
    """Below, unless the key is long and the picture is a slide, which has no more room there."""
    if style.slide_height is None or not is_long:
        return "below"
    if len(groups) == 1:
        return "beside"
    return "gap" if len(groups) % _columns(groups, style, height) else "below"


def key_width(groups: Sequence[Group], style: Style, height: Height, place: KeyPlace) -> float:
    """How wide a key may be."""
    whole = style.width - style.small / 72
    if place == "below":
        return whole
    return _KEY_BESIDE * whole if place == "beside" else 0.92 * whole / _columns(groups, style, height)


def lay_out(groups: Sequence[Group], style: Style, height: Height, key: tuple[float, float], place: KeyPlace) -> Sheet:
    """The sheet of panels for `groups`."""
    columns, once = _columns(groups, style, height), style.slide_height is not None and len(groups) > 1
    width = (style.width - (key[0] if place == "beside" else 0)) / columns - 1.5 * style.small / 72
    across = len(groups) % columns if place == "gap" else columns
    x_width = (across * (style.width - 1.5) / columns if once else width) - 5 * style.text / 72
    head = [shared_headline(groups)] if len(groups) > 1 and shared_headline(groups) else []
    titles = [title_lines(group, with_headline=not head) for group in groups]
    if place == "beside":
        head, titles = titles[0], [[]]
    high = _ROOMS[style.size].height if style.size in _ROOMS else 4.5
    return Sheet(
        style=style,
        columns=columns,
        head=wrapped(head, style, style.title),
        titles=tuple(wrapped(lines, style, style.title, width) for lines in titles),
        x_name=_broken(_x_names(groups)[-1], style, x_width),
        y_name=wrapped(height.title(groups[0]).split("\n"), style, style.text, high),
        once=once,
        key=key,
        key_place=place,
    )


def _broken(name: str, style: Style, width: float) -> str:
    """In as few lines as fit, before its brackets if that does."""
    whole = wrapped([name], style, style.text, width)
    parts = wrapped(name.replace(" (", "\n(").split("\n"), style, style.text, width)
    return parts if 0 < whole.count("\n") >= parts.count("\n") else whole


def _x_names(groups: Sequence[Group]) -> list[str]:
    return [f"speed-up over {group.run.baseline}, whole answers (bars: 95% interval)" for group in groups]


def _columns(groups: Sequence[Group], style: Style, height: Height) -> int:
    """Side by side where the axes are the same."""
    alike = len(set(_x_names(groups))) == len({height.title(group) for group in groups}) == 1
    most = 2 if len(groups) in (2, 4) else _COLUMNS["slide"]
    return min(len(groups), most if style.size == "slide" else _COLUMNS[style.size]) if alike else 1
