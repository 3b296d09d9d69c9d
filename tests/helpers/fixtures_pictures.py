"""What pictures show, read back from them: words, places, bars, colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from fixtures_records import KOALA, RUN, baseline_row, method
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.transforms import Bbox

from benchctl.records.schema import Row, Run, SuiteInfo


@dataclass(frozen=True)
class Drawn:
    """A point with its bars, in the units of the axes; a bar that was not drawn is None."""

    x: float
    y: float
    across: tuple[float, float] | None
    along: tuple[float, float] | None
    marker: str
    colour: str
    edge: str


def points(axes: Axes) -> dict[str, Drawn]:
    """What errorbar drew, by label."""
    found = {}
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        line, _, bars = container.lines
        ends = [bar.get_segments()[0] for bar in bars]
        across = [(part[0][0], part[1][0]) for part in ends if part[0][1] == part[1][1]]
        along = [(part[0][1], part[1][1]) for part in ends if part[0][0] == part[1][0]]
        found[str(container.get_label())] = Drawn(
            x=float(np.asarray(line.get_xdata())[0]),
            y=float(np.asarray(line.get_ydata())[0]),
            across=across[0] if across else None,
            along=along[0] if along else None,
            marker=str(line.get_marker()),
            colour=to_hex(line.get_color()),
            edge=to_hex(line.get_markeredgecolor()),
        )
    return found


def markers_of(axes: Axes, width: float) -> list[Bbox]:
    """The boxes that markers cover, `width` pixels wide."""
    boxes = []
    for drawn in points(axes).values():
        (x, y) = axes.transData.transform((drawn.x, drawn.y))
        boxes.append(Bbox([[x - width / 2, y - width / 2], [x + width / 2, y + width / 2]]))
    return boxes


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2, definition): https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    return float(np.dot(linear(colour), (0.2126, 0.7152, 0.0722)))


def linear(colour: str) -> np.ndarray:
    """Red, green and blue of a colour of sRGB as shares of light (WCAG 2.2, as above)."""
    shares = np.array(to_rgb(colour))
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: (L1 + 0.05) / (L2 + 0.05) of the lighter over the darker; black on white: 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


_EXACT = 9  # of these, the first ones
FOURTEEN = (
    "two_model[draft_tokens=6,confidence=0.5]",
    "prompt_lookup[draft_tokens=5,max_ngram=3,match=last]",
    "lookahead[ngram=4,window=1,guesses=2,prompt_pool=true]",
    "medusa[heads=2,nodes=4]",
    "early_exit[mode=draft,head=trained,threshold=0.5,exits=4,draft_tokens=2]",
    "deed[mode=draft,threshold=0.3,exits=4,draft_tokens=2]",
    "m2r2[exit=2,draft_tokens=6,confidence=0.2]",
    "lookahead",
    "medusa[heads=4,nodes=63]",
    "early_exit[head=trained,confidence=classifier,threshold=0.6,exits=8+12]",
    "deed[threshold=0.5,exits=6+10+14]",
    "skip_decode[min_layers=10,fall_tokens=32]",
    "mixture_of_depths[threshold=0.02]",
    "m2r2_dynamic[threshold=0.8]",
)


def head_to_head(suites: Sequence[SuiteInfo] = (KOALA,), prompts: int = 3) -> tuple[Run, list[Row]]:
    """A run of fourteen methods with labels as long as real ones, nine of them lossless; the steps of each take between
    0.55 and 1.6 of the baseline's, and the lossy ones agree for 1 to 5 tokens of 9."""
    methods = [method(label, "exact" if number < _EXACT else "lossy") for number, label in enumerate(FOURTEEN)]
    rows = []
    for suite in suites:
        for prompt in range(prompts):
            usual = replace(baseline_row(f"p{prompt}", step_s=1 + 0.03 * prompt), suite=suite.name)
            answers = [_answer(usual, number, label, prompt) for number, label in enumerate(FOURTEEN)]
            rows += [usual, *answers]
    return replace(RUN, methods=(RUN.methods[0], *methods), suites=tuple(suites)), rows


def _answer(usual: Row, number: int, label: str, prompt: int) -> Row:
    pace = 0.55 + 0.075 * ((number * 5) % 14) + 0.05 * prompt
    answer = replace(usual, label=label, step_s=(pace,) * 8)
    if number < _EXACT:
        return replace(answer, verdict="identical")
    return replace(answer, verdict="lossy", first_divergence=1 + (number + prompt) % 5, margin=0.5, noise=1e-6)
