"""The Pareto plot of a report as shapes of an SVG picture: a panel for each suite. Pure geometry."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from textwrap import shorten
from typing import Literal

from benchctl.analysis.comparison import Group, MethodFigures, SuiteFigures, label_lines
from benchctl.analysis.frame.fidelity import claims_exact
from benchctl.analysis.metrics.faithfulness import TARGET_AGREEMENT, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.frontier import Point, frontier
from benchctl.analysis.plots.placing import Box, Label, place
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.tables.columns import cell, spread

WIDTH, HEIGHT = 480, 360
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 46
Look = Literal["baseline", "lossless", "unproven", "lossy"]
LOOKS: dict[Look, str] = {
    "baseline": "baseline",
    "lossless": "lossless",
    "unproven": "exact by claim, not by its answers",
    "lossy": "lossy",
}
_MOST_LABELS = 10  # more cover each other: then those that nothing beats are labelled
_LABEL_CHARACTERS = 30
_CHARACTER, _LINE = 6.4, 13.0  # of a label, in units of the picture
_REACH = 7.0  # of a marker
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A method in a panel; from `low` to `high` and from `bottom` to `top` go its error bars. `words` say what it
    shows."""

    method: int
    look: Look
    best: bool
    x: float
    y: float
    low: float
    high: float
    bottom: float
    top: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class Name:
    """A label beside its mark, with the line that joins them."""

    method: int
    text: str
    x: float
    y: float
    from_x: float
    from_y: float
    to_x: float
    to_y: float


@dataclass(frozen=True)
class Panel:
    """One suite. `no_gain` is where a speed-up of 1 lies, `frontier` are the points of a line. `missing` methods have
    no figures to draw."""

    suite: str
    title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    no_gain: float
    marks: tuple[Mark, ...]
    names: tuple[Name, ...]
    frontier: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """`fidelity` names what stands upwards."""

    fidelity: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class _Dot:
    method: MethodFigures
    number: int
    look: Look
    point: Point
    low: float
    high: float
    bottom: float
    top: float


