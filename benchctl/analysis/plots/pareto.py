"""Speed-up against fidelity, with the methods that no other beats in both.

By token agreement and by verdicts all lossless methods and the baseline lie at 1. They get a row each in a band above
the other methods instead, the fastest lowest. The band has no scale upwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil
from typing import Any, Final, Literal

from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from benchctl.analysis.comparison import Group, MethodFigures, label_lines
from benchctl.analysis.frame.build import claims_exact
from benchctl.analysis.metrics.faithfulness import TARGET_ANSWERS, TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.axes import check_groups, dress, new_figure, settle
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.fidelity_axis import AGAINST_BASELINE, DEFAULT, METRICS, FidelityAxis, fidelity_axis
from benchctl.analysis.plots.style import (
    LINE_SPACING,
    Dashes,
    Mark,
    Style,
    in_lines,
    line_inches,
    shared_headline,
    short_labels,
    text_inches,
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
    "unproven": "claims to be exact, but answers differ",
    "lossy": "lossy",
}
_MARKERS: Final[dict[Look, str]] = {"baseline": "s", "lossless": "o", "unproven": "X", "lossy": "^"}
_CURVE_MARKERS = ("v", "D", "P", "<", ">", "p", "*", "h", "d")
_FRONTIER_DASHES: Final[Dashes] = (0, (4, 1.5))
_ONE_BY_DEFINITION = (TOKEN_AGREEMENT, TARGET_ANSWERS)  # of lossless methods and of the baseline

_MOST_PANELS = 12
_MOST_NAMES = 12  # next to dots outside the band; more methods get numbers and a key
_KEY_ENTRIES = (24, 14, 9, 6)  # numbered methods in a key
_FEWEST_OF_CURVE = 3
_COLUMNS: Final = {"screen": 2, "column": 1, "slide": 3}
_FREE_INCHES: Final = {"screen": 3.4, "column": 2.7, "slide": 3.0}  # height of the part below the band
_SMALL_FREE_INCHES: Final = {"screen": 2.2, "column": 1.9, "slide": 3.0}  # where there are several panels
_BAND_SHARE = 0.6  # the most of a panel on a slide
_KEY_SHARE = 0.4  # of the width of a slide, for a key at its side
_KEY_HANDLE = 2.0  # width of a marker in a key, in font sizes
_KEY_COLUMN = 20.0  # the least width of a column in a key, in font sizes
_LEAST_PANELS = 0.5  # of a slide's height
_CUT_KEY = 10_000  # counts as so many overlapping names
_ROUNDS = 200  # of adjustText


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


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """A panel for each group. Raises UserError for runs without the asked fidelity, and for too many groups."""
    return Drawing(
        draw_pareto(groups, fidelity_axis(request.y or DEFAULT, tuple(groups), request.judge), request.style)
    )


def _needs_greedy(request: Request) -> bool:
    return METRICS[request.y or DEFAULT] in AGAINST_BASELINE


PLOT = Plot(draw, options=("suites", "by_suite", "y", "judge"), needs_greedy=_needs_greedy)


def draw_pareto(groups: Sequence[Group], axis: FidelityAxis, style: Style) -> Figure:
    """The picture with the fullest names that all fit. Raises UserError as `draw` does."""
    check_groups(groups, style, _MOST_PANELS)
    return draw_panels([panel_of(group, axis) for group in groups], axis, style)


def draw_panels(panels: Sequence[Panel], axis: FidelityAxis, style: Style) -> Figure:
    """The picture with the first of `_namings` in which no name overlaps anything; else with the fewest overlaps."""
    tries: list[tuple[int, int, Figure]] = []
    for names in _namings(panels, style):
        figure, overlaps = _drawn(panels, names, axis, style)
        if not overlaps:
            return figure
        tries.append((overlaps, len(tries), figure))
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
        for method, estimate, (x, y), best, look in zip(methods, fidelity, points, frontier(points), looks, strict=True)
    )
    lossy = {dot.label for dot in dots if dot.look == "lossy"}
    return Panel(group, dots, curves([method for method in group.methods if method.label in lossy]))


def look_of(group: Group, method: MethodFigures) -> Look:
    """The class of a method by its answers and its claim."""
    if method.is_baseline:
        return "baseline"
    if method.lossless:
        return "lossless"
    return "unproven" if claims_exact(method.exactness, group.run.temperature) else "lossy"


def frontier(points: Sequence[tuple[float, float]]) -> tuple[bool, ...]:
    """For each point, whether no other one beats it: is at least as high in both numbers, and higher in one.

    >>> frontier([(1, 1), (2, 1), (3, 0.5), (2, 0.4)])
    (False, True, True, False)
    """
    return tuple(
        not any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in points)
        for point in points
    )


def curves(methods: Sequence[MethodInfo]) -> tuple[Curve, ...]:
    """Three or more methods of one name that differ in one number among their options, left-out defaults included. A
    threshold goes first, and each method is on one curve at most."""
    left, order = list(methods), {method.label: index for index, method in enumerate(methods)}
    numeric = {name for method in methods for name, value in method.options.items() if _is_number(value)}
    curves_found = []
    for option in sorted(numeric, key=lambda name: (name != "threshold", name)):
        alike: dict[object, list[MethodInfo]] = {}
        for method in left:
            if _is_number(method.options.get(option)):
                others = frozenset((name, repr(value)) for name, value in method.options.items() if name != option)
                alike.setdefault((method.name, others), []).append(method)
        for members in alike.values():
            if len({method.options[option] for method in members}) >= _FEWEST_OF_CURVE:
                left = [method for method in left if method not in members]
                curves_found.append(_curve(members, option))
    return tuple(sorted(curves_found, key=lambda curve: min(order[label] for label in curve.labels)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve(methods: Sequence[MethodInfo], option: str) -> Curve:
    ordered = sorted(methods, key=lambda method: float(str(method.options[option])))
    name, *options = label_lines(max((method.label for method in methods), key=len))
    common = [text for text in options if not text.startswith(f"{option}=")]
    return Curve(tuple(method.label for method in ordered), f"{' '.join([name, *common])}, by {option}")


def _ends(estimate: Estimate, value: float) -> tuple[float, float]:
    """Of the interval. A bootstrapped end may pass the value in its last digit."""
    interval = estimate.interval
    return (min(interval.low, value), max(interval.high, value)) if interval else (value, value)


# --- names ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """What stands next to dots: `words`, or the numbers that a key explains. With `only_best` a panel shows no number
    of a beaten method."""

    words: Mapping[str, str]
    numbers: Mapping[str, int] = field(default_factory=dict)
    only_best: bool = False

    def of(self, dot: Dot) -> str:
        """In the band on one line; elsewhere with the interval, because bars overlap there."""
        if self.numbers:
            return "" if self.only_best and not dot.best else str(self.numbers.get(dot.label, ""))
        if dot.banded:
            return f"{_badge(dot)}{self.words[dot.label]}  {dot.x:.2f}x"
        low, high = dot.x_ends
        return f"{_badge(dot)}{self.words[dot.label]}\n{dot.x:.2f}x" + (f" [{low:.2f}, {high:.2f}]" * (high > low))


def _badge(dot: Dot) -> str:
    return "✓ " if dot.look == "lossless" else ""


def _namings(panels: Sequence[Panel], style: Style) -> Iterator[Names]:
    """Ways to name methods, the fullest first: words; words without shared options (on a slide only these); numbers
    for all, for fewer, for those on a frontier. The baseline has no number."""
    labels = list(dict.fromkeys(dot.label for panel in panels for dot in panel.dots))
    full = {label: " ".join(label_lines(label)) for label in labels}
    short = short_labels(labels)
    if len(panels) == 1 and len(panels[0].free) <= _MOST_NAMES:
        if style.size != "slide":
            yield Names(full)
        yield Names(short)
    dots = [dot for panel in panels for dot in panel.dots if dot.look != "baseline"]
    ranked = list(dict.fromkeys(dot.label for dot in sorted(dots, key=lambda dot: (not dot.best, -dot.x))))
    leaders = len({dot.label for dot in dots if dot.best})
    for count in dict.fromkeys([*(max(min(most, len(ranked)), leaders) for most in _KEY_ENTRIES), leaders]):
        numbered = [label for label in labels if label in ranked[:count]]
        numbers = {label: number for number, label in enumerate(numbered, 1)}
        yield Names(short if style.size == "slide" else full, numbers, only_best=count == leaders < len(ranked))


# --- drawing ----------------------------------------------------------------------------------------------------------


def look_mark(style: Style, look: Look) -> Mark:
    """The baseline is drawn in ink, each other look in a colour; markers differ too."""
    colours = {"baseline": style.ink, "lossless": style.colours[0], "lossy": style.colours[1]}
    return Mark(colours.get(look, style.colours[2]), _MARKERS[look], "", "-")


def _curve_marks(panels: Sequence[Panel], style: Style) -> dict[Curve, Mark]:
    """Colours after those of looks; markers that no look has."""
    found = dict.fromkeys(curve for panel in panels for curve in panel.curves)
    return {
        curve: Mark(
            style.colours[(number + 3) % len(style.colours)],
            _CURVE_MARKERS[number % len(_CURVE_MARKERS)],
            "",
            style.mark(number).dashes,
        )
        for number, curve in enumerate(found)
    }


def _drawn(panels: Sequence[Panel], names: Names, axis: FidelityAxis, style: Style) -> tuple[Figure, int]:
    """The picture, and how many of its names overlap or are cut."""
    if style.size == "slide" and len(panels) > _COLUMNS[style.size]:
        style = replace(style, marker=0.6 * style.marker)
    marks = _curve_marks(panels, style)
    figure, grid = _laid_out(panels, names, axis, style, marks)
    settle(figure)
    (legend,) = figure.legends
    key = legend.get_window_extent()
    is_free = not any(_overlap(key, axes.get_window_extent()) for axes in grid)
    misfits = 0 if is_free and _inside(key, figure.bbox.padded(1)) else _CUT_KEY
    for axes, panel in zip(grid, panels, strict=True):
        rows = _set_limits(axes, panel, style)
        _draw_dots(axes, panel, rows, style, marks)
        if axis.judge:
            axes.axhline(0, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
        misfits += _write_names(axes, panel, rows, names, style)
    return figure, misfits


def _laid_out(
    panels: Sequence[Panel], names: Names, axis: FidelityAxis, style: Style, marks: Mapping[Curve, Mark]
) -> tuple[Figure, list[Axes]]:
    """Empty axes with titles, axis names and the key."""
    groups, single = [panel.group for panel in panels], len(panels) == 1
    x_names = [f"speed-up over {group.run.baseline}, whole answers (bars: 95% interval)" for group in groups]
    y_names = [axis.title(group) for group in groups]
    alike = len(set(x_names)) == len(set(y_names)) == 1
    has_scale = any(panel.free for panel in panels)
    columns = min(len(panels), _COLUMNS[style.size]) if alike else 1
    rows = ceil(len(panels) / columns)
    key_aside = style.size == "slide" and single and bool(names.numbers)
    width = style.width * (1 - _KEY_SHARE if key_aside else 1)
    head = title_lines(groups[0]) if single else [shared_headline(groups)]
    headline = wrapped(head, style, style.title)
    titles = [
        ""
        if single
        else wrapped(title_lines(group, with_headline=not head[0]), style, style.text, width / columns - 0.9)
        for group in groups
    ]
    key = _key(panels, names, style, marks)
    key_columns, key_inches = _break_key(key, style, _KEY_SHARE * style.width if key_aside else 0.96 * style.width)
    free = (_FREE_INCHES if single else _SMALL_FREE_INCHES)[style.size]
    inches = [(free if panel.free else 0.0) + _band_inches(panel, style) for panel in panels]
    above = (1 + max(title.count("\n") for title in titles)) * line_inches(style, style.text) if any(titles) else 0.0
    row_inches = [
        max(inches[row * columns : (row + 1) * columns]) + above + (2 if alike else 4) * line_inches(style)
        for row in range(rows)
    ]
    head_inches = (headline.count("\n") + 1.8) * line_inches(style, style.title)
    y_inches = _LEAST_PANELS * style.slide_height if style.slide_height else max(sum(row_inches), 2.0)
    x_lines = [wrapped(_unbroken_bracket(name, style, width - 0.7), style, style.text, width - 0.7) for name in x_names]
    y_lines = [wrapped(name.split("\n"), style, style.text, y_inches) for name in y_names]
    # Shared names of axes, and the key, stand outside the rectangle in which matplotlib lays out the panels.
    left = (y_lines[0].count("\n") + 1.3) * line_inches(style, style.text) if alike and has_scale else 0.0
    below = (0 if key_aside else key_inches) + (x_lines[0].count("\n") + 1.2) * line_inches(style, style.text) * alike
    figure = new_figure(style, sum(row_inches) + head_inches + below)
    high, wide = figure.get_figheight(), style.width
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(
        rect=(
            left / wide,
            below / high,
            (width - left) / wide,
            max(1 - (below + head_inches) / high, _LEAST_PANELS if style.slide_height else 0.0),
        )
    )
    words: dict[str, Any] = {"fontsize": style.text, "color": style.ink, "ma": "center"}
    margin = 0.5 * style.small / 72
    figure.text(margin / wide, 1 - margin / high, headline, va="top", fontsize=style.title, color=style.ink)
    if alike:
        figure.text((left + width) / 2 / wide, below / high, x_lines[0], ha="center", va="top", **words)
        middle = (below + high - head_inches) / 2 / high
        y_line = y_lines[0] if has_scale else ""
        figure.text(margin / wide, middle, y_line, ha="left", va="center", rotation=90, **words)
    grid = figure.subplots(rows, columns, squeeze=False, height_ratios=row_inches)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        if not alike:
            axes.set(xlabel=x_lines[index], ylabel=y_lines[index])
        _set_limits(axes, panel, style, inches=inches[index])
        dress(axes, style)
        axes.set_title(titles[index], loc="left", fontsize=style.text, color=style.ink)
    figure.legend(
        handles=key,
        ncols=key_columns,
        loc="upper left",
        bbox_to_anchor=(width / wide, 1 - head_inches / high) if key_aside else (0, key_inches / high),
        fontsize=style.small,
        labelcolor=style.ink,
        frameon=False,
        handlelength=_KEY_HANDLE,
        labelspacing=0.4,
        columnspacing=1.2,
    )
    return figure, list(grid.flat[: len(panels)])


def _unbroken_bracket(name: str, style: Style, width: float) -> list[str]:
    """A name that is too long for one line breaks before its bracket."""
    return [name] if text_inches(name, style.text)[0] <= width else name.replace(" (", "\n(").split("\n")


def _row_inches(style: Style) -> float:
    return max(1.35 * style.small, 1.1 * style.marker) / 72


def _band_inches(panel: Panel, style: Style) -> float:
    """The band has a row per method and one for its heading."""
    return (len(panel.band) + 1.3) * _row_inches(style) if panel.band else 0.0


def _set_limits(axes: Axes, panel: Panel, style: Style, inches: float = 0.0) -> dict[str, float]:
    """Set limits and ticks of axes that are `inches` high (default: as laid out), and return the y of each label."""
    box = axes.get_window_extent()
    width, height = box.width / style.dpi, inches or box.height / style.dpi
    xs = [end for dot in panel.dots for end in (*dot.x_ends, 1.0)]
    low, high = _at_least(min(xs), max(xs), 0.2)
    axes.set_xlim(low - 0.06 * (high - low), high + 0.08 * (high - low))
    axes.xaxis.set_major_locator(MaxNLocator(max(2, int(width * 72 / (4.5 * style.small))), steps=[1, 2, 2.5, 5, 10]))
    band = min(_band_inches(panel, style), (_BAND_SHARE if panel.free else 1.0) * height)
    free = height - band
    if panel.free:
        ys = [*(end for dot in panel.free for end in dot.y_ends), *([1.0] if band else [])]
        bottom, top = _at_least(min(ys), max(ys), 0.1)
        bottom, limit = bottom - 0.1 * (top - bottom), top + (0.06 if band else 0.25) * (top - bottom)
        steps = max(2, int(free * 72 / (3 * style.small)))
        ticks = MaxNLocator(steps, steps=[1, 2, 5, 10]).tick_values(bottom, max(ys))
        axes.set_yticks([tick for tick in ticks if bottom <= tick <= max(ys) + 1e-9])
    else:
        bottom, limit, free = 0.0, 1.0, height
        axes.set_yticks([])
    unit = (limit - bottom) / free  # of y per inch
    step = unit * band / (len(panel.band) + 1.3)
    start = limit if panel.free else 0.0
    axes.set_ylim(bottom, start + unit * band if panel.band else limit)
    return {dot.label: dot.y for dot in panel.free} | {
        dot.label: start + (index + 0.5) * step for index, dot in enumerate(panel.band)
    }


def _at_least(low: float, high: float, least: float) -> tuple[float, float]:
    return (low, high) if high - low >= least else ((low + high - least) / 2, (low + high + least) / 2)


def _draw_dots(axes: Axes, panel: Panel, rows: Mapping[str, float], style: Style, marks: Mapping[Curve, Mark]) -> None:
    """Everything but names, where `rows` is the y of each label."""
    axes.axvline(1, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
    if panel.band:
        step = (axes.get_ylim()[1] - rows[panel.band[0].label]) / (len(panel.band) + 0.8)
        ground = style.faded(look_mark(style, "lossless").colour, 0.08)
        axes.axhspan(rows[panel.band[0].label] - step / 2, axes.get_ylim()[1], facecolor=ground, zorder=0)
        height = (axes.get_ylim()[1] - rows[panel.band[-1].label] - step / 2) / (
            axes.get_ylim()[1] - axes.get_ylim()[0]
        )
        has_room = height * axes.get_window_extent().height / style.dpi >= line_inches(style)
        axes.annotate(
            LOOKS["lossless"] if has_room else "", (0, 1), xycoords="axes fraction", va="top", fontsize=style.small,
            xytext=(0.5 * style.small, -0.2 * style.small), textcoords="offset points", fontweight="bold",
            color=style.ink,
        )  # fmt: skip
    corners = stairs(panel, rows, axes.get_xlim()[0], axes.get_ylim()[0])
    axes.plot(
        [x for x, _ in corners], [y for _, y in corners], color=style.muted, linewidth=style.line * 0.8,
        linestyle=_FRONTIER_DASHES, zorder=1.5,
    )  # fmt: skip
    of_label: dict[str, Mark] = {}
    by_label = {dot.label: dot for dot in panel.dots}
    for curve in panel.curves:
        mark, members = marks[curve], [by_label[label] for label in curve.labels]
        of_label |= dict.fromkeys(curve.labels, mark)
        axes.plot(
            [dot.x for dot in members], [dot.y for dot in members], color=mark.colour, linestyle=mark.dashes,
            linewidth=style.line * 0.8, zorder=2,
        )  # fmt: skip
    for dot in panel.dots:
        _draw_dot(axes, dot, rows[dot.label], style, of_label.get(dot.label, look_mark(style, dot.look)))


def stairs(panel: Panel, rows: Mapping[str, float], left: float, floor: float) -> list[tuple[float, float]]:
    """The frontier: from the best dot of the band, or from the left edge, down to the fastest dot and the floor."""
    best = sorted(((dot.x, rows[dot.label]) for dot in panel.dots if dot.best), key=lambda at: (at[0], -at[1]))
    corners = [best[0] if any(dot.best for dot in panel.band) else (left, best[0][1])]
    for (x, y), (_, next_y) in zip(best, [*best[1:], (0.0, floor)], strict=True):
        corners += [(x, y), (x, next_y)]
    return corners


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


def _write_names(axes: Axes, panel: Panel, rows: Mapping[str, float], names: Names, style: Style) -> int:
    """Write the names, and return how many overlap another name or a marker, or are cut. A name may touch a bar."""
    markers, bars = zip(*(_boxes(axes, dot, rows[dot.label], style) for dot in panel.dots), strict=True)
    area = axes.get_window_extent()
    band = Bbox([[area.x0, area.y1], [area.x1, area.y1]])
    if panel.band:
        lowest = axes.transData.transform((0, rows[panel.band[0].label]))[1]
        band = Bbox([[area.x0, lowest - _row_inches(style) * style.dpi / 2], [area.x1, area.y1]])
    below = Bbox([[area.x0, area.y0], [area.x1, band.y0]])
    written = [_write_row(axes, dot, rows[dot.label], names.of(dot), style) for dot in panel.band if names.of(dot)]
    texts = [_free_text(axes, dot, names.of(dot), style) for dot in panel.free if names.of(dot)]
    boxes = [text.get_window_extent() for text in texts]
    cut_rows = sum(not _inside(text.get_window_extent(), area) for text in written)
    if cut_rows or any(box.width > 0.9 * below.width or box.height > 0.9 * below.height for box in boxes):
        return cut_rows + len(texts)
    to_data = axes.transData.inverted()
    if texts:
        adjust_text(
            texts,
            objects=[box.transformed(to_data) for box in (*markers, *(bar for pair in bars for bar in pair), band)],
            ax=axes,
            expand=(1.1, 1.2),
            force_text=(0.3, 0.5),
            force_static=(0.2, 0.4),
            iter_lim=_ROUNDS,
            min_arrow_len=style.marker,
            arrowprops={"arrowstyle": "-", "color": style.muted, "linewidth": style.line * 0.4, "zorder": 2},
        )
    extents = [text.get_window_extent() for text in (*written, *texts)]
    cut = sum(not _inside(box, area) for box in extents) + sum(
        _overlap(text.get_window_extent(), band) for text in texts
    )
    overlaps = sum(_overlap(box, other) for box, other in combinations(extents, 2))
    return cut + overlaps + sum(_overlap(box, marker) for box in extents for marker in markers)


def _boxes(axes: Axes, dot: Dot, y: float, style: Style) -> tuple[Bbox, tuple[Bbox, Bbox]]:
    """The pixels of a dot's marker, and of its two bars."""
    half = style.marker * style.dpi / 144
    low, high = (y, y) if dot.banded else dot.y_ends
    (x0, y0), (x1, y1), (x, middle) = axes.transData.transform(
        [(dot.x_ends[0], low), (dot.x_ends[1], high), (dot.x, y)]
    ).tolist()
    marker = Bbox([[x - half, middle - half], [x + half, middle + half]])
    return marker, (Bbox([[x0, middle - 1], [x1, middle + 1]]), Bbox([[x - 1, y0], [x + 1, y1]]))


