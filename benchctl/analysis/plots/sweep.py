"""Speed-up along one option of a method.

A line for each value of the other options; next to it the target agreement of a lossy method, or the tokens per step of
one that drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from benchctl.analysis.comparison import Group, MethodFigures, chosen
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TARGET_AGREEMENT, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import short_labels
from benchctl.analysis.plots.axes import dress, new_panels, reaches
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.fidelity_axis import FidelityAxis
from benchctl.analysis.plots.style import DASHES, Dashes, Style, is_number, line_inches
from benchctl.analysis.winner import beats
from benchctl.errors import UserError
from benchctl.records.schema import MethodInfo, Scalar

_LEFT_OUT = "–"  # an option that another version of the method does not have


@dataclass(frozen=True)
class Line:
    """Labels that differ in the swept option only, by its value. `title` has the options that differ between lines, ""
    for a single line."""

    title: str
    points: Mapping[Scalar, MethodFigures]


@dataclass(frozen=True)
class Sweep:
    """`values` of the option, sorted if numbers, else as measured. `second` is the metric next to the speed-up: target
    agreement of a lossy method (token agreement where it was not measured), block efficiency of one that drafts, else
    None."""

    group: Group
    name: str
    option: str
    values: tuple[Scalar, ...]
    lines: tuple[Line, ...]
    second: Metric | None

    @property
    def methods(self) -> tuple[MethodFigures, ...]:
        """Those of all lines."""
        return tuple(method for line in self.lines for method in line.points.values())

    @property
    def is_numeric(self) -> bool:
        return _all_numbers(self.values)


def sweeps(groups: Sequence[Group], wanted: Sequence[str] = (), option: str = "") -> tuple[Sweep, ...]:
    """The sweep of one method in each of `groups` that has measured it: the first of the `wanted` ones (see chosen)
    with labels that differ in an option. It goes along `option`; by default along the numeric option with most values,
    or along another one where no number differs.

    Raises UserError where no method was swept, and for an option in which its labels do not differ.
    """
    labels = chosen(groups, wanted)
    names = swept_names(groups, labels)
    if not names:
        whose = " ".join(wanted) or "any method"
        raise UserError(
            "not_swept",
            f"{groups[0].files[0].path}: has no labels of {whose} that differ in an option. Measure some: "
            "benchctl run --sweep 'two_model[draft_tokens=2|4|8]'.",
        )
    by_group = [(group, _by_name(group, labels).get(names[0], [])) for group in groups]
    swept = [(group, methods) for group, methods in by_group if _differing(methods)]
    return tuple(_sweep(group, methods, option) for group, methods in swept)


def swept_names(groups: Sequence[Group], labels: Sequence[str]) -> tuple[str, ...]:
    """The methods of which any group has measured several of `labels`."""
    found = (name for group in groups for name, methods in _by_name(group, labels).items() if _differing(methods))
    return tuple(dict.fromkeys(found))


def _sweep(group: Group, methods: Sequence[MethodInfo], option: str) -> Sweep:
    options = _differing(methods)
    if option and option not in options:
        raise UserError(
            "unknown_option",
            f"--by {option}: the labels of {methods[0].name} do not differ in it. They do in: {' '.join(options)}.",
        )
    along = option or max(options, key=lambda each: (_all_numbers(options[each]), len(options[each])))
    values = options[along]
    figures = {method.label: method for method in group.pooled.methods}
    return Sweep(
        group=group,
        name=methods[0].name,
        option=along,
        values=tuple(sorted(values, key=_order)) if _all_numbers(values) else values,
        lines=_lines(methods, along, [each for each in options if each != along], figures),
        second=_second_metric([figures[method.label] for method in methods]),
    )


def _by_name(group: Group, labels: Sequence[str]) -> dict[str, list[MethodInfo]]:
    """The methods of these labels that have a speed-up, by their names, as `labels` has them."""
    methods = [method for method in group.pooled.methods if not method.refused]
    measured = {method.label for method in methods if method.estimate(SPEEDUP).value is not None}
    infos = {method.label: method for method in group.methods if method.label in measured}
    found: dict[str, list[MethodInfo]] = {}
    for label in labels:
        if label in infos and label != group.run.baseline:
            found.setdefault(infos[label].name, []).append(infos[label])
    return found


def _differing(methods: Sequence[MethodInfo]) -> dict[str, tuple[Scalar, ...]]:
    """The values of each option that has several, as the labels have them in turn."""
    names = dict.fromkeys(name for method in methods for name in method.options)
    values = {name: tuple(dict.fromkeys(_value(method, name) for method in methods)) for name in names}
    return {name: several for name, several in values.items() if len(several) > 1}


def _lines(
    methods: Sequence[MethodInfo], along: str, others: Sequence[str], figures: Mapping[str, MethodFigures]
) -> tuple[Line, ...]:
    found: dict[tuple[Scalar, ...], dict[Scalar, MethodFigures]] = {}
    for method in methods:
        key = tuple(_value(method, name) for name in others)
        found.setdefault(key, {})[_value(method, along)] = figures[method.label]
    return tuple(
        Line(", ".join(f"{name}={text(value)}" for name, value in zip(others, key, strict=True)), points)
        for key, points in sorted(found.items(), key=lambda item: [_order(value) for value in item[0]])
    )


def _second_metric(methods: Sequence[MethodFigures]) -> Metric | None:
    if any(method.exactness == "lossy" for method in methods):
        fidelity = (TARGET_AGREEMENT, TOKEN_AGREEMENT)
        return next(
            (each for each in fidelity if all(method.estimate(each).value is not None for method in methods)), None
        )
    drafts = any(method.estimate(ACCEPTANCE_RATE).value is not None for method in methods)
    return BLOCK_EFFICIENCY if drafts else None


def text(value: Scalar) -> str:
    """A value of an option as labels write it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _value(method: MethodInfo, name: str) -> Scalar:
    return method.options.get(name, _LEFT_OUT)


