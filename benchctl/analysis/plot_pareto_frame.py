"""Where the data of a Pareto panel lie: the limits of its axes, its band of lossless methods, its stairs. Geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchctl.analysis.pareto_names import Names
from benchctl.analysis.pareto_view import Dot, View
from benchctl.analysis.plot_style import Style
from benchctl.analysis.plots import LINE_SPACING, in_lines, text_inches

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
