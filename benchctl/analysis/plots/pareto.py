"""Speed-up against fidelity, with the methods that no other beats in both.

By token agreement and by verdicts all lossless methods and the baseline lie at 1. They get a row each in a band above
the other methods instead, the fastest lowest. The band has no scale upwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle
from math import ceil
from typing import Any, Final, Literal

import numpy as np
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, BboxBase

from benchctl.analysis.comparison import Group, MethodFigures, label_lines
from benchctl.analysis.frame.build import claims_exact
from benchctl.analysis.metrics.faithfulness import TARGET_ANSWERS, TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import short_labels
from benchctl.analysis.plots.axes import check_groups, dress, new_figure, settle
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.fidelity_axis import AGAINST_BASELINE, DEFAULT, METRICS, FidelityAxis, fidelity_axis
from benchctl.analysis.plots.style import (
    LINE_SPACING,
    Dashes,
    Mark,
    Style,
    in_lines,
    is_number,
    shared_headline,
    title_lines,
    wrapped,
)
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError
from benchctl.records.schema import MethodInfo

Look = Literal["baseline", "lossless", "unproven", "lossy"]
LOOKS: Final[dict[Look, str]] = {
    "baseline": "baseline",
    "lossless": "✓ lossless",
    "unproven": "✗ claim not confirmed",
    "lossy": "lossy",
}
_MARKERS: Final[dict[Look, str]] = {"baseline": "s", "lossless": "o", "unproven": "X", "lossy": "^"}
_CURVE_MARKERS = ("v", "D", "P", "<", ">", "p", "*", "h", "d")
_FRONTIER_DASHES: Final[Dashes] = (0, (4, 1.5))
_ONE_BY_DEFINITION = (TOKEN_AGREEMENT, TARGET_ANSWERS)  # of lossless methods and of the baseline

_MOST_PANELS = 12
_MOST_NAMES = 12  # next to dots outside the band; more methods get numbers and a key
_KEY_ENTRIES = (24, 14, 9, 6, 0)  # numbered methods in a key; those on a frontier are always among them
_FEWEST_OF_CURVE = 3
_COLUMNS: Final = {"screen": 2, "column": 1, "slide": 3}  # of panels, and of the key below them
_FREE_INCHES: Final = {"screen": 3.4, "column": 2.7}  # height of the part of a panel below the band
_SMALL_FREE_INCHES: Final = {"screen": 2.2, "column": 1.9}  # where there are several panels
_SLIDE_INCHES = 4.5  # height of all panels of a slide
_BAND_SHARE = 0.6  # the most of a panel
_KEY_SHARE = 0.36  # of the width of a slide, for a key at its side
_CUT_KEY = 10_000  # counts as so many overlapping names
_ROUNDS = 200  # of adjustText
_KEY_HANDLE = 5.0  # width of a marker in a key with its gaps, in font sizes


@dataclass(frozen=True)
class Dot:
    """A method in a panel at speed-up `x` and fidelity `y`. `x_ends` and `y_ends` are the ends of its error bars, the
    value itself without an interval. `best`: no other method beats it. `banded`: it stands in the band of lossless
    methods. `number` is its place among the group's methods."""

    label: str
    number: int
    look: Look
    x: float
    y: float
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]
    best: bool
    banded: bool


@dataclass(frozen=True)
class Curve:
    """Lossy labels that differ in one number, in its order; `title` is what they share, and that option."""

    labels: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class Panel:
    """A group's dots, and the curves that its lossy ones lie on."""

    group: Group
    dots: tuple[Dot, ...]
    curves: tuple[Curve, ...]

    @property
    def band(self) -> tuple[Dot, ...]:
        """From the lowest row, the fastest method, upwards."""
        return tuple(sorted((dot for dot in self.dots if dot.banded), key=lambda dot: (-dot.x, dot.label)))

    @property
    def free(self) -> tuple[Dot, ...]:
        return tuple(dot for dot in self.dots if not dot.banded)


@dataclass(frozen=True)
class Naming:
    """What stands next to the dots of each label, and the methods that the key explains, with their entries."""

    texts: Mapping[str, str]
    key: Mapping[str, str]


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """A panel for each group. Raises UserError for runs without the asked fidelity, and for too many groups."""
    return Drawing(
        draw_pareto(groups, fidelity_axis(request.y or DEFAULT, tuple(groups), request.judge), request.style)
    )


