"""What all pictures share: where they may be written, in which formats, and how figures are made, dressed and saved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.style import Style
from benchctl.errors import UserError
from benchctl.records.writer import check_writable

LINE_SPACING: Final = 1.2  # of text, in heights of the font: matplotlib's own
_FINE: Final = 288  # dots per inch, for measuring
ENDINGS = (".png", ".svg", ".pdf")
_UNDATED: Final = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_image(path: Path) -> None:
    """Raises UserError if `path` does not end as a picture that can be written here, or cannot be written."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: cannot tell which format to write. End --out in {', '.join(ENDINGS)}.")
    check_writable(path)


def new_figure(style: Style, height: float) -> Figure:
    """A figure without matplotlib's global state, as wide as the style says and `height` inches high (a slide has its
    own height); its axes are put where there is room for what stands beside them."""
    size = (style.width, style.slide_height or height)
    figure = Figure(figsize=size, dpi=style.dpi, facecolor=style.ground, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, style: Style) -> None:
    """Colours and sizes of what surrounds the data: frame, grid, ticks, title, names of axes, legend. Call it last."""
    axes.set_facecolor(style.ground)
    axes.grid(color=style.grid, linewidth=style.line / 2, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=style.muted, linewidth=style.line / 2)
    axes.tick_params(which="both", colors=style.muted, labelcolor=style.ink, labelsize=style.small)
    for name in (axes.xaxis.label, axes.yaxis.label):
        name.set(color=style.ink, fontsize=style.text)
    for place in ("left", "center", "right"):
        axes.set_title(axes.get_title(place), loc=place, color=style.ink, fontsize=style.title)
    if legend := axes.get_legend():
        legend.set_frame_on(False)
        for text in legend.get_texts():
            text.set(color=style.ink, fontsize=style.small)


def settle(figure: Figure) -> None:
    """Put everything in its place, once and for all, so that positions are known: what is added later moves nothing.
    Dollar signs stay what they are, for names in files are no formulas."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def save(figure: Figure, path: Path) -> None:
    """Write the picture: text stays text, to be searched and edited, and equal data give equal bytes.

    Raises UserError when the file cannot be written.
    """
    settle(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "benchctl"}):
            figure.savefig(path, metadata=_UNDATED[path.suffix.lower()])
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Give another --out.") from error


@cache
def text_inches(text: str, points: float) -> tuple[float, float]:
    """Width and height of text, which may have several lines, before it is drawn."""
    font = get_font(findfont(FontProperties()))
    font.set_size(points, _FINE)
    widths = []
    for line in text.split("\n"):
        font.set_text(line)
        widths.append(font.get_width_height()[0] / 64)
    return max(widths) / _FINE, len(widths) * points * LINE_SPACING / 72


def in_lines(text: str, points: float, inches: float, indent: str = "") -> list[str]:
    """The text in lines no wider than `inches`, broken at spaces, those after the first behind `indent`. A word that is
    wider stays whole."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if text_inches(longer, points)[0] <= inches:
            lines[-1] = longer
        elif word:
            lines.append(indent + word)
    return [line.rstrip() for line in lines]


def headline(group: Group) -> str:
    """The target, where it ran, and the baseline."""
    run = group.run
    return f"{run.target.name} on {run.device}, {run.dtype}, threads: {run.threads}, baseline: {run.baseline}"


def prompts_line(group: Group) -> str:
    """The suites, and how many prompts."""
    run, suites = group.run, group.suites[:-1] or group.suites
    prompts = max(method.prompts for method in group.pooled.methods)
    batches = f" in batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    names = ", ".join(group.title(suite) for suite in suites)
    return f"{names}: {prompts} prompt{'s' if prompts != 1 else ''}{batches}"


def length_line(group: Group) -> str:
    return f"up to {group.run.max_new_tokens} new tokens"


def apart_line(group: Group) -> str:
    """What keeps a group from being compared with the first; "" where nothing does."""
    differing = "; ".join(f"{found.field} is {found.second}" for found in group.differs)
    return f"not comparable with the first panel: {differing}" if differing else ""


def title_lines(group: Group, *, with_headline: bool = True) -> list[str]:
    """What stands above a panel; the headline may stand above all panels instead."""
    lines = [prompts_line(group), apart_line(group)]
    if with_headline:
        lines = [headline(group), f"{prompts_line(group)}, {length_line(group)}", apart_line(group)]
    return [line for line in lines if line]


def shared_headline(groups: Sequence[Group]) -> str:
    """The headline, where all panels are of one; "" where each needs its own."""
    found = {f"{headline(group)}, {length_line(group)}" for group in groups}
    return found.pop() if len(found) == 1 else ""


def wrapped(lines: Sequence[str], style: Style, points: float, inches: float | None = None) -> str:
    """The lines, each broken where it would be wider than `inches` (than the picture, if not given) in a font of
    `points`."""
    width = inches or style.width - style.small / 72
    return "\n".join(part for line in lines for part in in_lines(line, points, width))
