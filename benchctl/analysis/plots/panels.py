"""Pictures with a part for each group of runs that may be compared, each under the words that say what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

from matplotlib.artist import Artist
from matplotlib.figure import Figure, SubFigure

from benchctl.analysis.comparison import Group
from benchctl.analysis.html.plot import short_labels
from benchctl.analysis.plots.axes import (
    LINE_SPACING,
    new_figure,
    settle,
    shared_headline,
    text_inches,
    title_lines,
    wrapped,
)
from benchctl.analysis.plots.style import Style
from benchctl.errors import UserError

# The five suites, each with a panel, and one more; a second one on a slide squeezes words into each other.
_MOST_GROUPS: Final = {"page": 6, "column": 6, "slide": 1}
_TOUCH = 0.1  # of the height of letters, by which the boxes around two names may overlap
_HANDLE = 6.0  # of a legend, with the gaps beside it, in heights of the font


def check_groups(groups: Sequence[Group], style: Style) -> None:
    """Raises UserError for more groups than a picture of this size has room for, and for one without any figures."""
    most = _MOST_GROUPS[style.size]
    if len(groups) > most:
        raise UserError(
            f"{len(groups)} panels are too many for one picture of this size, which has room for {most}: name the "
            "files to plot, or the suites with --suite."
        )
    for group in groups:
        if not any(method.prompts for method in group.pooled.methods):
            raise UserError(f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.")


def check_names(figure: Figure, style: Style) -> None:
    """Raises UserError where the names beside rows cover each other on a slide, which grows no higher for them."""
    if style.slide_height is None:
        return
    settle(figure)
    for axes in figure.axes:
        names = [label.get_window_extent() for label in axes.get_yticklabels() if label.get_text()]
        rows = sorted(names, key=lambda box: box.y0)
        if any(lower.y1 - upper.y0 > _TOUCH * style.small * style.dpi / 72 for lower, upper in pairwise(rows)):
            raise UserError("names cover each other on a slide: choose fewer with --method, or --size page.")


def parted(groups: Sequence[Group], style: Style, heights: Sequence[float]) -> tuple[Figure, tuple[SubFigure, ...]]:
    """A figure with a part of each of these `heights`, in inches without its title, for each group.

    Raises UserError as `check_groups` does.
    """
    check_groups(groups, style)
    titles = list(_titles(groups, style))
    above = [(title.count("\n") + 2) * line_inches(style, style.title) for title in titles]
    whole = [height + more for height, more in zip(heights, above, strict=True)]
    figure = new_figure(style, sum(whole))
    parts = tuple(figure.subfigures(len(groups), 1, squeeze=False, height_ratios=whole)[:, 0])
    for part, title in zip(parts, titles, strict=True):
        part.set_facecolor(style.ground)
        part.suptitle(title, x=0.01, ha="left", fontsize=style.title, color=style.ink)
    return figure, parts


def line_inches(style: Style, points: float = 0) -> float:
    """The height of a line of text of `points`; of small text, if not given."""
    return (points or style.small) * LINE_SPACING / 72


def _titles(groups: Sequence[Group], style: Style) -> Iterator[str]:
    """The headline stands above the first part alone, where all have the same."""
    shared = bool(shared_headline(groups))
    for number, group in enumerate(groups):
        yield wrapped(title_lines(group, with_headline=not (shared and number)), style, style.title)


def names(labels: Sequence[str], style: Style) -> dict[str, str]:
    """What labels are called in a picture: a slide has no room for options that tell none of them apart."""
    return short_labels(labels) if style.size == "slide" else {label: label for label in labels}


def broken(name: str, points: float, inches: float) -> str:
    """A label, or what `names` calls it, in lines of up to `inches` in a font of `points`, broken after its bracket,
    commas and spaces; a longer option stays whole.

    `two_model[draft_tokens=6,confidence=0.5]` in narrow lines: `two_model[`, `draft_tokens=6,`, `confidence=0.5]`.
    """
    lines = [""]
    for part in re.findall(r"[^\[, ]+[\[, ]?", name):
        if lines[-1] and text_inches(lines[-1] + part.rstrip(), points)[0] > inches:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def legend_columns(names: Sequence[str], style: Style) -> int:
    """How many fit side by side below a part, each with its handle; alike in all rows."""
    longest = max(text_inches(name, style.small)[0] for name in names) + _HANDLE * style.small / 72
    columns = max(1, min(len(names), int(0.96 * style.width / longest)))
    return ceil(len(names) / ceil(len(names) / columns))  # no last row of a single one where two rows can be alike


def add_legend(part: SubFigure, handles: Sequence[Artist], names: Sequence[str], style: Style) -> None:
    """Below all of the part."""
    part.legend(
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


def three_digits(value: float) -> str:
    """A number of three digits, or two behind the point: 1230, 123, 12.3, 1.23, 0.01; −12.3."""
    behind = 2 - max(0, floor(log10(abs(value)))) if value else 2
    digits = f"{value:.{max(0, behind)}f}"
    return "0.00" if digits == "-0.00" else digits.replace("-", "−")
