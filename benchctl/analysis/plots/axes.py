"""What all pictures share: figures with a panel per group, the dress of axes, legends, and writing files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import IO, Final

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.style import Style, line_inches, prompts_line, settings, text_inches, wrapped
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError
from benchctl.records.writer import check_writable

_MOST_ROWS = 6  # of panels on a screen; elsewhere there is room for one panel
_BOLD = 1.15  # width of bold letters by that of others
_HANDLE = 3.6  # width of a legend's handle with its gaps, in font sizes
# Without dates and versions, so that equal data give equal bytes.
_METADATA: Final = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_image(path: Path) -> None:
    """Raises UserError if `path` has no ending of a picture format, or cannot be written."""
    if path.suffix.lower() not in _METADATA:
        raise UserError(
            "unknown_picture_format",
            f"{path}: the ending gives no picture format. End --out in {', '.join(_METADATA)}.",
        )
    check_writable(path)


def new_figure(style: Style, height: float) -> Figure:
    """A figure without matplotlib's global state, `style.width` inches wide and `height` inches high, at most
    `style.most_height`: a column of a paper has one."""
    size = (style.width, min(height, style.most_height))
    figure = Figure(figsize=size, dpi=style.dpi, facecolor=style.ground)
    pad = style.small / 240
    figure.set_layout_engine("constrained", w_pad=pad, h_pad=pad)
    FigureCanvasAgg(figure)
    return figure


def check_groups(groups: Sequence[Group], style: Style, columns: int = 1) -> None:
    """Raises UserError for more groups than there is room for in rows of `columns`, and for one without figures."""
    most = _MOST_ROWS * columns if style.size == "screen" else 1
    if len(groups) > most:
        raise UserError(
            "too_many_panels",
            f"{len(groups)} panels are too many for one picture of this size, which has room for {most}: name the "
            "files to plot, choose suites with --suite, or use --size screen.",
        )
    for group in groups:
        if not any(method.prompts for method in group.pooled.methods):
            raise UserError(
                "no_baseline_answers",
                f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.",
            )


def new_panels(
    groups: Sequence[Group],
    titles: Sequence[str],
    style: Style,
    heights: Sequence[float],
    *,
    columns: int = 1,
    keys: Sequence[Sequence[Artist]] = (),
) -> tuple[Figure, tuple[SubFigure, ...]]:
    """A figure with a panel for each group, and legends of the artists in `keys` below all panels. Above each panel
    stand its title, and its settings in small type.

    `heights` are inches without titles; in a column panels shrink to the height of the picture.
    Raises UserError as `check_groups` does.
    """
    check_groups(groups, style, columns)
    columns = min(columns, len(groups))
    margin, gap = style.small / 72, 0.3 * line_inches(style)
    heads = list(_heads(groups, titles, style, style.width / columns - 2 * margin))
    rows = [range(at, min(at + columns, len(groups))) for at in range(0, len(groups), columns)]
    head_inches = [max(heads[number].inches(style) for number in row) + 2.5 * gap for row in rows]
    body_inches = [max(heights[number] for number in row) for row in rows]
    key_inches = [legend_inches(key, style) for key in keys if key]
    fixed = sum(head_inches) + sum(key_inches)
    figure = new_figure(style, fixed + sum(body_inches))
    scale = (figure.get_figheight() - fixed) / sum(body_inches)
    cells = [head + scale * body for head, body in zip(head_inches, body_inches, strict=True)]
    upper, *below = figure.subfigures(
        1 + len(key_inches), 1, squeeze=False, height_ratios=[sum(cells), *key_inches]
    ).flat
    for part, key in zip(below, filter(None, keys), strict=True):
        _draw_legend(part, key, style)
    grid = upper.subfigures(len(rows), columns, squeeze=False, height_ratios=cells)
    panels = []
    for number, head in enumerate(heads):
        inches, cell = head_inches[number // columns], cells[number // columns]
        top, panel = grid.flat[number].subfigures(2, 1, squeeze=False, height_ratios=(inches, cell - inches)).flat
        left, above = margin * columns / style.width, 1 - gap / inches
        second_line = above - (head.title_inches(style) + gap / 2) / inches
        top.text(left, above, head.title, va="top", fontsize=style.title, fontweight="bold", color=style.ink)
        top.text(left, second_line, head.details, va="top", fontsize=style.small, color=style.muted)
        panels.append(panel)
    for part in figure.findobj(SubFigure):
        part.set_facecolor(style.ground)
    return figure, tuple(panels)


@dataclass(frozen=True)
class _Head:
    """What stands above a panel, in lines."""

    title: str
    details: str

    def title_inches(self, style: Style) -> float:
        return (self.title.count("\n") + 1) * line_inches(style, style.title)

    def inches(self, style: Style) -> float:
        return self.title_inches(style) + (self.details.count("\n") + 1) * line_inches(style)


def _heads(groups: Sequence[Group], titles: Sequence[str], style: Style, inches: float) -> Iterator[_Head]:
    """Settings that all panels share stand above the first only."""
    shared = len({settings(group) for group in groups}) == 1
    for number, (group, title) in enumerate(zip(groups, titles, strict=True)):
        details = "" if shared and number else f"{settings(group)}; "
        yield _Head(
            wrapped([title], style.title, inches / _BOLD),
            wrapped([details + prompts_line(group)], style.small, inches),
        )


def dress(axes: Axes, style: Style) -> None:
    """Set colours and sizes of frame, grid, ticks and axis names."""
    axes.set_facecolor(style.ground)
    axes.grid(color=style.grid, linewidth=style.line / 2, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=style.muted, linewidth=style.line / 2)
    axes.tick_params(which="both", colors=style.muted, labelcolor=style.ink, labelsize=style.small)
    for name in (axes.xaxis.label, axes.yaxis.label):
        name.set(color=style.ink, fontsize=style.text)


def reaches(estimates: Sequence[Estimate], missing: float = 0.0) -> tuple[list[float], list[float]]:
    """The lengths of error bars down and up; `missing` without an interval. Rounding may put an end beyond the
    value, in its last digit, which would be a negative length."""
    down, up = [], []
    for estimate in estimates:
        value, interval = estimate.value or 0.0, estimate.interval
        down.append(max(value - interval.low, 0.0) if interval else missing)
        up.append(max(interval.high - value, 0.0) if interval else missing)
    return down, up


def legend_columns(key: Sequence[Artist], style: Style) -> int:
    """How many columns of a legend fit side by side: all where they fit into one row, else of equal width, so that rows
    are about equally long."""
    widths = [text_inches(str(entry.get_label()), style.small) + _HANDLE * style.small / 72 for entry in key]
    if sum(widths) <= style.width:
        return len(key)
    columns = max(1, min(len(key), int(style.width / max(widths))))
    return ceil(len(key) / ceil(len(key) / columns))


def legend_inches(key: Sequence[Artist], style: Style) -> float:
    """The height of that legend."""
    lines = ceil(sum(str(entry.get_label()).count("\n") + 1 for entry in key) / legend_columns(key, style))
    return (lines * 1.25 + 0.4) * line_inches(style)


def _draw_legend(part: SubFigure, key: Sequence[Artist], style: Style) -> None:
    part.legend(
        handles=key,
        loc="center",
        borderpad=0,
        ncols=legend_columns(key, style),
        frameon=False,
        fontsize=style.small,
        labelcolor=style.ink,
        handlelength=1.6,
        handletextpad=0.6,
        columnspacing=1.2,
        labelspacing=0.25,
    )


def settle(figure: Figure) -> None:
    """Lay out the figure and freeze the layout, so that positions are known. Dollar signs in names are no formulas."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    # The solver of the layout leaves another rounding error each time, which would change the ids in an SVG.
    for part in figure.findobj(SubFigure):
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position().get_points().round(6)))


def save(figure: Figure, path: Path) -> None:
    """Write the picture. Text stays text, and equal data give equal bytes.

    Raises UserError when the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(figure, path, path.suffix.lower())
    except OSError as error:
        raise UserError("cannot_write", f"{path}: cannot be written: {error.strerror}. Give another --out.") from error


def svg(figure: Figure) -> str:
    """The picture as an SVG document."""
    text = io.StringIO()
    _write(figure, text, ".svg")
    return text.getvalue()


def _write(figure: Figure, target: Path | IO[str], ending: str) -> None:
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        settle(figure)
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "benchctl"}):
        figure.savefig(target, format=ending[1:], metadata=_METADATA[ending])