def _write_row(axes: Axes, dot: Dot, y: float, text: str, style: Style) -> Text:
    """Right of a dot in the band, or left of it where only there is room."""
    reach = (0.5 * style.marker + 0.5 * style.small) / 72 * style.dpi
    left, right = (axes.transData.transform((end, y))[0] for end in dot.x_ends)
    width = text_inches(text, style.small)[0] * style.dpi
    is_right = right + reach + width <= axes.get_window_extent().x1
    written: Text = axes.annotate(
        text,
        (dot.x_ends[1] if is_right else dot.x_ends[0], y),
        xytext=((0.5 * style.marker + 0.4 * style.small) * (1 if is_right else -1), 0),
        textcoords="offset points",
        ha="left" if is_right else "right",
        va="center_baseline",
        fontsize=style.small,
        color=style.ink if dot.best else style.muted,
        parse_math=False,
        gid=f"method-{dot.number}-name",
    )
    return written


def _free_text(axes: Axes, dot: Dot, text: str, style: Style) -> Text:
    lines = [line for whole in text.split("\n") for line in in_lines(whole, style.small, 0.28 * style.width)]
    return axes.text(
        dot.x,
        dot.y,
        "\n".join(lines),
        ha="center",
        va="center",
        ma="center",
        linespacing=LINE_SPACING * 0.9,
        fontsize=style.small,
        color=style.ink if dot.best else style.muted,
        parse_math=False,
        gid=f"method-{dot.number}-name",
    )


