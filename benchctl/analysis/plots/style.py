"""Colours, sizes and texts of pictures: light or dark; on a screen, in one column of a paper, or on a slide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import floor, log10
from typing import Final, Literal

from matplotlib.font_manager import FontProperties, findfont, get_font

from benchctl.analysis.comparison import Group
from benchctl.analysis.names import short_labels
from benchctl.records.schema import Scalar

Dashes = Literal["-"] | tuple[int, tuple[float, ...]]

_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d")
_HATCHES = ("", "///", "...", "xx", "\\\\\\", "---", "++")
_DASHES: Final[tuple[Dashes, ...]] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1.2)))


@dataclass(frozen=True)
class Mark:
    """The look of one method. Besides its colour it has a marker, a hatch for bars and dashes for lines, so that it is
    recognised without colour. `hatch` and `dashes` are matplotlib's."""

    colour: str
    marker: str
    hatch: str
    dashes: Dashes


@dataclass(frozen=True)
class _Theme:
    """Colours as #RRGGBB; `muted` is for secondary text and lines."""

    ground: str
    ink: str
    muted: str
    grid: str
    colours: tuple[str, ...]


@dataclass(frozen=True)
class _Size:
    """`width` and `slide_height` are inches; only a slide has a fixed height. Fonts, lines and markers are points.
    `title`, `text` and `small` are font sizes; no text is smaller than `small`."""

    width: float
    slide_height: float | None
    dpi: int
    title: float
    text: float
    small: float
    line: float
    marker: float


# Every colour has a contrast of at least 3:1 with its ground (`muted`, for text, 4.5:1). All differ by 25 in CIELAB,
# also under red or green colour blindness (Machado, Oliveira and Fernandes 2009). A search around the blue and the
# vermillion of Okabe and Ito found them. The n-th colour has the same role on both grounds.
THEMES: Final = {
    "light": _Theme(
        ground="#FFFFFF",
        ink="#1A1A1A",
        muted="#5C6167",
        grid="#E7E7E7",
        colours=("#0072B2", "#D55E00", "#A53C69", "#5A00F0", "#96875A", "#692D00"),
    ),
    "dark": _Theme(
        ground="#14171A",
        ink="#F2F2F2",
        muted="#A9B0B7",
        grid="#2B3036",
        colours=("#56B4E9", "#E8622A", "#C36987", "#1E69FF", "#FFD200", "#A5E196"),
    ),
}
SIZES: Final = {
    "screen": _Size(7.2, None, 160, title=10, text=9, small=8, line=1.4, marker=6.5),
    "column": _Size(3.35, None, 300, title=8, text=7.5, small=7, line=1.0, marker=4.5),
    "slide": _Size(40 / 3, 7.5, 144, title=20, text=17, small=16, line=2.4, marker=12),
}


@dataclass(frozen=True)
class Style(_Theme, _Size):
    """A theme and a size, by their names and with all their values. `style_of` makes one."""

    theme: str
    size: str

    def mark(self, number: int) -> Mark:
        """The look of method `number` (from 0). The first 78 differ in marker or colour. Before the 31st, no two of
        one colour share a marker, hatch or dashes."""
        return Mark(
            colour=self.colours[number % len(self.colours)],
            marker=_MARKERS[number % len(_MARKERS)],
            hatch=_HATCHES[number % len(_HATCHES)],
            dashes=_DASHES[number % len(_DASHES)],
        )

    def faded(self, colour: str, share: float = 0.55) -> str:
        """`share` of the colour mixed with ground. Opaque, so that overlapping marks do not mix."""
        channels = [(int(colour[at : at + 2], 16), int(self.ground[at : at + 2], 16)) for at in (1, 3, 5)]
        return "#" + "".join(f"{round(share * own + (1 - share) * ground):02X}" for own, ground in channels)


def style_of(theme: str = "light", size: str = "screen") -> Style:
    """`theme` is a name in THEMES, `size` one in SIZES."""
    return Style(**vars(SIZES[size]), **vars(THEMES[theme]), theme=theme, size=size)


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


def is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown_labels(labels: Sequence[str], style: Style, groups: Sequence[Group]) -> dict[str, str]:
    """What a picture calls each label: a slide has room for short labels only. A refused one is marked as such."""
    names = short_labels(labels) if style.size == "slide" else {label: label for label in labels}
    refused = {method.label for group in groups for method in group.pooled.methods if method.refused}
    return {label: f"✗ refused: {name}" if label in refused else name for label, name in names.items()}


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
