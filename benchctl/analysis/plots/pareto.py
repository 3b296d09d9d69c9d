"""Speed-up against fidelity, with the methods that no other beats in both.

The lossless methods and the baseline all have the same fidelity. Where there are several, each has a row in a band
above the other methods, the fastest lowest. The band has no scale upwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.frame.build import claims_exact
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import label_lines, short_labels
from benchctl.analysis.plots.axes import check_groups, dress, new_panels, settle
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.fidelity_axis import AGAINST_BASELINE, METRICS, FidelityAxis, fidelity_axis
from benchctl.analysis.plots.style import DASHES, Dashes, Style, is_number, line_inches, wrapped
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.winner import summarise
from benchctl.records.schema import MethodInfo

Look = Literal["baseline", "lossless", "claimed", "unproven", "lossy"]
LOOKS: Final[dict[Look, str]] = {
    "baseline": "baseline",
    "lossless": "✓ lossless",
    "claimed": "lossless by claim (sampled)",
    "unproven": "✗ refused or not confirmed",
    "lossy": "lossy",
}
_MARKERS: Final[dict[Look, str]] = {
    "baseline": "s",
    "lossless": "o",
    "claimed": "D",
    "unproven": "X",
    "lossy": "^",
}

_FEWEST_OF_CURVE = 3
_COLUMNS: Final = {"screen": 2, "column": 1}  # of panels
_FREE_INCHES: Final = {"screen": 2.5, "column": 1.2}  # height of the part of a panel below the band
_MOST_EXPLAINED = 12  # names in the key
_MOST_ROWS = 8  # of the band and of the key in a column, whose height is limited
_PIECES = 12  # of a curve between two dots
_DISTANCES = (1.0, 1.5, 2.0, 3.0, 4.5, 6.0)  # of a name from its dot, from the nearest
_DIRECTIONS = ((1, 0.4), (-1, 0.4), (1, -0.4), (-1, -0.4), (0, 1), (0, -1), (0.7, 1), (-0.7, 1), (0.7, -1), (-0.7, -1))


@dataclass(frozen=True)
class Dot:
    """A method in a panel at speed-up `x` and fidelity `y`. `x_ends` and `y_ends` are the ends of its error bars, the
    value itself without a bar: where it has no interval, and on a curve if another method beats it. `best`: none does.
    `banded`: it stands in the band of lossless methods."""

    label: str
    look: Look
    x: float
    y: float
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]
    best: bool
    banded: bool


@dataclass(frozen=True)
class Curve:
    """Lossy labels that differ in one number, in its order. `title` has this number, and the options that set the curve
    apart from other labels of its method."""

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

    @property
    def title(self) -> str:
        """The finding. Without lossless methods there is none, and the title is what the picture shows."""
        if not any(dot.look in ("lossless", "claimed") for dot in self.dots):
            return "Speed-up and fidelity"
        return summarise(self.group, short_labels([method.label for method in self.group.pooled.methods])).headline


@dataclass(frozen=True)
class Item:
    """A curve or a single label, and what it is called. `details` are its options, for the key; "" where the name is
    enough. `dashes` set apart the curves of one method."""

    labels: tuple[str, ...]
    name: str
    look: Look
    details: str
    dashes: Dashes


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """A panel for each group. Raises UserError for runs without the asked fidelity, and for too many groups."""
    check_groups(groups, request.style, _COLUMNS[request.style.size])
    axis = fidelity_axis(request.quality, groups, request.judge)
    figure, unexplained = draw_panels([panel_of(group, axis) for group in groups], axis, request.style)
    note = f"the key has no room for the options of {unexplained} names. See `benchctl compare`."
    return Drawing(figure, [note] if unexplained else [])


PLOT = Plot(
    draw,
    options=("suites", "by_suite", "quality", "judge"),
    needs_greedy=lambda request: not request.quality or METRICS[request.quality] in AGAINST_BASELINE,
)


# --- what a panel shows -----------------------------------------------------------------------------------------------


def panel_of(group: Group, axis: FidelityAxis) -> Panel:
    """The dots of a group, all its suites together. Raises UserError as `FidelityAxis.of` does."""
    methods = [method for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None]
    fidelity = [axis.of(group, method) for method in methods]
    xs = [1.0 if method.is_baseline else method.estimate(SPEEDUP).value or 0.0 for method in methods]
    points = [(x, estimate.value or 0.0) for x, estimate in zip(xs, fidelity, strict=True)]
    looks = [look_of(group, method) for method in methods]
    with_band = axis.metric in AGAINST_BASELINE and looks.count("lossless") > 1
    banded = [with_band and look in ("baseline", "lossless") for look in looks]
    # A lossless method whose answers differ in ties has all of the fidelity.
    ranked = [(x, 1.0 if in_band else y) for (x, y), in_band in zip(points, banded, strict=True)]
    lossy = {method.label for method, look in zip(methods, looks, strict=True) if look == "lossy"}
    found = curves([method for method in group.methods if method.label in lossy])
    on_curves = {label for curve in found for label in curve.labels}
    dots = []
    for method, estimate, (x, y), best, look, in_band in zip(
        methods, fidelity, points, frontier(ranked, looks), looks, banded, strict=True
    ):
        has_bars = best or method.label not in on_curves
        x_ends, y_ends = (_ends(method.estimate(SPEEDUP), x), _ends(estimate, y)) if has_bars else ((x, x), (y, y))
        dots.append(Dot(method.label, look, x, y, x_ends, y_ends, best, in_band))
    return Panel(group, tuple(dots), found)


def look_of(group: Group, method: MethodFigures) -> Look:
    """The class of a method by its answers and its claim."""
    if method.is_baseline:
        return "baseline"
    if method.lossless:
        return "lossless"
    claims, counts = claims_exact(method.exactness, group.run.temperature), method.fidelity
    if claims and counts.sampled and not (method.refused or counts.failed or counts.unjudged):
        return "claimed"
    return "unproven" if method.refused or claims else "lossy"


def frontier(points: Sequence[tuple[float, float]], looks: Sequence[Look]) -> tuple[bool, ...]:
    """For each point, whether no other one beats it: is at least as high in both numbers, and higher in one.

    Points marked unproven neither beat others nor are the best.

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
                found.append((methods.index(members[0]), _curve(members, option, methods)))
    return tuple(curve for _, curve in sorted(found, key=lambda item: item[0]))


