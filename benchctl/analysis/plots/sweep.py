"""Speed-up along one option of a method.

A line for each value of the other options; next to it the token agreement of a lossy method, or the tokens per step of
one that drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.comparison import Group, MethodFigures, chosen
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.axes import add_legend, dress, legend_inches, new_panels, reaches
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Mark, Style, is_number, line_inches
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
    """`values` of the option, sorted if numbers, else as measured. `second` is the metric next to the speed-up: token
    agreement of a lossy method, block efficiency of one that drafts, else None."""

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
        return (
            TOKEN_AGREEMENT if any(method.estimate(TOKEN_AGREEMENT).value is not None for method in methods) else None
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
_PANEL: Final = {"screen": 2.6, "column": 2.0, "slide": 3.0}  # inches of height
_SPREAD = 0.6  # of the distance between words: lines are spread over it, so that their bars do not overlap
_BAND_OPACITY = 0.16


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """The sweep of one method (see `sweeps`), with 95% intervals as bands.

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
    marks = {title: style.mark(number) for number, title in enumerate(titles)}
    figure, panels = new_panels([sweep.group for sweep in found], style, [_height(sweep, style) for sweep in found])
    for panel, sweep in zip(panels, found, strict=True):
        _draw(panel, sweep, marks, style)
    others = [other for other in swept_names(groups, chosen(groups, request.methods)) if other != name]
    notes = [f"the picture is of {name}. Also swept: --method {', '.join(others)}."] if others else []
    if not any(len(line.points) > 1 for sweep in found for line in sweep.lines):
        notes.append(f"no two labels of {name} differ in {option} alone: the picture does not show its effect.")
    refused = [method.label for sweep in found for method in sweep.group.pooled.methods if method.refused]
    if refused:
        notes.append(f"left out, since no figure of them may be used: {', '.join(refused)}.")
    if any(method.estimate(SPEEDUP).interval is None for sweep in found for method in sweep.methods):
        notes.append("a point without a bar has no interval. Measure more prompts.")
    return Drawing(figure, notes)


PLOT = Plot(draw, options=("suites", "by_suite", "methods", "by"))


def _stacked(sweep: Sweep, style: Style) -> int:
    return 2 if sweep.second and style.size == "column" else 1


def _height(sweep: Sweep, style: Style) -> float:
    titles = [line.title for line in sweep.lines]
    legend = legend_inches(titles, style) if any(titles) else 0.0
    return _PANEL[style.size] * _stacked(sweep, style) + legend + line_inches(style)


def _draw(part: SubFigure, sweep: Sweep, marks: dict[str, Mark], style: Style) -> None:
    metrics = [SPEEDUP, *([sweep.second] if sweep.second else [])]
    rows = _stacked(sweep, style)
    grid = part.subplots(rows, len(metrics) // rows, squeeze=False, sharex=True)
    for axes, metric in zip(grid.flat, metrics, strict=True):
        for number, line in enumerate(sweep.lines):
            offset = 0.0 if sweep.is_numeric else _SPREAD * ((number + 0.5) / len(sweep.lines) - 0.5)
            _draw_line(axes, line, metric, sweep, offset, marks[line.title], style)
        _describe(axes, metric, sweep, style)
    for axes in grid[-1]:
        axes.set_xlabel(f"{sweep.option} of {sweep.name}\n({_spread(sweep)}: 95% interval)")
        axes.tick_params(labelbottom=True)
    if any(line.title for line in sweep.lines):
        handles, titles = grid.flat[0].get_legend_handles_labels()
        add_legend(part, handles, titles, style)


def _draw_line(axes: Axes, line: Line, metric: Metric, sweep: Sweep, offset: float, mark: Mark, style: Style) -> None:
    """Values that were not measured are left out of it."""
    points = [
        (index, estimate)
        for index, value in enumerate(sweep.values)
        if value in line.points and (estimate := line.points[value].estimate(metric)).value is not None
    ]
    xs = [_x(sweep, index) + offset for index, _ in points]
    values = [estimate.value or 0.0 for _, estimate in points]
    reach = reaches([each for _, each in points])
    lows = [value - down for value, down in zip(values, reach[0], strict=True)]
    highs = [value + up for value, up in zip(values, reach[1], strict=True)]
    banded = sweep.is_numeric and len(points) > 1 and all(each.interval for _, each in points)
    if banded:
        axes.fill_between(xs, lows, highs, color=mark.colour, alpha=_BAND_OPACITY, linewidth=0, zorder=1)
        for ends in (lows, highs):
            axes.plot(xs, ends, color=mark.colour, linestyle=mark.dashes, linewidth=style.line * 0.35, zorder=2)
    axes.errorbar(
        xs,
        values,
        yerr=None if banded else reach,
        marker=mark.marker,
        linestyle=mark.dashes if sweep.is_numeric else "",
        color=mark.colour,
        markersize=style.marker,
        markeredgecolor=style.ground,
        markeredgewidth=style.line / 3,
        linewidth=style.line,
        elinewidth=style.line * 0.6,
        capsize=style.marker / 4,
        label=line.title,
        zorder=3,
    )


def _spread(sweep: Sweep) -> str:
    """What intervals are drawn as."""
    kinds = ("bands" if sweep.is_numeric and len(line.points) > 1 else "bars" for line in sweep.lines)
    return " and ".join(dict.fromkeys(kinds))


def _x(sweep: Sweep, index: int) -> float:
    """Numbers stand where they are, other values side by side."""
    return float(str(sweep.values[index])) if sweep.is_numeric else float(index)


def _describe(axes: Axes, metric: Metric, sweep: Sweep, style: Style) -> None:
    axes.set_ylabel("tokens per step (block efficiency)" if metric == BLOCK_EFFICIENCY else metric.label)
    if metric == SPEEDUP:
        axes.axhline(1, color=style.muted, linewidth=style.line * 0.7, linestyle=":", zorder=0)
    positions = [_x(sweep, index) for index in range(len(sweep.values))]
    axes.set_xticks(positions, [text(value) for value in sweep.values])
    if not sweep.is_numeric:
        axes.set_xlim(-0.5, len(positions) - 0.5)
    dress(axes, style)