def _all_numbers(values: Sequence[Scalar]) -> bool:
    return all(map(is_number, values))


def _order(value: Scalar) -> tuple[bool, float, str]:
    """Numbers by their size, before all else in alphabetical order."""
    return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, text(value))


_MOST_LINES = 8
_INCHES: Final = {"screen": 2.4, "column": 1.4}  # height of the axes
_SPREAD = 0.5  # of the least distance between values: lines are spread over it, so that their bars do not overlap
_MOST_TICKS: Final = {"screen": 8, "column": 4}
_MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class _Look:
    """Of a line. All are of one method, and have its colour from strong to pale."""

    title: str
    colour: str
    marker: str
    dashes: Dashes

    def entry(self, style: Style) -> Line2D:
        return Line2D([], [], color=self.colour, marker=self.marker, linestyle=self.dashes, linewidth=style.line,
                      markersize=style.marker * 0.8, label=self.title)  # fmt: skip


def _look(number: int, title: str, name: str, style: Style) -> _Look:
    colour = style.faded(style.colour_of(name), 1 - 0.08 * number)
    return _Look(title, colour, _MARKERS[number], DASHES[number % len(DASHES)])


def significant(sweep: Sweep) -> frozenset[tuple[str, str]]:
    """The pairs of labels, the baseline included, whose times differ significantly; the faster one is first."""
    return beats(sweep.group.frame, [*(method.label for method in sweep.methods), sweep.group.run.baseline])


def _title(sweep: Sweep, differing: frozenset[tuple[str, str]]) -> str:
    """Whether settings differ in speed, and how many are slower than the fastest one."""
    labels = [method.label for method in sweep.methods]
    if not any(one in labels and other in labels for one, other in differing):
        return f"No two of {len(labels)} settings of {sweep.name} differ significantly in speed"
    best = max(sweep.methods, key=lambda method: method.estimate(SPEEDUP).value or 0.0).label
    slower = sum((best, other) in differing for other in labels)
    return f"{short_labels(labels)[best]} is significantly faster than {slower} of {len(labels) - 1} other settings"


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """The sweep of one method (see `sweeps`). Hollow marks are not significantly faster or slower than the baseline.

    Raises UserError as `sweeps` does, and for more lines or groups than there is room for.
    """
    style = request.style
    found = sweeps(groups, request.methods, request.by)
    name, option = found[0].name, found[0].option
    titles = list(dict.fromkeys(line.title for sweep in found for line in sweep.lines))
    if len(titles) > _MOST_LINES:
        raise UserError(
            "too_many_lines",
            f"{name}: its labels make {len(titles)} lines by {option}, and a picture has room for {_MOST_LINES}. Name "
            "the labels of fewer with --method, or another option with --by.",
        )
    differing = [significant(sweep) for sweep in found]
    looks = {title: _look(number, title, name, style) for number, title in enumerate(titles)}
    figure, panels = new_panels(
        [sweep.group for sweep in found],
        [_title(sweep, pairs) for sweep, pairs in zip(found, differing, strict=True)],
        style,
        [_INCHES[style.size] + 3.5 * line_inches(style)] * len(found),
        keys=[[look.entry(style) for look in looks.values() if look.title], [_hollow(style)]],
    )
    for panel, sweep, pairs in zip(panels, found, differing, strict=True):
        _draw(panel, sweep, pairs, looks, style)
    return Drawing(figure, list(_notes(groups, request, found)))


PLOT = Plot(draw, options=("suites", "by_suite", "methods", "by"))


