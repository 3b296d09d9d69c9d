"""Speed against fidelity or quality, and which methods no other beats in both; without matplotlib's global state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from textwrap import shorten, wrap

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchctl.analysis.comparison import Estimate, Group, MethodFigures
from benchctl.analysis.curves import Curve, curves
from benchctl.analysis.fidelity import claims_exact
from benchctl.analysis.heights import Height
from benchctl.analysis.metrics import SPEEDUP
from benchctl.analysis.pareto import Point, frontier
from benchctl.analysis.plot_labels import Labelled, write_labels
from benchctl.analysis.plots import check_image, save
from benchctl.errors import UserError

_MOST_GROUPS = 4
_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 7.6, 4.9, 160
_LINE_INCHES = 0.2  # of a legend
_FADED = 0.4
_FAR = 100.0  # outside of any picture
_LINE = "#999999"
_TITLE_CHARACTERS = 90  # of the figure width at this size
_MARKER_POINTS = 7.0
_MOST_LABELS = 10  # more cover each other: then those that nothing beats are labelled
_CURVES = ("#009E73", "#56B4E9", "#E69F00", "#882255", "#999933", "#332288")  # none of a _Look
_COLUMN_CHARACTERS = 52  # two columns of a legend fit side by side


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
    height: Estimate
    point: Point
    look: _Look
    best: bool

    @property
    def across(self) -> tuple[float, float]:
        """Both ends of its error bar of speed; the point itself where there is none."""
        return _ends(self.method.estimate(SPEEDUP), self.point.x)

    @property
    def along(self) -> tuple[float, float]:
        """Both ends of its error bar of height."""
        return _ends(self.height, self.point.y)

    @property
    def text(self) -> str:
        """The label and, because bars hide each other on the usual line at 1, the speed-up in numbers."""
        low, high = self.across
        spread = f" [{low:.2f}, {high:.2f}]" if high > low else ""
        return "\n".join([*self.method.label_lines, f"{self.point.x:.2f}x{spread}"])


def _ends(estimate: Estimate, value: float) -> tuple[float, float]:
    """Of an interval, whose resamples may differ from the value in its last digit."""
    interval = estimate.interval
    return (min(interval.low, value), max(interval.high, value)) if interval else (value, value)


def pareto(groups: Sequence[Group], path: Path, height: Height | None = None) -> None:
    """Draw speed-up against `height` (token agreement, if not given), a panel for each group, and write it to `path`
    (see check_image).

    Raises UserError for runs without that figure, for too many groups, and when the file cannot be written.
    """
    height = height or Height()
    check_image(path)
    if len(groups) > _MOST_GROUPS:
        raise UserError(f"{len(groups)} groups of runs that may not be compared are too many: name the files to plot.")
    height_inches = _HEIGHT_INCHES + _LINE_INCHES * max(len(_swept(group)) for group in groups)
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches * len(groups)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(len(groups), 1, number) for number in range(1, len(groups) + 1)]
    for group, axes in zip(groups, panels, strict=True):
        _draw(axes, group, height)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for group, axes in zip(groups, panels, strict=True):
        _label(axes, _dots(group, height))
    save(figure, path)


def _dots(group: Group, height: Height) -> tuple[_Dot, ...]:
    methods = [method for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None]
    if not methods:
        raise UserError(f"{group.files[0].path}: no prompt was answered by the baseline. See `benchctl compare`.")
    heights = [height.of(group, method) for method in methods]
    points = [Point(_speed(method), of.value or 0.0) for method, of in zip(methods, heights, strict=True)]
    return tuple(
        _Dot(method, of, point, _look(group, method), best)
        for method, of, point, best in zip(methods, heights, points, frontier(points), strict=True)
    )


def _speed(method: MethodFigures) -> float:
    return 1.0 if method.is_baseline else method.estimate(SPEEDUP).value or 0.0


def _look(group: Group, method: MethodFigures) -> _Look:
    if method.is_baseline:
        return _BASELINE
    if method.lossless:
        return _LOSSLESS
    return _UNPROVEN if claims_exact(method.exactness, group.run.temperature) else _LOSSY


def _draw(axes: Axes, group: Group, height: Height) -> None:
    dots = _dots(group, height)
    drawn, swept = {dot.method.label: dot for dot in dots}, _swept(group)
    _draw_frontier(axes, dots)
    for curve, colour in swept.items():
        points = [drawn[label].point for label in curve.labels]
        axes.plot([at.x for at in points], [at.y for at in points], color=colour, linewidth=1.4, zorder=2)
    colours = {label: colour for curve, colour in swept.items() for label in curve.labels}
    for dot in dots:
        _draw_dot(axes, dot, colours.get(dot.method.label, dot.look.colour))
    _set_limits(axes, dots)
    _describe(axes, group, height)
    _add_legend(axes, dots, {curve.title: colour for curve, colour in swept.items()})


def _swept(group: Group) -> dict[Curve, str]:
    """The colour of each curve of lossy methods. Exact ones are no curve: they all agree."""
    methods = [method for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None]
    lossy = {method.label for method in methods if _look(group, method) is _LOSSY}
    return dict(
        zip(curves([method for method in group.methods if method.label in lossy]), cycle(_CURVES), strict=False)
    )


def _draw_dot(axes: Axes, dot: _Dot, colour: str) -> None:
    (left, right), (low, high) = dot.across, dot.along
    axes.errorbar(
        [dot.point.x],
        [dot.point.y],
        xerr=[[dot.point.x - left], [right - dot.point.x]] if right > left else None,
        yerr=[[dot.point.y - low], [high - dot.point.y]] if high > low else None,
        fmt=dot.look.marker,
        color=colour,
        alpha=1.0 if dot.best else _FADED,
        markersize=_MARKER_POINTS,
        markeredgecolor="white",
        markeredgewidth=0.6,
        capsize=2.5,
        elinewidth=1.2,
        zorder=3,
    )


def _draw_frontier(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Stairs from the most faithful method to the fastest; whatever lies below them is beaten."""
    best = sorted({(dot.point.x, dot.point.y) for dot in dots if dot.best})
    xs, ys = [x for x, _ in best], [y for _, y in best]
    axes.plot(
        [-_FAR, *xs, xs[-1]],
        [ys[0], *ys, -_FAR],
        drawstyle="steps-pre",
        color=_LINE,
        linewidth=1.1,
        alpha=0.6,
        zorder=1,
    )


