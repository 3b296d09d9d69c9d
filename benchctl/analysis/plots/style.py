"""How pictures look: on light or dark ground; on a page, in one column of a paper, or on a slide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Dashes = Literal["-"] | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Mark:
    """What sets one method apart from the others: in colour, and without it by marker, hatch (of bars) or dashes (of
    lines). `hatch` and `dashes` are matplotlib's."""

    colour: str
    marker: str
    hatch: str
    dashes: Dashes


@dataclass(frozen=True)
class _Theme:
    ground: str
    ink: str
    muted: str
    grid: str
    colours: tuple[str, ...]


@dataclass(frozen=True)
class _Size:
    """Inches; fonts in points as printed, or as shown on a slide of 13.33 x 7.5 inches."""

    width: float
    slide_height: float | None
    dpi: int
    title: float
    text: float
    small: float
    line: float
    marker: float


# Every colour is at least 3:1 against its ground (muted, for text, 4.5:1), and all differ by 25 in CIELAB, also to
# readers who lack the cones for red or green (Machado, Oliveira and Fernandes 2009): found by search around the blue
# and the vermillion of Okabe and Ito. The n-th is of the same role on either ground.
_THEMES: Final[Mapping[str, _Theme]] = {
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
_SIZES: Final[Mapping[str, _Size]] = {
    "page": _Size(7.2, None, 160, title=10, text=9, small=8, line=1.4, marker=6.5),
    "column": _Size(3.35, None, 300, title=8, text=7.5, small=7, line=1.0, marker=4.5),
    "slide": _Size(40 / 3, 7.5, 144, title=20, text=17, small=16, line=2.4, marker=12),
}
THEMES: Final = tuple(_THEMES)
SIZES: Final = tuple(_SIZES)

_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d")
_HATCHES = ("", "///", "...", "xx", "\\\\\\", "---", "++")
_DASHES: Final[tuple[Dashes, ...]] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1.2)))


@dataclass(frozen=True)
class Style:
    """`theme` is one of THEMES, `size` of SIZES. Colours are #RRGGBB, sizes of fonts, lines and markers points."""

    theme: str = "light"
    size: str = "page"

    @property
    def ground(self) -> str:
        return self._theme.ground

    @property
    def ink(self) -> str:
        return self._theme.ink

    @property
    def muted(self) -> str:
        """Of what stands back, text included."""
        return self._theme.muted

    @property
    def grid(self) -> str:
        return self._theme.grid

    @property
    def colours(self) -> tuple[str, ...]:
        """Those of `mark`, before any comes again."""
        return self._theme.colours

    def mark(self, number: int) -> Mark:
        """How the method of that number (from 0) looks: the first 78 have each another marker or colour, and no two
        with one colour have the same marker, hatch or dashes before the 31st."""
        colours = self._theme.colours
        return Mark(
            colour=colours[number % len(colours)],
            marker=_MARKERS[number % len(_MARKERS)],
            hatch=_HATCHES[number % len(_HATCHES)],
            dashes=_DASHES[number % len(_DASHES)],
        )

    def faded(self, colour: str, share: float = 0.55) -> str:
        """The colour with so much of itself left, the rest being ground: opaque, so that what overlaps does not mix."""
        parts = [(int(colour[at : at + 2], 16), int(self.ground[at : at + 2], 16)) for at in (1, 3, 5)]
        return "#" + "".join(f"{round(share * one + (1 - share) * ground):02X}" for one, ground in parts)

    @property
    def width(self) -> float:
        """Inches."""
        return self._size.width

    @property
    def slide_height(self) -> float | None:
        """Inches, of a slide; other pictures are as high as they need."""
        return self._size.slide_height

    @property
    def dpi(self) -> int:
        return self._size.dpi

    @property
    def title(self) -> float:
        return self._size.title

    @property
    def text(self) -> float:
        """Of axes."""
        return self._size.text

    @property
    def small(self) -> float:
        """Of ticks, legends and labels: no text is smaller."""
        return self._size.small

    @property
    def line(self) -> float:
        return self._size.line

    @property
    def marker(self) -> float:
        return self._size.marker

    def characters(self, points: float, inches: float | None = None) -> int:
        """About how many characters of a font of `points` fit into `inches` (the width, if not given), for wrapping."""
        return int((inches or self.width) * 72 / (points * _CHARACTER))

    @property
    def _theme(self) -> _Theme:
        return _THEMES[self.theme]

    @property
    def _size(self) -> _Size:
        return _SIZES[self.size]


_CHARACTER = 0.56  # of DejaVu Sans in running text, in heights of the font
