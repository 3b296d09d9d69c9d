"""Colours, sizes and texts of pictures, on a screen or in one column of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import floor, inf, log10
from typing import Final, Literal
from zlib import crc32

from matplotlib.font_manager import FontProperties, findfont, get_font

from benchctl.analysis.comparison import Group
from benchctl.analysis.names import short_labels
from benchctl.records.schema import Scalar

Dashes = Literal["-", ""] | tuple[int, tuple[float, ...]]
DASHES: Final[tuple[Dashes, ...]] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))  # matplotlib's

# Methods that have a colour of their own, in the order of `Style.colours`; all others share the last two colours.
_FAMILIES: Final = (
    *("two_model", "prompt_lookup", "lookahead", "medusa", "early_exit", "deed", "m2r2", "skip_decode"),
    "mixture_of_depths",
)


@dataclass(frozen=True)
class Style:
    """A size by its name, and all values of a picture of this size. SIZES has them.

    `width` and `most_height` are inches. Fonts, lines and markers are points. `title`, `text` and `small` are font
    sizes; no text is smaller than `small`. Colours are #RRGGBB; `muted` is for secondary text and lines.

    Every colour has a contrast of at least 3:1 with the ground (`muted`, for text, 4.5:1). All differ by 20 in CIELAB,
    also under red or green colour blindness (Machado, Oliveira and Fernandes 2009). A search around the blue and the
    vermillion of Okabe and Ito found them.
    """

    size: str
    width: float
    most_height: float
    dpi: int
    title: float
    text: float
    small: float
    line: float
    marker: float
    ground: str = "#FFFFFF"
    ink: str = "#1A1A1A"
    muted: str = "#5C6167"
    grid: str = "#E7E7E7"
    colours: tuple[str, ...] = (
        *("#0072B2", "#D55E00", "#00A27E", "#BD3FFC", "#0900FC", "#751200", "#900063", "#BD8751", "#1299AB"),
        *("#3F633F", "#092D99"),
    )

    def colour_of(self, label: str) -> str:
        """The colour of a label's method, the same in every picture. `m2r2_dynamic` has the colour of `m2r2`. The
        autoregressive baseline is drawn in ink."""
        name = label.partition("[")[0]
        if name == "autoregressive":
            return self.ink
        for number, family in enumerate(_FAMILIES):
            if name == family or name.startswith(f"{family}_"):
                return self.colours[number]
        others = self.colours[len(_FAMILIES) :]
        return others[crc32(name.encode()) % len(others)]

    def faded(self, colour: str, share: float = 0.55) -> str:
        """`share` of the colour mixed with ground. Opaque, so that overlapping marks do not mix."""
        channels = [(int(colour[at : at + 2], 16), int(self.ground[at : at + 2], 16)) for at in (1, 3, 5)]
        return "#" + "".join(f"{round(share * own + (1 - share) * ground):02X}" for own, ground in channels)


SIZES: Final = {
    "screen": Style("screen", 7.2, inf, 160, title=10, text=9, small=8, line=1.4, marker=6.5),
    "column": Style("column", 3.35, 3.0, 300, title=8, text=7.5, small=7, line=1.0, marker=4.5),
}


_MOST_SUITES = 2  # by name above a panel; of more, the number is given
LINE_SPACING: Final = 1.2  # height of a line, in font sizes: matplotlib's own
_MEASURING_DPI: Final = 288


@cache
def text_inches(text: str, points: float) -> float:
    """Width of a text of one or more lines, before it is drawn."""
    font = get_font(findfont(FontProperties()))
    font.set_size(points, _MEASURING_DPI)
    widths = []
    for line in text.split("\n"):
        font.set_text(line)
        widths.append(font.get_width_height()[0] / 64)
    return max(widths) / _MEASURING_DPI


def line_inches(style: Style, points: float = 0) -> float:
    """The height of a line of text of `points`; of small text, if not given."""
    return (points or style.small) * LINE_SPACING / 72


def in_lines(text: str, points: float, inches: float) -> list[str]:
    """The text in lines no wider than `inches`, broken at spaces. A longer word stays whole."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if text_inches(longer, points) <= inches:
            lines[-1] = longer
        elif word:
            lines.append(word)
    return [line.rstrip() for line in lines]


def wrapped(lines: Sequence[str], points: float, inches: float) -> str:
    """Each of the lines in a font of `points`, broken where it is wider than `inches`."""
    return "\n".join(piece for line in lines for piece in in_lines(line, points, inches))


def is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown_labels(labels: Sequence[str], groups: Sequence[Group]) -> dict[str, str]:
    """What a picture calls each label: its short name. A label whose figures are refused is marked."""
    refused = {method.label for group in groups for method in group.pooled.methods if method.refused}
    return {label: f"✗ refused: {name}" * (label in refused) or name for label, name in short_labels(labels).items()}


def settings(group: Group) -> str:
    """The target, where it ran, sampling, and the most new tokens; of imported files the target and the program."""
    run = group.run
    if run.imported:
        return f"{run.target_name}, imported from files of {run.imported}"
    sampling = f"temperature {run.temperature:g}, " if run.temperature else ""
    machine = f"{run.target_name} on {run.device}, {run.dtype}, {run.threads} thread{'s' * (run.threads != 1)}"
    return f"{machine}, {sampling}up to {run.max_new_tokens} new tokens"


def prompts_line(group: Group) -> str:
    """The suites, the number of prompts, and in which settings the group differs from the first one."""
    run, suites = group.run, group.suites[:-1] or group.suites
    prompts = max(method.prompts for method in group.pooled.methods)
    names = [group.title(suite) for suite in suites]
    embedded = sum("(embedded)" in name for name in names)
    count = f"{len(names)} suites{f' ({embedded} embedded)' * (embedded > 0)}"
    shown = ", ".join(names) if len(names) <= _MOST_SUITES else count
    batches = f" in batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    differences = "; ".join(f"{difference.field} is {difference.second}" for difference in group.differs)
    apart = f"; not comparable with the first panel: {differences}" if differences else ""
    return f"{shown}: {prompts} prompt{'s' * (prompts != 1)}{batches}{apart}"


def three_digits(value: float) -> str:
    """A number of three digits, or with two decimals: 1230, 123, 12.3, 1.23, 0.01; −12.3."""
    decimals = 2 - max(0, floor(log10(abs(value)))) if value else 2
    digits = f"{value:.{max(0, decimals)}f}"
    return "0.00" if digits == "-0.00" else digits.replace("-", "−")