def _curve(members: Sequence[MethodInfo], option: str, methods: Sequence[MethodInfo]) -> Curve:
    ordered = sorted(members, key=lambda method: float(str(method.options[option])))
    labels = [label_lines(method.label) for method in methods if method.name == members[0].name]
    options = max((label_lines(method.label) for method in members), key=len)
    apart = [text for text in options if not text.startswith(f"{option}=") and any(text not in each for each in labels)]
    swept = f"{option} {ordered[0].options[option]} to {ordered[-1].options[option]}"
    return Curve(tuple(method.label for method in ordered), " ".join([*apart, swept]))


def _ends(estimate: Estimate, value: float) -> tuple[float, float]:
    """Of the interval. Rounding may put an end beyond the value, in its last digit."""
    interval = estimate.interval
    return (min(interval.low, value), max(interval.high, value)) if interval else (value, value)


def items_of(panels: Sequence[Panel]) -> tuple[Item, ...]:
    """All curves and single labels. A method's name is enough for its only label among the lossless methods, or among
    the others; of several each gets a number."""
    looks = {dot.label: dot.look for panel in panels for dot in panel.dots}
    short = short_labels(list(looks))
    found = {curve.labels: curve.title for panel in panels for curve in panel.curves}
    on_curves = {label for labels in found for label in labels}
    found |= {(label,): short[label].partition(" ")[2] or "defaults" for label in looks if label not in on_curves}
    kinds = {labels: (label_lines(labels[0])[0], looks[labels[0]]) for labels in found}
    counts, numbers = Counter(kinds.values()), Counter[tuple[str, Look]]()
    items = []
    for labels, details in found.items():
        (name, look) = kind = kinds[labels]
        numbers[kind] += 1
        several = counts[kind] > 1
        own = f"{name} {numbers[kind]}" if several else name
        dashes = DASHES[(numbers[kind] - 1) % len(DASHES)]
        items.append(Item(labels, own, look, details if several or len(labels) > 1 else "", dashes))
    return tuple(items)