@dataclass(frozen=True)
class _Scale:
    """From a figure to a place in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def plot(group: Group) -> Plot | None:
    """None where runs tell nothing of fidelity, as sampled ones."""
    fidelity = fidelity_of(group)
    if fidelity is None:
        return None
    panels = tuple(_panel(group, figures, _dots(group, figures, fidelity), fidelity) for figures in pooled_first(group))
    return Plot(fidelity.label, panels)


def pooled_first(group: Group) -> tuple[SuiteFigures, ...]:
    """All suites together, then each in its order; the only one where there is one."""
    return (group.pooled, *group.suites[:-1])


def fidelity_of(group: Group) -> Metric | None:
    """The first measure of fidelity that every method with a speed-up has."""
    methods = [method for method in group.pooled.methods if not method.is_baseline and _speedup(method) is not None]
    told = (
        metric
        for metric in (TOKEN_AGREEMENT, TARGET_AGREEMENT)
        if methods and all(method.estimate(metric).value is not None for method in methods)
    )
    return next(told, None)


def look(group: Group, method: MethodFigures) -> Look:
    """What a method's answers show beside its claim."""
    if method.is_baseline:
        return "baseline"
    if method.lossless:
        return "lossless"
    return "unproven" if claims_exact(method.exactness, group.run.temperature) else "lossy"


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Each label by its name, and by those of its options that tell it from others of that name.

    `m[a=1,b=2]`, `m[a=1,b=3]`, `n[a=1]` -> `m b=2`, `m b=3`, `n`.
    """
    shortened = {}
    for label in labels:
        alike = [label_lines(other) for other in labels if label_lines(other)[0] == label_lines(label)[0]]
        shared = Counter(line for lines in alike for line in lines)
        name, *options = label_lines(label)
        telling = [option for option in options if shared[option] < len(alike)]
        shortened[label] = " ".join([name, *telling])
    return shortened


def _speedup(method: MethodFigures) -> float | None:
    return method.estimate(SPEEDUP).value


def _dots(group: Group, figures: SuiteFigures, fidelity: Metric) -> list[_Dot]:
    numbers = {method.label: number for number, method in enumerate(group.methods)}
    dots = []
    for method in figures.methods:
        speedup, kept = method.estimate(SPEEDUP), _kept(method, fidelity)
        if speedup.value is not None and kept.value is not None:
            point, ends = Point(speedup.value, kept.value), (*_ends(speedup), *_ends(kept))
            dots.append(_Dot(method, numbers[method.label], look(group, method), point, *ends))
    return dots


def _kept(method: MethodFigures, fidelity: Metric) -> Estimate:
    """The baseline agrees with itself."""
    return Estimate(fidelity, 1.0, None) if method.is_baseline else method.estimate(fidelity)


def _ends(found: Estimate) -> tuple[float, float]:
    """Of its error bar."""
    value, interval = found.value or 0.0, found.interval
    return (interval.low, interval.high) if interval else (value, value)


def _panel(group: Group, figures: SuiteFigures, dots: Sequence[_Dot], fidelity: Metric) -> Panel:
    """Each on axes of its own: a suite of few prompts has intervals so wide that others would shrink beside it."""
    x, y = _scales(dots)
    best = frontier([dot.point for dot in dots])
    drawn = {dot.method.label for dot in dots}
    both = list(zip(dots, best, strict=True))
    told = [dot for dot, unbeaten in both if unbeaten or dot.look == "baseline" or len(dots) <= _MOST_LABELS]
    return Panel(
        suite=figures.suite,
        title=group.title(figures),
        x_ticks=_ticks(x, x.high, "x"),
        y_ticks=_ticks(y, max((dot.top for dot in dots), default=1.0), ""),
        no_gain=x(1.0),
        marks=tuple(_mark(dot, unbeaten, fidelity, x, y) for dot, unbeaten in both),
        names=_names(told, dots, x, y),
        frontier=_stairs([dot.point for dot, unbeaten in both if unbeaten], x, y),
        missing=tuple(method.label for method in figures.methods if method.label not in drawn),
    )


def _scales(dots: Sequence[_Dot]) -> tuple[_Scale, _Scale]:
    """With room for labels above and below, and for the line of no gain."""
    xs = [1.0, *(end for dot in dots for end in (dot.low, dot.high))]
    ys = [end for dot in dots for end in (dot.bottom, dot.top)] or [1.0]
    width, height = max(xs) - min(xs) or 0.2, max(max(ys) - min(ys), 0.05)
    return (
        _Scale(min(xs) - 0.06 * width, max(xs) + 0.06 * width, LEFT, WIDTH - RIGHT),
        _Scale(max(ys) - 1.15 * height, max(ys) + 0.3 * height, HEIGHT - BOTTOM, TOP),
    )


def _mark(dot: _Dot, unbeaten: bool, fidelity: Metric, x: _Scale, y: _Scale) -> Mark:
    words = (
        dot.method.label,
        "the baseline itself" if dot.method.is_baseline else f"speed-up {cell(SPEEDUP)(dot.method)}",
        f"{fidelity.label} {'1.000' if dot.method.is_baseline else spread(_kept(dot.method, fidelity), '{:.3f}')}",
        f"{LOOKS[dot.look]}, {dot.method.prompts} prompts",
    )
    places = (x(dot.point.x), y(dot.point.y), x(dot.low), x(dot.high), y(dot.bottom), y(dot.top))
    return Mark(dot.number, dot.look, unbeaten, *places, words)


def _names(told: Sequence[_Dot], dots: Sequence[_Dot], x: _Scale, y: _Scale) -> tuple[Name, ...]:
    """Labels at places where they cover little; `place` counts upwards, pictures downwards."""
    short = short_labels([dot.method.label for dot in dots])
    texts = [
        f"{shorten(short[dot.method.label], _LABEL_CHARACTERS, placeholder=' …')} {dot.point.x:.2f}x" for dot in told
    ]
    labels = [
        Label(x(dot.point.x), -y(dot.point.y), len(text) * _CHARACTER + 6, _LINE + 3)
        for dot, text in zip(told, texts, strict=True)
    ]
    obstacles = [box for dot in dots for box in _covered(dot, x, y)]
    boxes = place(labels, obstacles, Box(LEFT + 2, -(HEIGHT - BOTTOM - 2), WIDTH - RIGHT, -TOP))
    return tuple(_name(*found) for found in zip(told, texts, labels, boxes, strict=True))


def _covered(dot: _Dot, x: _Scale, y: _Scale) -> tuple[Box, Box]:
    """What its marker covers with the bar across, and with the one along."""
    across, up = x(dot.point.x), -y(dot.point.y)
    left, right, bottom, top = across - _REACH, across + _REACH, up - _REACH, up + _REACH
    return (
        Box(min(x(dot.low), left), bottom, max(x(dot.high), right), top),
        Box(left, min(-y(dot.bottom), bottom), right, max(-y(dot.top), top)),
    )


def _name(dot: _Dot, text: str, label: Label, box: Box) -> Name:
    end_x, end_y = label.line_end(box)
    middle_x, middle_y = (box.left + box.right) / 2, -(box.bottom + box.top) / 2
    places = (middle_x, middle_y, label.x, -label.y, end_x, -end_y)
    return Name(dot.number, text, *(round(value, 1) for value in places))


def _stairs(best: Sequence[Point], x: _Scale, y: _Scale) -> str:
    """From the most faithful method to the fastest; whatever lies below is beaten."""
    steps = sorted({(point.x, point.y) for point in best})
    if not steps:
        return ""
    corners: list[tuple[float, float]] = [(LEFT, y(steps[0][1]))]
    for (across, up), (_, next_up) in zip(steps, [*steps[1:], (0, None)], strict=True):
        corners += [(x(across), y(up)), (x(across), HEIGHT - BOTTOM if next_up is None else y(next_up))]
    return " ".join(f"{across},{down}" for across, down in corners)


def _ticks(scale: _Scale, most: float, unit: str) -> tuple[Tick, ...]:
    """Four to eight at round figures, none above `most`."""
    rough = (scale.high - scale.low) / 6
    power = 10.0 ** floor(log10(rough))
    step = next(power * times for times in _STEPS if power * times >= rough)
    places = max(0, -floor(log10(step) + 1e-9)) + (1 if f"{step / power:.1f}" == "2.5" else 0)
    numbers = range(ceil(scale.low / step - 1e-9), floor(most / step + 1e-9) + 1)
    return tuple(Tick(scale(number * step), f"{number * step:.{places}f}{unit}") for number in numbers)