PLOT = Plot(
    draw,
    options=("suites", "by_suite", "y", "judge"),
    needs_greedy=lambda request: METRICS[request.y or DEFAULT] in AGAINST_BASELINE,
)


def draw_pareto(groups: Sequence[Group], axis: FidelityAxis, style: Style) -> Figure:
    """The picture with the fullest names that all fit. Raises UserError as `draw` does."""
    long_titles = style.slide_height and not shared_headline(groups)
    check_groups(groups, style, 1 if long_titles else _MOST_PANELS)
    return draw_panels([panel_of(group, axis) for group in groups], axis, style)


def draw_panels(panels: Sequence[Panel], axis: FidelityAxis, style: Style) -> Figure:
    """The picture with the first of `_namings` in which no name overlaps anything; else with the fewest overlaps."""
    if style.slide_height and len(panels) > _COLUMNS[style.size]:
        style = replace(style, marker=0.6 * style.marker)
    tries: list[tuple[int, int, Figure]] = []
    for naming in _namings(panels, style):
        figure, misfits = _drawn(panels, naming, axis, style)
        if not misfits:
            return figure
        tries.append((misfits, len(tries), figure))
    return min(tries)[2]


# --- what a panel shows -----------------------------------------------------------------------------------------------


def panel_of(group: Group, axis: FidelityAxis) -> Panel:
    """The dots of a group, all its suites together. Raises UserError as `FidelityAxis.of` does."""
    methods = [method for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None]
    if not methods:
        raise UserError(
            "no_baseline_answers",
            f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.",
        )
    fidelity = [axis.of(group, method) for method in methods]
    xs = [1.0 if method.is_baseline else method.estimate(SPEEDUP).value or 0.0 for method in methods]
    points = [(x, estimate.value or 0.0) for x, estimate in zip(xs, fidelity, strict=True)]
    looks = [look_of(group, method) for method in methods]
    with_band = axis.metric in _ONE_BY_DEFINITION and "lossless" in looks
    numbers = {method.label: number for number, method in enumerate(group.methods)}
    dots = tuple(
        Dot(
            label=method.label,
            number=numbers[method.label],
            look=look,
            x=x,
            y=y,
            x_ends=_ends(method.estimate(SPEEDUP), x),
            y_ends=_ends(estimate, y),
            best=best,
            banded=with_band and look in ("baseline", "lossless"),
        )
        for method, estimate, (x, y), best, look in zip(
            methods, fidelity, points, frontier(points, looks), looks, strict=True
        )
    )
    lossy = {dot.label for dot in dots if dot.look == "lossy"}
    return Panel(group, dots, curves([method for method in group.methods if method.label in lossy]))


def look_of(group: Group, method: MethodFigures) -> Look:
    """The class of a method by its answers and its claim."""
    if method.is_baseline:
        return "baseline"
    if method.lossless:
        return "lossless"
    return "unproven" if method.refused or claims_exact(method.exactness, group.run.temperature) else "lossy"


def frontier(points: Sequence[tuple[float, float]], looks: Sequence[Look]) -> tuple[bool, ...]:
    """For each point, whether no other one beats it: is at least as high in both numbers, and higher in one.

    Points whose claim is not confirmed neither beat others nor are the best.

    >>> frontier([(1, 1), (2, 1), (3, 0.5), (2, 0.4), (9, 1)], ["lossy"] * 4 + ["unproven"])
    (False, True, True, False, False)
    """
    rivals = [point for point, look in zip(points, looks, strict=True) if look != "unproven"]
    return tuple(
        look != "unproven"
        and not any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in rivals)
        for point, look in zip(points, looks, strict=True)
    )


def curves(methods: Sequence[MethodInfo]) -> tuple[Curve, ...]:
    """Three or more methods of one name that differ in one number among their options, left-out defaults included. A
    threshold goes first, and each method is on one curve at most."""
    left = list(methods)
    numeric = {name for method in methods for name, value in method.options.items() if is_number(value)}
    found = []
    for option in sorted(numeric, key=lambda name: (name != "threshold", name)):
        alike: dict[object, list[MethodInfo]] = {}
        for method in left:
            if is_number(method.options.get(option)):
                others = frozenset((name, repr(value)) for name, value in method.options.items() if name != option)
                alike.setdefault((method.name, others), []).append(method)
        for members in alike.values():
            if len({method.options[option] for method in members}) >= _FEWEST_OF_CURVE:
                left = [method for method in left if method not in members]
                found.append((methods.index(members[0]), _curve(members, option)))
    return tuple(curve for _, curve in sorted(found, key=lambda item: item[0]))


