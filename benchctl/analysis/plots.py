"""Plots of a comparison, drawn without matplotlib's global state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from textwrap import shorten, wrap

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.faithfulness import AGAINST_BASELINE
from benchctl.analysis.fidelity import claims_exact
from benchctl.analysis.metrics import EXACT_MATCH, SPEEDUP, TOKEN_AGREEMENT, Metric
from benchctl.analysis.pareto import Point, frontier
from benchctl.analysis.placing import Box, Label, place
from benchctl.errors import UserError
from benchctl.recordfile import check_writable

ENDINGS = (".png", ".svg", ".pdf")
_MOST_GROUPS = 4
_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 7.6, 4.9, 160
_FADED = 0.4
_LINE = "#999999"
_TITLE_CHARACTERS = 90  # of the figure width at this size
_LABEL_POINTS = 8.5
_MARKER_POINTS = 7.0
_MOST_LABELS = 10  # more cover each other: then those that nothing beats are labelled
_CURVES = ("#009E73", "#56B4E9", "#E69F00", "#882255", "#999933")  # none of a _Look
_SWEPT = "threshold="
_FEWEST = 3  # two points are no curve


@dataclass(frozen=True)
class _Look:
    """Colours of Okabe and Ito, safe for colour-blind readers; the markers tell the same without colour."""

    title: str
    marker: str
    colour: str


_BASELINE = _Look("baseline", "s", "#000000")
_LOSSLESS = _Look("lossless", "o", "#0072B2")
_UNPROVEN = _Look("exact by claim, not by its answers", "X", "#CC79A7")
_LOSSY = _Look("lossy", "^", "#D55E00")


@dataclass(frozen=True)
class _Dot:
    """A method in the plot."""

    method: MethodFigures
    point: Point
    look: _Look
    best: bool

    @property
    def sweep(self) -> str:
        """What it has in common with others of its kind that differ in their threshold alone; "" where it is exact."""
        lines = [line for line in self.method.label_lines if not line.startswith(_SWEPT)]
        return " ".join(lines) if self.look is _LOSSY else ""

    @property
    def reach(self) -> tuple[float, float]:
        """Both ends of its error bar; the point itself where there is none."""
        interval = self.method.estimate(SPEEDUP).interval
        return (interval.low, interval.high) if interval else (self.point.x, self.point.x)

    @property
    def text(self) -> str:
        """The label and, because bars hide each other on the usual line at 1, the speed-up in numbers."""
        low, high = self.reach
        spread = f" [{low:.2f}, {high:.2f}]" if high > low else ""
        return "\n".join([*self.method.label_lines, f"{self.point.x:.2f}x{spread}"])


def check_image(path: Path) -> None:
    """Raises UserError if `path` does not end as a picture that can be written here, or cannot be written."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path}: cannot tell which format to write. End --out in {', '.join(ENDINGS)}.")
    check_writable(path)


def pareto(groups: Sequence[Group], path: Path, fidelity: Metric = TOKEN_AGREEMENT) -> None:
    """Draw speed-up against `fidelity` (a share that is best at 1), a panel for each group, and write it to `path`
    (see check_image).

    Raises UserError for runs without that figure, for too many groups, and when the file cannot be written.
    """
    check_image(path)
    if len(groups) > _MOST_GROUPS:
        raise UserError(f"{len(groups)} groups of runs that may not be compared are too many: name the files to plot.")
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES * len(groups)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(len(groups), 1, number) for number in range(1, len(groups) + 1)]
    for group, axes in zip(groups, panels, strict=True):
        _draw(axes, group, fidelity)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for group, axes in zip(groups, panels, strict=True):
        _label(axes, _dots(group, fidelity))
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Raises UserError when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Give another --out.") from error


