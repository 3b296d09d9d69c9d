"""What all pictures share: figures with a panel per group, the dress of axes, legends, and writing files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import pairwise
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

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.style import Style, line_inches, shared_headline, text_inches, title_lines, wrapped
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError
from benchctl.records.writer import check_writable

_MOST_GROUPS: Final = {"screen": 6, "column": 6, "slide": 1}
_TOUCH = 0.1  # of the height of letters: the boxes around two names may overlap by that much
_HANDLE = 6.0  # width of a legend's handle with its gaps, in font sizes
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
    """A figure without matplotlib's global state, `style.width` inches wide and `height` inches high. A slide has its
    own height."""
    size = (style.width, style.slide_height or height)
    figure = Figure(figsize=size, dpi=style.dpi, facecolor=style.ground, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_groups(groups: Sequence[Group], style: Style, most: int | None = None) -> None:
    """Raises UserError for more groups than `most` (default: as the size has room for), and for one without figures."""
    most = most or _MOST_GROUPS[style.size]
    if len(groups) > most:
        raise UserError(
            "too_many_panels",
            f"{len(groups)} panels are too many for one picture of this size, which has room for {most}: name the "
            "files to plot, or the suites with --suite.",
        )
    for group in groups:
        if not any(method.prompts for method in group.pooled.methods):
            raise UserError(
                "no_baseline_answers",
                f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.",
            )


def new_panels(groups: Sequence[Group], style: Style, heights: Sequence[float]) -> tuple[Figure, tuple[SubFigure, ...]]:
    """A figure with a titled panel for each group. `heights` are inches without titles.

    Raises UserError as `check_groups` does.
    """
    check_groups(groups, style)
    titles = list(_titles(groups, style))
    title_heights = [(title.count("\n") + 2) * line_inches(style, style.title) for title in titles]
    totals = [height + above for height, above in zip(heights, title_heights, strict=True)]
    figure = new_figure(style, sum(totals))
    panels = tuple(figure.subfigures(len(groups), 1, squeeze=False, height_ratios=totals)[:, 0])
    for panel, title in zip(panels, titles, strict=True):
        panel.set_facecolor(style.ground)
        panel.suptitle(title, x=0.01, ha="left", fontsize=style.title, color=style.ink)
    return figure, panels


def _titles(groups: Sequence[Group], style: Style) -> Iterator[str]:
    """A headline that all panels share stands above the first only."""
    shared = bool(shared_headline(groups))
    for number, group in enumerate(groups):
        yield wrapped(title_lines(group, with_headline=not (shared and number)), style, style.title)


def dress(axes: Axes, style: Style) -> None:
    """Set colours and sizes of frame, grid, ticks, title, axis names and legend. Call it last."""
    axes.set_facecolor(style.ground)
    axes.grid(color=style.grid, linewidth=style.line / 2, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=style.muted, linewidth=style.line / 2)
    axes.tick_params(which="both", colors=style.muted, labelcolor=style.ink, labelsize=style.small)
    for name in (axes.xaxis.label, axes.yaxis.label):
        name.set(color=style.ink, fontsize=style.text)
    for side in ("left", "center", "right"):
        axes.set_title(axes.get_title(side), loc=side, color=style.ink, fontsize=style.title)
    if legend := axes.get_legend():
        legend.set_frame_on(False)
        for text in legend.get_texts():
            text.set(color=style.ink, fontsize=style.small)


def reaches(estimates: Sequence[Estimate], missing: float = 0.0) -> tuple[list[float], list[float]]:
    """The lengths of error bars down and up; `missing` without an interval. A bootstrapped end may pass the value in
    its last digit, which would be a negative length."""
    down, up = [], []
    for estimate in estimates:
        value, interval = estimate.value or 0.0, estimate.interval
        down.append(max(value - interval.low, 0.0) if interval else missing)
        up.append(max(interval.high - value, 0.0) if interval else missing)
    return down, up


def legend_columns(names: Sequence[str], style: Style) -> int:
    """How many columns of a legend below a panel fit side by side, so that rows are about equally long."""
    longest = max(text_inches(name, style.small)[0] for name in names) + _HANDLE * style.small / 72
    columns = max(1, min(len(names), int(0.96 * style.width / longest)))
    return ceil(len(names) / ceil(len(names) / columns))


def legend_inches(names: Sequence[str], style: Style) -> float:
    """The height of that legend."""
    return ceil(len(names) / legend_columns(names, style)) * 1.25 * line_inches(style)


def add_legend(panel: Figure | SubFigure, handles: Sequence[Artist], names: Sequence[str], style: Style) -> None:
    """Below the whole panel."""
    panel.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=legend_columns(names, style),
        frameon=False,
        fontsize=style.small,
        labelcolor=style.ink,
        handlelength=3,
        columnspacing=1.5,
    )


def check_names(figure: Figure, style: Style) -> None:
    """Raises UserError where names of rows overlap on a slide, which cannot grow."""
    if style.slide_height is None:
        return
    settle(figure)
    for axes in figure.axes:
        names = [label.get_window_extent() for label in axes.get_yticklabels() if label.get_text()]
        rows = sorted(names, key=lambda box: box.y0)
        if any(lower.y1 - upper.y0 > _TOUCH * style.small * style.dpi / 72 for lower, upper in pairwise(rows)):
            raise UserError("names_overlap", "names overlap on a slide: choose fewer with --method, or --size screen.")


def settle(figure: Figure, column: Sequence[Axes] = (), inches: float = 0.0) -> None:
    """Lay out the figure and freeze the layout, so that positions are known. Dollar signs in names are no formulas.

    The figure's height changes so that the axes of `column`, which lie below each other, are `inches` high together.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    figure.draw_without_rendering()
    if len(column):
        missing = inches - sum(axes.get_window_extent().height for axes in column) / figure.dpi
        figure.set_figheight(figure.get_figheight() + missing)
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


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