def _curve(methods: Sequence[MethodInfo], option: str) -> Curve:
    ordered = sorted(methods, key=lambda method: float(str(method.options[option])))
    name, *options = label_lines(max((method.label for method in methods), key=len))
    common = [text for text in options if not text.startswith(f"{option}=")]
    return Curve(tuple(method.label for method in ordered), f"{' '.join([name, *common])}, by {option}")


def _ends(estimate: Estimate, value: float) -> tuple[float, float]:
    """Of the interval. A bootstrapped end may pass the value in its last digit."""
    interval = estimate.interval
    return (min(interval.low, value), max(interval.high, value)) if interval else (value, value)


def _namings(panels: Sequence[Panel], style: Style) -> Iterator[Naming]:
    """Ways to name methods, the fullest first: words; words without shared options (on a slide only these); numbers
    for all, for fewer, for those on a frontier. The baseline has no number."""
    single = len(panels) == 1
    dots = {dot.label: dot for panel in panels for dot in panel.dots}
    full, short = {label: " ".join(label_lines(label)) for label in dots}, short_labels(list(dots))
    badges = {label: "✓ " if dot.look == "lossless" else "" for label, dot in dots.items()}
    if single and len(panels[0].free) <= _MOST_NAMES:
        for words in [short] if style.slide_height else [full, short]:
            yield Naming({label: f"{badges[label]}{words[label]}{_speed(dot)}" for label, dot in dots.items()}, {})
    words = short if style.slide_height else full
    methods = [label for label, dot in dots.items() if dot.look != "baseline"]
    best = {dot.label for panel in panels for dot in panel.dots if dot.best}.intersection(methods)
    ranked = sorted(methods, key=lambda label: (label not in best, -dots[label].x))
    for count in dict.fromkeys(max(min(most, len(ranked)), len(best)) for most in _KEY_ENTRIES):
        numbered = [label for label in methods if label in ranked[:count]]
        numbers = {label: str(number) for number, label in enumerate(numbered, 1)}
        speeds = {label: f"  {dots[label].x:.2f}x" if single else "" for label in numbered}
        key = {label: f"{numbers[label]}  {badges[label]}{words[label]}{speeds[label]}" for label in numbered}
        yield Naming(numbers, key)


def _speed(dot: Dot) -> str:
    """In the band on the same line; elsewhere with the interval, because bars overlap there."""
    low, high = dot.x_ends
    return f"  {dot.x:.2f}x" if dot.banded else f"\n{dot.x:.2f}x" + (f" [{low:.2f}, {high:.2f}]" * (high > low))


# --- drawing ----------------------------------------------------------------------------------------------------------


def look_mark(style: Style, look: Look) -> Mark:
    """The baseline is drawn in ink, each other look in a colour; markers differ too."""
    colours = {"baseline": style.ink, "lossless": style.colours[0], "lossy": style.colours[1]}
    return Mark(colours.get(look, style.colours[2]), _MARKERS[look], "", "-")


def _curve_marks(panels: Sequence[Panel], style: Style) -> dict[Curve, Mark]:
    """Colours after those of looks; markers that no look has."""
    found = dict.fromkeys(curve for panel in panels for curve in panel.curves)
    return {
        curve: replace(style.mark(number), colour=style.mark(number + 3).colour, marker=marker)
        for (number, curve), marker in zip(enumerate(found), cycle(_CURVE_MARKERS), strict=False)
    }