def _set_limits(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Room for labels all round; no tick stands above the highest point or bar, for agreement ends at 1."""
    left, right = min(dot.across[0] for dot in dots), max(dot.across[1] for dot in dots)
    width = max(right - left, 0.2)
    axes.set_xlim(left - 0.15 * width, right + 0.2 * width)
    bottom, top = min(dot.along[0] for dot in dots), max(dot.along[1] for dot in dots)
    height = max(top - bottom, 0.1)
    bottom = min(bottom, top - height) - 0.2 * height
    axes.set_ylim(bottom, top + 0.4 * height)
    axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= top + 1e-9])


def _describe(axes: Axes, group: Group, height: Height) -> None:
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
    axes.set_ylabel(height.title(group))
    axes.axvline(1, color=_LINE, linewidth=0.8, linestyle=":", zorder=0)
    if height.judge:
        axes.axhline(0, color=_LINE, linewidth=0.8, linestyle=":", zorder=0)
    axes.grid(color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(axes: Axes, dots: Sequence[_Dot], swept: Mapping[str, str]) -> None:
    """`swept`: colours of curves by their titles."""
    looks = [look for look in (_BASELINE, _LOSSLESS, _UNPROVEN, _LOSSY) if any(dot.look == look for dot in dots)]
    handles = [
        Line2D([], [], marker=look.marker, color=look.colour, linestyle="", markersize=_MARKER_POINTS, label=look.title)
        for look in looks
    ]
    more = "" if len(dots) <= _MOST_LABELS else ", not labelled"
    handles.append(Line2D([], [], color=_LINE, linewidth=1.1, label=f"frontier (faded: beaten by another{more})"))
    handles += [Line2D([], [], color=swept[title], linewidth=1.4, label=title) for title in swept]
    side_by_side = max(len(str(handle.get_label())) for handle in handles) <= _COLUMN_CHARACTERS
    columns = len(handles) if not swept else 2 if side_by_side else 1
    below = (0.5, -0.14)
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=below, ncols=columns, fontsize=8, frameon=False)


def _label(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Write each label beside its point; where they are many, of those that nothing beats."""
    points = [
        Labelled(
            x=dot.point.x,
            y=dot.point.y,
            across=dot.across,
            along=dot.along,
            text=dot.text if dot.best or dot.method.is_baseline or len(dots) <= _MOST_LABELS else "",
            colour="#222222" if dot.best else "#707070",
        )
        for dot in dots
    ]
    write_labels(axes, points, _MARKER_POINTS * _DPI / 72)
