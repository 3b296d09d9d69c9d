"""Colours and sizes of pictures: on a light or dark ground; on a screen, in one column of a paper, or on a slide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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
