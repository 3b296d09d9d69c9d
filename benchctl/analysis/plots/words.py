"""The words of a picture: how wide they are, where they break, and what titles and labels contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import floor, log10
from typing import Final

from matplotlib.font_manager import FontProperties, findfont, get_font

from benchctl.analysis.comparison import Group, label_lines
from benchctl.analysis.plots.style import Style

LINE_SPACING: Final = 1.2  # height of a line, in font sizes: matplotlib's own
_MEASURING_DPI: Final = 288


@cache
def text_inches(text: str, points: float) -> tuple[float, float]:
    """Width and height of a text of one or more lines, before it is drawn."""
    font = get_font(findfont(FontProperties()))
    font.set_size(points, _MEASURING_DPI)
    widths = []
    for line in text.split("\n"):
        font.set_text(line)
        widths.append(font.get_width_height()[0] / 64)
    return max(widths) / _MEASURING_DPI, len(widths) * points * LINE_SPACING / 72


def line_inches(style: Style, points: float = 0) -> float:
    """The height of a line of text of `points`; of small text, if not given."""
    return (points or style.small) * LINE_SPACING / 72


def in_lines(text: str, points: float, inches: float, indent: str = "") -> list[str]:
    """The text in lines no wider than `inches`, broken at spaces. Lines after the first begin with `indent`. A longer
    word stays whole."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if text_inches(longer, points)[0] <= inches:
            lines[-1] = longer
        elif word:
            lines.append(indent + word)
    return [line.rstrip() for line in lines]


def wrapped(lines: Sequence[str], style: Style, points: float, inches: float | None = None) -> str:
    """Each of the lines in a font of `points`, broken where it is wider than `inches` (default: the picture)."""
    width = inches or style.width - style.small / 72
    return "\n".join(piece for line in lines for piece in in_lines(line, points, width))


def broken_label(label: str, points: float, inches: float) -> str:
    """A label, also a short one, in lines of up to `inches`: broken after its bracket, commas and spaces. A longer
    option stays whole.

    `two_model[draft_tokens=6,confidence=0.5]` in narrow lines: `two_model[`, `draft_tokens=6,`, `confidence=0.5]`.
    """
    lines = [""]
    for piece in re.findall(r"[^\[, ]+[\[, ]?", label):
        if lines[-1] and text_inches(lines[-1] + piece.rstrip(), points)[0] > inches:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Each label as its name and the options in which it differs from other labels of that name.

    `m[a=1,b=2]`, `m[a=1,b=3]`, `n[a=1]` -> `m b=2`, `m b=3`, `n`.
    """
    shortened = {}
    for label in labels:
        same_name = [lines for other in labels if (lines := label_lines(other))[0] == label_lines(label)[0]]
        counts = Counter(line for lines in same_name for line in lines)
        name, *options = label_lines(label)
        shortened[label] = " ".join([name, *(option for option in options if counts[option] < len(same_name))])
    return shortened


def shown_labels(labels: Sequence[str], style: Style) -> dict[str, str]:
    """What a picture calls each label: a slide has room for short labels only."""
    return short_labels(labels) if style.size == "slide" else {label: label for label in labels}


def headline(group: Group) -> str:
    """The target, where it ran, and the baseline."""
    run = group.run
    return f"{run.target.name} on {run.device}, {run.dtype}, threads: {run.threads}, baseline: {run.baseline}"


def prompts_line(group: Group) -> str:
    """The suites and the number of prompts."""
    run, suites = group.run, group.suites[:-1] or group.suites
    prompts = max(method.prompts for method in group.pooled.methods)
    batches = f" in batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    names = ", ".join(group.title(suite) for suite in suites)
    return f"{names}: {prompts} prompt{'s' if prompts != 1 else ''}{batches}"


def title_lines(group: Group, *, with_headline: bool = True) -> list[str]:
    """The title of a panel; the headline may stand above all panels instead."""
    differences = "; ".join(f"{difference.field} is {difference.second}" for difference in group.differs)
    lines = [prompts_line(group)]
    if with_headline:
        lines = [headline(group), f"{lines[0]}, up to {group.run.max_new_tokens} new tokens"]
    return [*lines, f"not comparable with the first panel: {differences}"] if differences else lines


def shared_headline(groups: Sequence[Group]) -> str:
    """The headline that all groups share; "" where they differ."""
    headlines = {f"{headline(group)}, up to {group.run.max_new_tokens} new tokens" for group in groups}
    return headlines.pop() if len(headlines) == 1 else ""


def three_digits(value: float) -> str:
    """A number of three digits, or with two decimals: 1230, 123, 12.3, 1.23, 0.01; −12.3."""
    decimals = 2 - max(0, floor(log10(abs(value)))) if value else 2
    digits = f"{value:.{max(0, decimals)}f}"
    return "0.00" if digits == "-0.00" else digits.replace("-", "−")