@dataclass(frozen=True)
class _Place:
    """Where a dot stands: in the band `y` is its row."""

    dot: Dot
    axes: Axes
    y: float

    @property
    def y_ends(self) -> tuple[float, float]:
        return (self.y, self.y) if self.dot.banded else self.dot.y_ends


_Limits = tuple[tuple[float, float], tuple[float, float]]
"""Of the axes x and y, the same in all panels."""


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_panels(panels: Sequence[Panel], axis: FidelityAxis, style: Style) -> tuple[Figure, int]:
    """The picture, and how many names the key leaves out. A name without a free place near its dot is left out."""
    items = items_of(panels)
    best = {dot.label for panel in panels for dot in panel.dots if dot.best}
    explained = sorted((item for item in items if item.details), key=lambda item: best.isdisjoint(item.labels))
    rows = max(len(panel.band) for panel in panels)
    shown = explained[: _MOST_EXPLAINED if style.size == "screen" else max(0, _MOST_ROWS - rows)]
    labels = 3.5 * line_inches(style)
    figure, parts = new_panels(
        [panel.group for panel in panels],
        [panel.title for panel in panels],
        style,
        [_band_inches(panel, style) + _free_inches(panel, len(panels), style) + labels for panel in panels],
        columns=_COLUMNS[style.size],
        keys=(_looks_key(panels, style), _items_key([item for item in items if item in shown], style)),
    )
    width, limits = style.width / min(_COLUMNS[style.size], len(panels)), _limits(panels)
    drawn = []
    for part, panel in zip(parts, panels, strict=True):
        free = max(part.bbox.height / style.dpi - _band_inches(panel, style) - labels, 0.1)
        shares = [inches for inches in (_band_inches(panel, style), free * bool(panel.free)) if inches]
        grid = part.subplots(len(shares), 1, squeeze=False, sharex=True, height_ratios=shares)[:, 0]
        places = _draw_panel((grid[0], grid[-1]), panel, axis, limits, style)
        _draw_curves(panel, items, grid[-1], style)
        drawn.append(places)
        x_name = f"speed-up over {panel.group.run.baseline} (95% intervals)"
        grid[-1].set_xlabel(wrapped([x_name], style.text, width - (0.7 if len(panels) == 1 else 1.1)))
    settle(figure)
    for places, panel in zip(drawn, panels, strict=True):
        _write_names(places, panel.curves, items, style)
    return figure, len(explained) - len(shown)


def _limits(panels: Sequence[Panel]) -> _Limits:
    """As far as the data and their bars go, with a margin."""
    dots = [dot for panel in panels for dot in panel.dots]
    ys = [end for dot in dots for end in dot.y_ends if not dot.banded]
    return _around([1.0, *(end for dot in dots for end in dot.x_ends)], 0.2), _around(ys or [1.0], 0.1)


def _around(values: Sequence[float], least: float) -> tuple[float, float]:
    """Limits with a margin, at least `least` apart."""
    middle, half = (min(values) + max(values)) / 2, 0.57 * max(max(values) - min(values), least)
    return middle - half, middle + half


def _band_inches(panel: Panel, style: Style) -> float:
    return len(panel.band) * max(1.4 * style.small, 1.2 * style.marker) / 72


def _free_inches(panel: Panel, panels: int, style: Style) -> float:
    """The height of the part below the band, where a picture may grow."""
    few = min(1.0, 0.4 + 0.12 * len(panel.free))
    return _FREE_INCHES[style.size] * few * (0.7 if panels > 1 else 1.0) * bool(panel.free)


