"""Speed against fidelity or quality, and which methods no other beats in both; without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.axes import check_image, dress, new_figure, save
from benchctl.analysis.plots.curves import Curve
from benchctl.analysis.plots.heights import Height
from benchctl.analysis.plots.pareto_key import draw_key, size_of
from benchctl.analysis.plots.pareto_names import Names, namings
from benchctl.analysis.plots.pareto_panel import Frame, curve_marks, draw_panel, frame, set_limits, write_names
from benchctl.analysis.plots.pareto_sheet import key_place, key_width, lay_out
from benchctl.analysis.plots.pareto_view import View
from benchctl.analysis.plots.pareto_view import view as view_of
from benchctl.analysis.plots.style import Mark, Style
from benchctl.errors import UserError

_MOST_PANELS = 12
_KEY_CUT = 10_000  # worse than any names that cover each other


def pareto(groups: Sequence[Group], path: Path, height: Height | None = None, style: Style | None = None) -> None:
    """Draw speed-up against `height` (token agreement, if not given), a panel for each group, and write it to `path`
    (see check_image).

    Raises UserError for runs without that figure, for too many groups, and when the file cannot be written.
    """
    check_image(path)
    save(draw_pareto(groups, height or Height(), style or Style()), path)


def draw_pareto(groups: Sequence[Group], height: Height, style: Style) -> Figure:
    """The picture, named as fully as there is room: see pareto_names.namings. Raises UserError as `pareto` does."""
    if len(groups) > _MOST_PANELS:
        raise UserError(f"{len(groups)} panels are too many: name the files to plot, or the suites with --suite.")
    return draw_views([view_of(group, height) for group in groups], height, style)


def draw_views(views: Sequence[View], height: Height, style: Style) -> Figure:
    """With the fullest names that all stand free; where none do, with those that cover least. Dots are drawn when the
    names stand, for they are the slower part."""
    marks = curve_marks(style, list(dict.fromkeys(curve for view in views for curve in view.swept)))
    best: _Named | None = None
    for names in namings(views, short=style.slide_height is not None):
        named = _named(views, names, height, style, marks)
        if best is None or named.covering < best.covering:
            best = named
        if not named.covering:
            break
    assert best is not None
    for axes, view, inner in zip(best.panels, views, best.frames, strict=True):
        draw_panel(axes, view, inner, style, marks)
        if height.judge:
            axes.axhline(0, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
        dress(axes, style)
    return best.figure


@dataclass(frozen=True)
class _Named:
    """A picture with all its words and no dots yet; `covering` is how many names do not stand free."""

    figure: Figure
    panels: Sequence[Axes]
    frames: Sequence[Frame]
    covering: int


def _named(views: Sequence[View], names: Names, height: Height, style: Style, marks: Mapping[Curve, Mark]) -> _Named:
    groups = [view.group for view in views]
    figure = new_figure(style, 1.0)
    figure.set_layout_engine("none")
    place = key_place(groups, style, height, is_long=bool(names.numbers))
    told = marks if names.curves else {}
    key = draw_key(figure, views, names, style, marks, told, key_width(groups, style, height, place), place == "below")
    sheet = lay_out(groups, style, height, size_of(key, figure), place)
    frames = [frame(view, names, style, sheet.panel_width, sheet.room) for view in views]
    figure.set_size_inches(style.width, sheet.height([inner.height for inner in frames]))
    rectangles = sheet.rectangles([inner.height for inner in frames])
    panels = [figure.add_axes(rectangle) for rectangle in rectangles]
    for axes, view, inner in zip(panels, views, frames, strict=True):
        set_limits(axes, view, inner, style)
    sheet.name_axes(figure, panels)
    sheet.write_titles(figure, rectangles)
    key.set_bbox_to_anchor(sheet.key_corner(figure, rectangles))
    covering = sum(write_names(*panel, names, style) for panel in zip(panels, views, frames, strict=True))
    return _Named(figure, panels, frames, covering + (0 if sheet.holds_key else _KEY_CUT))