def _inside(box: Bbox, area: Bbox) -> bool:
    return bool(box.x0 >= area.x0 and box.x1 <= area.x1 and box.y0 >= area.y0 and box.y1 <= area.y1)


def _overlap(box: Bbox, other: Bbox) -> bool:
    return bool(min(box.x1, other.x1) > max(box.x0, other.x0) and min(box.y1, other.y1) > max(box.y0, other.y0))


# --- the key ----------------------------------------------------------------------------------------------------------


def _key(panels: Sequence[Panel], names: Names, style: Style, marks: Mapping[Curve, Mark]) -> list[Line2D]:
    """Looks, the frontier, curves, and the numbered methods."""
    dots = {dot.label: dot for panel in panels for dot in reversed(panel.dots)}
    methods = sum(dot.look != "baseline" for dot in dots.values())
    unnamed = f"; {methods - len(names.numbers)} not named" if names.numbers and methods > len(names.numbers) else ""
    of_label = {label: mark for curve, mark in marks.items() for label in curve.labels}
    looks = {dot.look for dot in dots.values()}
    entries = [_marker_entry(look_mark(style, look), title, style) for look, title in LOOKS.items() if look in looks]
    entries.append(
        Line2D([], [], color=style.muted, linewidth=style.line * 0.8, linestyle=_FRONTIER_DASHES,
               label=f"frontier (faded: beaten by another{unnamed})")
    )  # fmt: skip
    for curve, mark in marks.items():
        entries.append(_marker_entry(mark, curve.title, style))
        entries[-1].set(linestyle=mark.dashes, linewidth=style.line)
    for label, number in names.numbers.items():
        dot = dots[label]
        mark = of_label.get(label, look_mark(style, dot.look))
        speed = f"  {dot.x:.2f}x" if len(panels) == 1 else ""
        text = f"{number}  {_badge(dot)}{names.words[label]}{speed}"
        entries.append(_marker_entry(mark, text, style, solid=len(panels) > 1 or dot.best))
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


def _break_key(key: Sequence[Line2D], style: Style, width: float) -> tuple[int, float]:
    """Break the entries so that the key is as low as possible within `width` inches; its columns and its height."""
    handle = (_KEY_HANDLE + 2) * style.small / 72
    texts = [str(entry.get_label()) for entry in key]

    def broken(columns: int) -> list[list[str]]:
        return [in_lines(text, style.small, width / columns - handle, indent="    ") for text in texts]

    def height(columns: int) -> int:
        counts = [len(lines) for lines in broken(columns)]
        per_column = ceil(len(counts) / columns)
        return max(sum(counts[start : start + per_column]) for start in range(0, len(counts), per_column))

    most = max(1, min(len(key), int(width / (_KEY_COLUMN * style.small / 72))))
    columns = min(range(1, most + 1), key=height)
    for entry, lines in zip(key, broken(columns), strict=True):
        entry.set_label("\n".join(lines))
    return columns, (1.35 * height(columns) + 1) * line_inches(style)