def _draw_panel(
    grid: tuple[Axes, Axes], panel: Panel, axis: FidelityAxis, limits: _Limits, style: Style
) -> list[_Place]:
    """Everything but curves and names, and where each dot stands. `grid` has the axes of the band and those below it,
    or the same twice."""
    (upper, lower), (x_limits, y_limits) = grid, limits
    lower.set_xlim(*x_limits)
    places = [_Place(dot, lower, dot.y) for dot in panel.free]
    if panel.free:
        lower.set_ylim(*y_limits)
        ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(*y_limits)
        most = y_limits[1] if axis.judge else min(y_limits[1], 1.0)  # no share is above 1
        lower.set_yticks([tick for tick in ticks if y_limits[0] <= tick <= most + 1e-9])
        lower.set_ylabel(axis.title(panel.group))
    if panel.band:
        upper.set_ylim(-0.8, len(panel.band) - 0.2)
        upper.set_yticks([])
        upper.set_ylabel("lossless" if panel.free else f"lossless:\n{axis.name} 1")
        places += [_Place(dot, upper, float(row)) for row, dot in enumerate(panel.band)]
    for axes in grid:
        axes.axvline(1, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
        dress(axes, style)
        axes.tick_params(axis="x", length=3 * (axes is lower), labelbottom=axes is lower)
    if panel.band:
        upper.set_facecolor(style.faded(style.colours[0], 0.08))
        upper.spines["bottom"].set_visible(not panel.free)
    if axis.judge:
        lower.axhline(0, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
    _draw_frontier(places, lower, style)
    for place in places:
        _draw_dot(place, style)
    return places


def _draw_curves(panel: Panel, items: Sequence[Item], axes: Axes, style: Style) -> None:
    dots, dashes = {dot.label: dot for dot in panel.dots}, {item.labels: item.dashes for item in items}
    for curve in panel.curves:
        line = [dots[label] for label in curve.labels]
        axes.plot([dot.x for dot in line], [dot.y for dot in line], color=style.colour_of(curve.labels[0]),
                  linestyle=dashes[curve.labels], linewidth=style.line * 0.8, zorder=2)  # fmt: skip


def _draw_frontier(places: Sequence[_Place], lower: Axes, style: Style) -> None:
    """From the best lossless method, or from the left edge, down to the fastest method."""
    look: dict[str, Any] = {"color": style.muted, "linewidth": style.line, "drawstyle": "steps-pre", "zorder": 1.5}
    banded = [place for place in places if place.dot.banded and place.dot.best]
    free = sorted((place.dot.x, place.y) for place in places if place.dot.best and not place.dot.banded)
    (left, _), (floor, ceiling) = lower.get_xlim(), lower.get_ylim()
    for place in banded:
        place.axes.plot([place.dot.x] * 2, [place.y, place.axes.get_ylim()[0]], **look)
    if free or (banded and banded[0].axes is not lower):
        # A step goes down first, then to the right: the line takes the height of its next corner.
        corners = [(banded[0].dot.x, ceiling) if banded else (left, free[0][1]), *free]
        lower.plot([*(x for x, _ in corners), corners[-1][0]], [*(y for _, y in corners), floor], **look)


def _draw_dot(place: _Place, style: Style) -> None:
    """A method that no other beats has a dark outline."""
    dot, colour = place.dot, style.colour_of(place.dot.label)
    (left, right), (low, high) = dot.x_ends, place.y_ends
    place.axes.errorbar(
        [dot.x],
        [place.y],
        xerr=[[dot.x - left], [right - dot.x]] if right > left else None,
        yerr=[[place.y - low], [high - place.y]] if high > low else None,
        fmt=_MARKERS[dot.look],
        color=colour,
        markersize=style.marker,
        markeredgecolor=style.ink if dot.best else style.ground,
        markeredgewidth=style.line * (0.9 if dot.best else 0.4),
        capsize=style.marker * 0.3,
        elinewidth=style.line * 0.8,
        label=dot.label,
        zorder=4 if dot.best else 3,
    )


def _write_names(places: Sequence[_Place], curves: Sequence[Curve], items: Sequence[Item], style: Style) -> None:
    """One name for each item. In the band it stands next to the bar, on the side with more room."""
    taken = [_box(place.axes, (place.dot.x,) * 2, (place.y,) * 2, style.marker * style.dpi / 130) for place in places]
    bars = list(_lines(places, curves))
    of_item = [(item.name, [place for place in places if place.dot.label in item.labels]) for item in items]
    ranked = sorted(of_item, key=lambda each: not any(place.dot.best for place in each[1]))
    for name, mine in ranked:
        best = [place for place in mine if place.dot.best]
        words: dict[str, Any] = {"fontsize": style.small, "color": style.ink, "zorder": 5}
        words["fontweight"] = "bold" if best else "normal"
        if mine and mine[0].dot.banded:
            place = mine[0]
            (low, high), (left, right) = place.axes.get_xlim(), place.dot.x_ends
            side = 1 if high - right > left - low else -1
            words |= {"ha": "left" if side > 0 else "right", "va": "center_baseline"}
            end, offset = (right if side > 0 else left, place.y), (side * 0.8 * style.small, 0)
            place.axes.annotate(name, end, offset, textcoords="offset points", **words)
        elif mine:
            taken += _write_next_to(best or mine, name, taken, bars, words, style)


def _lines(places: Sequence[_Place], curves: Sequence[Curve]) -> Iterator[Bbox]:
    """The boxes of bars, and of short pieces of curves, outside the band."""
    free = {place.dot.label: place for place in places if not place.dot.banded}
    for place in free.values():
        yield _box(place.axes, place.dot.x_ends, (place.y,) * 2, 1)
        yield _box(place.axes, (place.dot.x,) * 2, place.y_ends, 1)
    for curve in curves:
        for one, other in pairwise(free[label] for label in curve.labels):
            for step in range(1, _PIECES):
                x, y = (a + step / _PIECES * (b - a) for a, b in ((one.dot.x, other.dot.x), (one.y, other.y)))
                yield _box(one.axes, (x, x), (y, y), 2)


def _write_next_to(
    places: Sequence[_Place],
    name: str,
    taken: Sequence[Bbox],
    lines: Sequence[Bbox],
    words: dict[str, Any],
    style: Style,
) -> list[Bbox]:
    """Write the name next to one of the places, where it covers no name and no marker and the fewest lines, as near as
    may be. The box it takes; none where there is no room for it."""
    axes, points = places[0].axes, 72 / style.dpi
    frame = axes.get_window_extent()
    found: list[tuple[float, int, tuple[float, float], Bbox]] = []
    for number, place in enumerate(places):
        measured = axes.text(place.dot.x, place.y, name, ha="center", va="center", **words)
        box = measured.get_window_extent()
        measured.remove()
        for distance, (right, up) in product(_DISTANCES, _DIRECTIONS):
            reach = style.marker + (distance - 1) * style.small
            offset = (right * (reach + box.width * points / 2), up * (reach + box.height * points / 2))
            moved = box.translated(offset[0] / points, offset[1] / points)
            is_inside = frame.x0 <= moved.x0 and moved.x1 <= frame.x1 and frame.y0 <= moved.y0 and moved.y1 <= frame.y1
            if is_inside and not moved.count_overlaps(taken):
                found.append((moved.count_overlaps(lines) + distance, number, offset, moved))
    if not found:
        return []
    _, number, offset, box = min(found, key=lambda each: each[0])
    at = (places[number].dot.x, places[number].y)
    is_far = max(map(abs, offset)) > 3 * style.small + box.width * points / 2
    line = {"arrowstyle": "-", "color": style.muted, "linewidth": style.line * 0.4, "relpos": (0.5, 0.5)}
    words |= {"arrowprops": line if is_far else None}
    axes.annotate(name, at, offset, textcoords="offset points", ha="center", va="center", **words)
    return [box]


def _box(axes: Axes, xs: tuple[float, float], ys: tuple[float, float], padding: float) -> Bbox:
    return Bbox([[xs[0], ys[0]], [xs[1], ys[1]]]).transformed(axes.transData).padded(padding)


def _looks_key(panels: Sequence[Panel], style: Style) -> list[Line2D]:
    looks = {dot.look for panel in panels for dot in panel.dots}
    entries = [_entry(style.muted, _MARKERS[look], "", title, style) for look, title in LOOKS.items() if look in looks]
    return [*entries, _entry(style.muted, "", "-", "frontier", style)]


def _items_key(items: Sequence[Item], style: Style) -> list[Line2D]:
    """The options of the names that need them."""
    return [
        _entry(
            style.colour_of(item.labels[0]), _MARKERS[item.look], item.dashes if len(item.labels) > 1 else "",
            wrapped([f"{item.name}: {item.details}"], style.small, style.width - 5 * style.small / 72), style,
        )
        for item in items
    ]  # fmt: skip


def _entry(colour: str, marker: str, line: Dashes, text: str, style: Style) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle=line, linewidth=style.line, markeredgewidth=0,
                  markersize=style.marker * 0.9, label=text)  # fmt: skip
