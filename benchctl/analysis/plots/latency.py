"""How TPOT and TTFT vary from answer to answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import TPOT, TTFT
from benchctl.analysis.plots.axes import check_groups, dress, new_panels
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Style, line_inches, shown_labels, three_digits, wrapped
from benchctl.analysis.stats.intervals import Floats
from benchctl.errors import UserError

FEW = 20  # of fewer generations the 95th percentile is hardly more than the slowest one


@dataclass(frozen=True)
class Latency:
    """Seconds of a method's generations, [generations]."""

    label: str
    seconds: Floats

    @property
    def few(self) -> bool:
        """Whether there are too few generations for a 95th percentile."""
        return len(self.seconds) < FEW


def latencies(group: Group, metric: Metric, labels: Sequence[str]) -> tuple[Latency, ...]:
    """TPOT or TTFT of those of `labels` that the group has measured, in that order, without those that have no times.

    Imported files may have none.
    """
    methods, found = {method.label for method in group.pooled.methods}, []
    for label in labels:
        if label in methods:
            # Files that share no session pair each answer with several of the baseline.
            generation = ["file", "session", "suite", "prompt_id", "turn", "repeat"]
            pairs = group.pairs(label).drop_duplicates(generation)
            seconds = metric.top(pairs) / metric.bottom(pairs).where(lambda amount: amount > 0)
            found.append(Latency(label, seconds.dropna().to_numpy(float)))
    return tuple(latency for latency in found if len(latency.seconds))


_MOST: Final = {"screen": 16, "column": 6}  # methods
_WIDE = 15.0  # longest over shortest time: above it the axis is logarithmic
_DOTS = 150  # the most of a method: more overlap
_LABEL_SHARE = 0.3  # of the picture's width
_TITLES: Final = ((TPOT, "time per token (TPOT), ms"), (TTFT, "time to first token (TTFT), ms"))


@dataclass(frozen=True)
class _Panel:
    """One of the two times of a group's methods; `labels` are their names in lines."""

    title: str
    latencies: tuple[Latency, ...]
    labels: tuple[str, ...]


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """TPOT and TTFT of each method's generations: a dot for each, a box for the middle half, the median and the 95th
    percentile.

    Raises UserError where no generation has times, and for more methods or groups than there is room for.
    """
    style = request.style
    check_groups(groups, style)
    labels = chosen(groups, request.methods)
    check_count(labels, _MOST[style.size], "methods")
    by_group = [(group, list(_panels(group, labels, style))) for group in groups]
    shown = [(group, panels) for group, panels in by_group if panels]
    if not shown:
        raise UserError("no_times", f"{groups[0].files[0].path}: no generation has times. Measure: benchctl run.")
    found = [latency for _, panels in shown for panel in panels for latency in panel.latencies]
    counts = sorted({len(latency.seconds) for latency in found})
    title = f"Latency of {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} answers for each method"
    figure, parts = new_panels(
        [group for group, _ in shown],
        [title] * len(shown),
        style,
        [_height(panels, style) for _, panels in shown],
        keys=[list(_key(style))],
    )
    for part, (_, panels) in zip(parts, shown, strict=True):
        _draw(part, panels, style)
    few = dict.fromkeys(latency.label for latency in found if latency.few)
    note = f"{', '.join(few)}: a 95th percentile needs {FEW} answers. Measure more prompts, or --repeats."
    return Drawing(figure, [note] if few else [])


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def _panels(group: Group, labels: Sequence[str], style: Style) -> Iterator[_Panel]:
    """Without those of which no generation has times."""
    names = shown_labels(labels, [group])
    for metric, title in _TITLES:
        if found := latencies(group, metric, labels):
            lines = [wrapped([names[each.label]], style.small, style.width * _LABEL_SHARE) for each in found]
            yield _Panel(title, found, tuple(lines))


def _height(panels: Sequence[_Panel], style: Style) -> float:
    lines = max(label.count("\n") + 1.6 for panel in panels for label in panel.labels)
    rows = max(len(panel.latencies) for panel in panels)
    return (rows * max(lines, 2.0) + 4) * line_inches(style) * (2 if style.size == "column" else 1)


def _draw(part: SubFigure, panels: Sequence[_Panel], style: Style) -> None:
    """Side by side, in a column below each other."""
    shape = (len(panels), 1) if style.size == "column" else (1, len(panels))
    for number, (axes, panel) in enumerate(zip(part.subplots(*shape, squeeze=False).flat, panels, strict=True)):
        for row, latency in enumerate(panel.latencies):
            _draw_box(axes, row, latency, style)
        labelled = not number or style.size == "column" or panel.labels != panels[0].labels
        _describe(axes, panel, style, labelled=labelled)


def _draw_box(axes: Axes, row: int, latency: Latency, style: Style) -> None:
    times_ms, colour = 1e3 * latency.seconds, style.colour_of(latency.label)
    first, median, third, high = np.quantile(times_ms, (0.25, 0.5, 0.75, 0.95))
    dots = times_ms if len(times_ms) <= _DOTS else np.sort(times_ms)[:: -(-len(times_ms) // _DOTS)]
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(dots))
    axes.plot(dots, row + jitter, "o", color=colour, alpha=0.45, markersize=style.marker * 0.5, markeredgewidth=0,
              zorder=2)  # fmt: skip
    axes.barh(row, third - first, left=first, height=0.5, facecolor=style.faded(colour, 0.25), edgecolor=colour,
              linewidth=style.line * 0.8, zorder=3)  # fmt: skip
    axes.plot([median, median], [row - 0.25, row + 0.25], color=style.ink, linewidth=style.line * 1.5, zorder=4)
    if not latency.few:
        axes.plot([third, high], [row, row], color=colour, linewidth=style.line, zorder=3)
        axes.plot([high], [row], "|", color=colour, markersize=style.marker * 1.4, markeredgewidth=style.line, zorder=4)
    numbers = f"{three_digits(median)} · {'–' if latency.few else three_digits(high)}"
    axes.annotate(numbers, (1, row), xycoords=axes.get_yaxis_transform(), xytext=(style.small / 2, 0), va="center",
                  textcoords="offset points", fontsize=style.small, color=style.ink)  # fmt: skip


def _describe(axes: Axes, panel: _Panel, style: Style, *, labelled: bool) -> None:
    low, high = (end([end(latency.seconds) for latency in panel.latencies]) for end in (np.min, np.max))
    logarithmic = low > 0 and high > _WIDE * low
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, 1.03 * high * 1e3)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_ylim(len(panel.latencies) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.latencies)), panel.labels if labelled else [""] * len(panel.latencies))
    axes.set_xlabel("logarithmic" if logarithmic else "")
    axes.annotate("median · p95", (1, 1), xycoords="axes fraction", xytext=(style.small / 2, style.small * 0.6),
                  textcoords="offset points", fontsize=style.small, color=style.muted)  # fmt: skip
    dress(axes, style)
    axes.tick_params(axis="y", length=0)
    lines = 0.6 if style.size == "column" else 1.9  # axes side by side may be narrower than the title
    axes.set_title(panel.title, loc="left", fontsize=style.small, color=style.ink, pad=style.small * lines)


def _key(style: Style) -> Iterator[Artist]:
    yield Line2D([], [], marker="o", markersize=style.marker * 0.5, color=style.muted, linestyle="", label="an answer")
    yield Patch(facecolor=style.faded(style.muted, 0.25), edgecolor=style.muted, label="middle half, median")
    yield Line2D(
        [], [], marker="|", markersize=style.marker * 1.4, color=style.muted, linewidth=style.line, label="p95"
    )