def _drawn(panels: Sequence[Panel], naming: Naming, axis: FidelityAxis, style: Style) -> tuple[Figure, int]:
    """The picture, and how many of its names overlap or are cut."""
    marks = _curve_marks(panels, style)
    columns = min(len(panels), _COLUMNS[style.size])
    starts = range(0, len(panels), columns)
    inches = [max(_panel_inches(panel, style, len(panels)) for panel in panels[at : at + columns]) for at in starts]
    key_aside = bool(style.slide_height and naming.key)
    width = style.width * (1 - _KEY_SHARE * key_aside)
    figure = new_figure(style, 3 * sum(inches))
    grid = figure.subplots(len(starts), columns, squeeze=False, height_ratios=inches)
    _write_titles(figure, grid, panels, axis, style, (width, sum(inches)))
    key = _key(panels, naming, marks, style)
    key_columns = 1 if key_aside else _COLUMNS[style.size]
    key_width = (
        style.width - width if key_aside else 0.96 * style.width / key_columns
    ) - _KEY_HANDLE * style.small / 72
    for entry in key:
        entry.set_label("\n".join(in_lines(str(entry.get_label()), style.small, key_width, indent="    ")))
    legend = figure.legend(
        handles=key, ncols=key_columns, loc="outside right upper" if key_aside else "outside lower left",
        fontsize=style.small, labelcolor=style.ink, frameon=False, labelspacing=0.4, columnspacing=1.2,
    )  # fmt: skip
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    rows_of = [
        _set_limits(axes, panel, style, inches[number // columns])
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False))
    ]
    settle(figure, () if style.slide_height else list(grid[:, 0]), sum(inches))
    misfits = 0 if _inside(legend.get_window_extent(), figure.bbox) else _CUT_KEY
    for axes, panel, rows in zip(grid.flat, panels, rows_of, strict=False):
        _draw_dots(axes, panel, rows, style, marks)
        if axis.judge:
            axes.axhline(0, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
        misfits += _write_names(axes, panel, rows, naming.texts, style)
    return figure, misfits


def _write_titles(
    figure: Figure,
    grid: np.ndarray,
    panels: Sequence[Panel],
    axis: FidelityAxis,
    style: Style,
    size: tuple[float, float],
) -> None:
    """Above all panels and above each; names of axes next to each panel where they differ, next to the outer ones
    otherwise, and once on a slide. `size` is the width and the height of all panels in inches."""
    groups, (rows, columns) = [panel.group for panel in panels], grid.shape
    width, height = size[0] / columns - 0.9, size[1] / rows
    x_names = [f"speed-up over {group.run.baseline}, whole answers (bars: 95% interval)" for group in groups]
    y_names = [axis.title(group) if panel.free else "" for group, panel in zip(groups, panels, strict=True)]
    alike = len({*x_names}) == len({*y_names}) == 1
    headline = shared_headline(groups)
    lines = title_lines(groups[0]) if len(panels) == 1 else [headline]
    words: dict[str, Any] = {"color": style.ink, "fontsize": style.text}
    figure.suptitle(
        wrapped(lines, style, style.title, size[0] - 0.2), **words | {"fontsize": style.title}, x=0.01, ha="left"
    )
    if once := bool(alike and style.slide_height and len(panels) > 1):
        figure.supxlabel(x_names[0], **words)
        figure.supylabel(y_names[0], **words, ma="center")
    for number, axes in enumerate(grid.flat[: len(panels)]):
        if not alike or (not once and number + columns >= len(panels)):
            axes.set_xlabel(wrapped([x_names[number]], style, style.text, width))
        if not alike or (not once and number % columns == 0):
            axes.set_ylabel(wrapped(y_names[number].split("\n"), style, style.text, height))
        dress(axes, style)
        title = title_lines(groups[number], with_headline=not headline) if len(panels) > 1 else []
        axes.set_title(wrapped(title, style, style.text, width), **words, loc="left")


def _band_inches(panel: Panel, style: Style) -> float:
    """The band has a row per method and one for its heading."""
    return (len(panel.band) + 1.3) * max(1.35 * style.small, 1.1 * style.marker) / 72 if panel.band else 0.0


def _panel_inches(panel: Panel, style: Style, panels: int) -> float:
    if style.slide_height:
        return _SLIDE_INCHES / ceil(panels / _COLUMNS[style.size])
    free = (_FREE_INCHES if panels == 1 else _SMALL_FREE_INCHES)[style.size]
    return free * bool(panel.free) + _band_inches(panel, style)


def _set_limits(axes: Axes, panel: Panel, style: Style, inches: float) -> dict[str, float]:
    """Set limits and ticks of axes that are `inches` high, and colour the band. Returns the y of each label."""
    xs = [end for dot in panel.dots for end in (*dot.x_ends, 1.0)]
    low, high = _at_least(min(xs), max(xs), 0.2)
    axes.set_xlim(low - 0.06 * (high - low), high + 0.08 * (high - low))
    share = min(_band_inches(panel, style) / inches, _BAND_SHARE)
    bottom, top, end = 0.0, 0.0, 1.0
    ticks: Sequence[float] = []
    if panel.free:
        ys = [*(end for dot in panel.free for end in dot.y_ends), *([1.0] if panel.band else [])]
        low, high = _at_least(min(ys), max(ys), 0.1)
        bottom, top = low - 0.1 * (high - low), high + (0.06 if panel.band else 0.25) * (high - low)
        end = bottom + (top - bottom) / (1 - share)
        steps = max(2, int((1 - share) * inches * 72 / (3 * style.small)))
        ticks = MaxNLocator(steps, steps=[1, 2, 5, 10]).tick_values(bottom, max(ys))
        ticks = [tick for tick in ticks if bottom <= tick <= max(ys) + 1e-9]
    axes.set_yticks(ticks)
    axes.set_ylim(bottom, end)
    step = (end - top) / (len(panel.band) + 1.3)
    if panel.band:
        axes.axhspan(top, end, facecolor=style.faded(look_mark(style, "lossless").colour, 0.08), zorder=0)
    return {dot.label: dot.y for dot in panel.free} | {
        dot.label: top + (index + 0.5) * step for index, dot in enumerate(panel.band)
    }


def _at_least(low: float, high: float, least: float) -> tuple[float, float]:
    return (low, high) if high - low >= least else ((low + high - least) / 2, (low + high + least) / 2)


def _draw_dots(axes: Axes, panel: Panel, rows: Mapping[str, float], style: Style, marks: Mapping[Curve, Mark]) -> None:
    """Everything but names, where `rows` is the y of each label."""
    axes.axvline(1, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
    best = sorted((dot.x, -rows[dot.label]) for dot in panel.dots if dot.best)
    start = best[0][0] if any(dot.best for dot in panel.band) else axes.get_xlim()[0]
    axes.plot(
        [start, *(x for x, _ in best), best[-1][0]], [-best[0][1], *(-y for _, y in best), axes.get_ylim()[0]],
        drawstyle="steps-pre", color=style.muted, linewidth=style.line * 0.8, linestyle=_FRONTIER_DASHES, zorder=1.5,
    )  # fmt: skip
    dots = {dot.label: dot for dot in panel.dots}
    for curve in panel.curves:
        axes.plot(
            [dots[label].x for label in curve.labels], [dots[label].y for label in curve.labels],
            color=marks[curve].colour, linestyle=marks[curve].dashes, linewidth=style.line * 0.8, zorder=2,
        )  # fmt: skip
    of_label = {label: marks[curve] for curve in panel.curves for label in curve.labels}
    for dot in panel.dots:
        _draw_dot(axes, dot, rows[dot.label], style, of_label.get(dot.label, look_mark(style, dot.look)))


def _draw_dot(axes: Axes, dot: Dot, y: float, style: Style, mark: Mark) -> None:
    """Solid if no method beats it, else hollow and faded. Parts have ids, by which a page hides a method."""
    colour = mark.colour if dot.best else style.faded(mark.colour)
    (left, right), (low, high) = dot.x_ends, (y, y) if dot.banded else dot.y_ends
    container = axes.errorbar(
        [dot.x],
        [y],
        xerr=[[dot.x - left], [right - dot.x]] if right > left else None,
        yerr=[[y - low], [high - y]] if high > low else None,
        fmt=mark.marker,
        color=colour,
        markersize=style.marker,
        markerfacecolor=colour if dot.best else style.ground,
        markeredgecolor=style.ground if dot.best else colour,
        markeredgewidth=style.line * (0.5 if dot.best else 0.8),
        capsize=style.marker * 0.35,
        capthick=style.line * 0.8,
        elinewidth=style.line * 0.8,
        label=dot.label,
        zorder=4 if dot.best else 3,
    )
    line, caps, bars = container.lines
    for index, artist in enumerate((line, *caps, *bars)):
        artist.set_gid(f"method-{dot.number}-{index}")


def _write_names(axes: Axes, panel: Panel, rows: Mapping[str, float], texts: Mapping[str, str], style: Style) -> int:
    """Write the texts, and return how many overlap another one or a marker, or are cut. A text may touch a bar."""
    area, markers, bars = axes.get_window_extent(), [], []
    for dot in panel.dots:
        x, y = dot.x, rows[dot.label]
        low, high = (y, y) if dot.banded else dot.y_ends
        markers.append(Bbox([[x, y], [x, y]]).transformed(axes.transData).padded(style.marker * style.dpi / 144))
        bars += [Bbox([[dot.x_ends[0], y], [dot.x_ends[1], y]]), Bbox([[x, low], [x, high]])]
    bars = [bar.transformed(axes.transData).padded(1) for bar in bars]
    bands = [patch.get_window_extent() for patch in axes.patches]
    fixed, free = [], []
    for dot in panel.dots:
        if dot.label not in texts:
            continue
        words: dict[str, Any] = {"fontsize": style.small, "color": style.ink if dot.best else style.muted,
                                 "parse_math": False, "gid": f"method-{dot.number}-name"}  # fmt: skip
        if dot.banded:  # next to the dot, towards the middle of the panel
            side = 1 if dot.x < sum(axes.get_xlim()) / 2 else -1
            end, reach = (dot.x_ends[max(side, 0)], rows[dot.label]), 0.5 * style.marker + 0.4 * style.small
            words |= {"ha": "left" if side > 0 else "right", "va": "center_baseline"}
            fixed.append(axes.annotate(texts[dot.label], end, (side * reach, 0), "data", "offset points", **words))
        else:
            text = wrapped(texts[dot.label].split("\n"), style, style.small, 0.28 * style.width)
            words |= {"ha": "center", "va": "center", "ma": "center", "linespacing": LINE_SPACING * 0.9}
            free.append(axes.text(dot.x, dot.y, text, **words))
    if panel.band:
        corner = (0.5 * style.small, -0.2 * style.small)
        fixed.append(
            axes.annotate(LOOKS["lossless"], (0, 1), corner, "axes fraction", "offset points", va="top",
                          fontsize=style.small, fontweight="bold", color=style.ink)
        )  # fmt: skip
    cut = sum(not _inside(text.get_window_extent(), area) for text in fixed)
    if cut:
        return cut + len(free)
    if free:
        adjust_text(
            free,
            objects=[box.transformed(axes.transData.inverted()) for box in (*markers, *bars, *bands)],
            ax=axes,
            expand=(1.1, 1.2),
            force_text=(0.3, 0.5),
            force_static=(0.2, 0.4),
            iter_lim=_ROUNDS,
            min_arrow_len=style.marker,
            arrowprops={"arrowstyle": "-", "color": style.muted, "linewidth": style.line * 0.4, "zorder": 2},
        )
    boxes = [text.get_window_extent() for text in (*fixed, *free)]
    overlaps = sum(box.overlaps(other) for box, other in combinations(boxes, 2))
    in_band = sum(box.count_overlaps(bands) for box in boxes[len(fixed) :])
    return overlaps + in_band + sum(box.count_overlaps(markers) + (not _inside(box, area)) for box in boxes)


def _inside(box: BboxBase, area: BboxBase) -> bool:
    return bool(area.padded(1).count_contains((box.min, box.max)) == 2)


def _key(panels: Sequence[Panel], naming: Naming, marks: Mapping[Curve, Mark], style: Style) -> list[Line2D]:
    """Looks, the frontier, curves, and the numbered methods."""
    dots = {dot.label: dot for panel in panels for dot in panel.dots}
    looks = {dot.look for dot in dots.values()}
    missing = sum(dot.look != "baseline" for dot in dots.values()) - len(naming.key) if naming.key else 0
    unnamed = f"; {missing} not named" if missing else ""
    entries = [_marker_entry(look_mark(style, look), title, style) for look, title in LOOKS.items() if look in looks]
    entries.append(
        Line2D([], [], color=style.muted, linewidth=style.line * 0.8, linestyle=_FRONTIER_DASHES,
               label=f"frontier (faded: beaten by another{unnamed})")
    )  # fmt: skip
    for curve, mark in marks.items():
        entries.append(_marker_entry(mark, curve.title, style))
        entries[-1].set(linestyle=mark.dashes, linewidth=style.line)
    of_label = {label: mark for curve, mark in marks.items() for label in curve.labels}
    for label, text in naming.key.items():
        mark = of_label.get(label, look_mark(style, dots[label].look))
        entries.append(_marker_entry(mark, text, style, solid=len(panels) > 1 or dots[label].best))
    return entries


def _marker_entry(mark: Mark, text: str, style: Style, solid: bool = True) -> Line2D:
    colour = mark.colour if solid else style.faded(mark.colour)
    return Line2D(
        [],
        [],
        marker=mark.marker,
        linestyle="",
        color=colour,
        markerfacecolor=colour if solid else style.ground,
        markeredgecolor=style.ground if solid else colour,
        markeredgewidth=0 if solid else style.line * 0.8,
        markersize=style.marker * 0.9,
        label=text,
    )