def _dots(group: Group, fidelity: Metric) -> tuple[_Dot, ...]:
    methods = [method for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None]
    if not methods:
        raise UserError(f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.")
    points = [_point(group, method, fidelity) for method in methods]
    return tuple(
        _Dot(method, point, _look(group, method), best)
        for method, point, best in zip(methods, points, frontier(points), strict=True)
    )


def _point(group: Group, method: MethodFigures, fidelity: Metric) -> Point:
    if method.is_baseline and fidelity in AGAINST_BASELINE:
        return Point(1.0, 1.0)
    speedup, kept = method.estimate(SPEEDUP).value, method.estimate(fidelity).value
    if fidelity is EXACT_MATCH and 0 < method.checked_prompts < method.prompts:
        raise UserError(
            f"{group.files[0].path}: only {method.checked_prompts} of {method.prompts} prompts have an exact answer, "
            "so speed and exact match would rest on different prompts. Plot a run of --bench tasks alone."
        )
    if speedup is not None and kept is not None:
        return Point(speedup, kept)
    problem = (
        "no answers to compare token by token (were they sampled?). Plot a run with --temperature 0."
        if fidelity in AGAINST_BASELINE
        else "no answers that can be checked. Plot a run with --bench tasks."
    )
    raise UserError(f"{group.files[0].path}: {method.label} has {problem}")


def _look(group: Group, method: MethodFigures) -> _Look:
    if method.is_baseline:
        return _BASELINE
    if method.lossless:
        return _LOSSLESS
    return _UNPROVEN if claims_exact(method.exactness, group.run.temperature) else _LOSSY


def _draw(axes: Axes, group: Group, fidelity: Metric) -> None:
    dots = _dots(group, fidelity)
    curves = _curves(dots)
    _draw_frontier(axes, dots)
    for name, colour in curves.items():
        points = sorted((dot.point.y, dot.point.x) for dot in dots if dot.sweep == name)
        axes.plot([x for _, x in points], [y for y, _ in points], color=colour, linewidth=1.4, zorder=2)
    for dot in dots:
        _draw_dot(axes, dot, curves.get(dot.sweep, dot.look.colour))
    _set_limits(axes, dots)
    _describe(axes, group, fidelity)
    _add_legend(axes, dots, curves)


def _curves(dots: Sequence[_Dot]) -> dict[str, str]:
    """The colour of each sweep over thresholds, by what its labels have in common."""
    sweeps = list(dict.fromkeys(dot.sweep for dot in dots if dot.sweep))
    several = [sweep for sweep in sweeps if sum(dot.sweep == sweep for dot in dots) >= _FEWEST]
    return dict(zip(several, cycle(_CURVES), strict=False))


def _draw_dot(axes: Axes, dot: _Dot, colour: str) -> None:
    low, high = dot.reach
    axes.errorbar(
        [dot.point.x],
        [dot.point.y],
        xerr=[[dot.point.x - low], [high - dot.point.x]],
        fmt=dot.look.marker,
        color=colour,
        alpha=1.0 if dot.best else _FADED,
        markersize=_MARKER_POINTS,
        markeredgecolor="white",
        markeredgewidth=0.6,
        capsize=2.5 if high > low else 0,
        elinewidth=1.2,
        zorder=3,
    )


def _draw_frontier(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Stairs from the most faithful method to the fastest; whatever lies below them is beaten."""
    best = sorted({(dot.point.x, dot.point.y) for dot in dots if dot.best})
    xs, ys = [x for x, _ in best], [y for _, y in best]
    axes.plot(
        [-1, *xs, xs[-1]], [ys[0], *ys, -1], drawstyle="steps-pre", color=_LINE, linewidth=1.1, alpha=0.6, zorder=1
    )


def _set_limits(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Room for labels all round; no tick stands above the highest point, for agreement ends at 1."""
    left, right = min(dot.reach[0] for dot in dots), max(dot.reach[1] for dot in dots)
    width = max(right - left, 0.2)
    axes.set_xlim(left - 0.15 * width, right + 0.2 * width)
    bottom, top = min(dot.point.y for dot in dots), max(dot.point.y for dot in dots)
    height = max(top - bottom, 0.1)
    axes.set_ylim(top - 1.2 * height, top + 0.4 * height)
    axes.set_yticks([tick for tick in axes.get_yticks() if top - 1.2 * height <= tick <= top + 1e-9])


def _describe(axes: Axes, group: Group, fidelity: Metric) -> None:
    run, suites = group.run, group.suites[:-1] or group.suites
    prompts = max(method.prompts for method in group.pooled.methods)
    batches = f" in batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    lines = [
        f"{run.target.name} on {run.device}, {run.dtype}, threads: {run.threads}, baseline: {run.baseline}",
        f"{', '.join(group.title(suite) for suite in suites)}: {prompts} prompt{'s' if prompts != 1 else ''}{batches}, "
        f"up to {run.max_new_tokens} new tokens",
    ]
    if group.differs:
        differing = "; ".join(f"{found.field} is {found.other}" for found in group.differs)
        lines.append(shorten(f"not comparable with the first panel: {differing}", _TITLE_CHARACTERS))
    wrapped = [part for line in lines for part in wrap(line, _TITLE_CHARACTERS)]
    axes.set_title("\n".join(wrapped), fontsize=9.5, loc="left")
    axes.set_xlabel(f"speed-up over {run.baseline}, whole answers (bars: 95% interval)")
    checked = max(method.checked_prompts for method in group.pooled.methods)
    basis = f"with {run.baseline}" if fidelity is TOKEN_AGREEMENT else f"on {checked or prompts} prompts"
    axes.set_ylabel(f"{fidelity.label} {basis}")
    axes.axvline(1, color=_LINE, linewidth=0.8, linestyle=":", zorder=0)
    axes.grid(color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(axes: Axes, dots: Sequence[_Dot], curves: Mapping[str, str]) -> None:
    looks = [look for look in (_BASELINE, _LOSSLESS, _UNPROVEN, _LOSSY) if any(dot.look == look for dot in dots)]
    handles = [
        Line2D([], [], marker=look.marker, color=look.colour, linestyle="", markersize=_MARKER_POINTS, label=look.title)
        for look in looks
    ]
    more = "" if len(dots) <= _MOST_LABELS else ", not labelled"
    handles.append(Line2D([], [], color=_LINE, linewidth=1.1, label=f"frontier (faded: beaten by another{more})"))
    handles += [Line2D([], [], color=curves[name], linewidth=1.4, label=f"{name}, by threshold") for name in curves]
    columns = len(handles) if not curves else 2
    below = (0.5, -0.13)
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=below, ncols=columns, fontsize=8, frameon=False)


def _label(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Write each label beside its point, joined by a thin line; where they are many, of those that nothing beats."""
    told = [dot for dot in dots if dot.best or dot.method.is_baseline or len(dots) <= _MOST_LABELS]
    texts = [
        axes.text(
            dot.point.x,
            dot.point.y,
            dot.text,
            fontsize=_LABEL_POINTS,
            color="#222222" if dot.best else "#707070",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            ha="center",
            va="center",
            linespacing=1.05,
            zorder=4,
        )
        for dot in told
    ]
    labels = [_measure(axes, dot, text) for dot, text in zip(told, texts, strict=True)]
    frame = axes.get_window_extent()
    area = Box(frame.x0 + 2, frame.y0 + 2, frame.x1 - 2, frame.y1 - 2)
    places = place(labels, [_obstacle(axes, dot) for dot in dots], area)
    for text, label, box in zip(texts, labels, places, strict=True):
        _move(axes, text, label, box)


def _measure(axes: Axes, dot: _Dot, text: Text) -> Label:
    x, y = axes.transData.transform((dot.point.x, dot.point.y))
    size = text.get_window_extent()
    return Label(float(x), float(y), size.width + 10, size.height + 6)


def _obstacle(axes: Axes, dot: _Dot) -> Box:
    """The marker and its error bar, in pixels."""
    low, high = dot.reach
    (left, y), (right, _) = axes.transData.transform([(low, dot.point.y), (high, dot.point.y)])
    reach = _MARKER_POINTS * _DPI / 72 / 2 + 2
    x = float(axes.transData.transform((dot.point.x, dot.point.y))[0])
    return Box(min(left, x - reach), y - reach, max(right, x + reach), y + reach)


def _move(axes: Axes, text: Text, label: Label, box: Box) -> None:
    to_data = axes.transData.inverted()
    middle_x, middle_y = to_data.transform(((box.left + box.right) / 2, (box.bottom + box.top) / 2))
    text.set_position((float(middle_x), float(middle_y)))
    (x, y), (end_x, end_y) = to_data.transform([(label.x, label.y), label.line_end(box)])
    axes.plot([x, end_x], [y, end_y], color="#777777", linewidth=0.7, zorder=2)