def _notes(groups: Sequence[Group], request: Request, found: Sequence[Sweep]) -> Iterator[str]:
    name, option = found[0].name, found[0].option
    if others := [other for other in swept_names(groups, chosen(groups, request.methods)) if other != name]:
        yield f"the picture is of {name}. Also swept: --method {', '.join(others)}."
    if not any(len(line.points) > 1 for sweep in found for line in sweep.lines):
        yield f"no two labels of {name} differ in {option} alone: the picture does not show its effect."
    refused = (method.label for sweep in found for method in sweep.group.pooled.methods if method.refused)
    if left_out := dict.fromkeys(label for label in refused if label.partition("[")[0] == name):
        yield f"left out, because their figures are refused: {', '.join(left_out)}."
    if any(method.estimate(SPEEDUP).interval is None for sweep in found for method in sweep.methods):
        yield "a point without a bar has no interval. Measure more prompts."


def _hollow(style: Style) -> Line2D:
    return Line2D(
        [], [], color=style.muted, marker="o", markerfacecolor=style.ground, linestyle="",
        markersize=style.marker * 0.8, label="hollow: no significant speed difference to the baseline",
    )  # fmt: skip


def _draw(
    part: SubFigure, sweep: Sweep, differing: frozenset[tuple[str, str]], looks: Mapping[str, _Look], style: Style
) -> None:
    metrics = [SPEEDUP, *([sweep.second] if sweep.second else [])]
    grid = part.subplots(1, len(metrics), squeeze=False, sharex=True)[0]
    for axes, metric in zip(grid, metrics, strict=True):
        for line in sweep.lines:
            _draw_line(axes, line, metric, sweep, differing, looks[line.title], style)
        _describe(axes, metric, sweep, style)
    part.supxlabel(f"{sweep.option} of {sweep.name} (95% intervals)", fontsize=style.text, color=style.ink)


def _draw_line(
    axes: Axes,
    line: Line,
    metric: Metric,
    sweep: Sweep,
    differing: frozenset[tuple[str, str]],
    look: _Look,
    style: Style,
) -> None:
    """Values that were not measured are left out of it."""
    points = [
        (index, line.points[value].label, estimate)
        for index, value in enumerate(sweep.values)
        if value in line.points and (estimate := line.points[value].estimate(metric)).value is not None
    ]
    xs = [_x(sweep, index) + _offset(sweep, line) for index, _, _ in points]
    values = [estimate.value or 0.0 for _, _, estimate in points]
    colour, baseline = look.colour, sweep.group.run.baseline
    axes.errorbar(xs, values, yerr=reaches([each for _, _, each in points]), fmt="none", ecolor=colour,
                  elinewidth=style.line * 0.7, capsize=style.marker / 4, zorder=2)  # fmt: skip
    axes.plot(xs, values, color=colour, linestyle=look.dashes if sweep.is_numeric else "",
              linewidth=style.line, zorder=3)  # fmt: skip
    for x, value, (_, label, _) in zip(xs, values, points, strict=True):
        is_sure = (label, baseline) in differing or (baseline, label) in differing
        axes.plot([x], [value], look.marker, color=colour, markersize=style.marker * 0.8, zorder=4,
                  markerfacecolor=colour if is_sure or metric != SPEEDUP else style.ground)  # fmt: skip


def _x(sweep: Sweep, index: int) -> float:
    """Numbers stand where they are, other values side by side."""
    return float(str(sweep.values[index])) if sweep.is_numeric else float(index)


def _offset(sweep: Sweep, line: Line) -> float:
    positions = [_x(sweep, index) for index in range(len(sweep.values))]
    least = min(abs(one - other) for one, other in pairwise(positions))
    return _SPREAD * least * ((sweep.lines.index(line) + 0.5) / len(sweep.lines) - 0.5)


def _describe(axes: Axes, metric: Metric, sweep: Sweep, style: Style) -> None:
    names = {SPEEDUP.name: f"speed-up over\n{sweep.group.run.baseline}", BLOCK_EFFICIENCY.name: "tokens per step"}
    axes.set_ylabel(names.get(metric.name, FidelityAxis(metric).name))
    if metric == SPEEDUP:
        axes.axhline(1, color=style.muted, linewidth=style.line * 0.7, linestyle=":", zorder=0)
    positions = [_x(sweep, index) for index in range(len(sweep.values))]
    ticks = range(0, len(positions), ceil(len(positions) / _MOST_TICKS[style.size]) if sweep.is_numeric else 1)
    axes.set_xticks([positions[index] for index in ticks], [text(sweep.values[index]) for index in ticks])
    if not sweep.is_numeric:
        axes.set_xlim(-0.5, len(positions) - 0.5)
    dress(axes, style)
