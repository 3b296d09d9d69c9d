"""How TPOT and TTFT vary from answer to answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import TPOT, TTFT
from benchctl.analysis.plots.axes import add_legend, check_groups, check_names, dress, legend_inches, new_panels
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Style, broken_label, line_inches, shown_labels, three_digits
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.stats.intervals import Floats
from benchctl.errors import UserError

FEW = 20  # of fewer generations the 95th percentile is hardly more than the slowest one


@dataclass(frozen=True)
class Latency:
    """Seconds of a method's generations, [generations]. `mean` is the figure of the tables.

    For TPOT that is the mean over all tokens, which gives long answers more weight; for TTFT over all generations.
    """

    label: str
    seconds: Floats
    mean: Estimate

    @property
    def few(self) -> bool:
        """Whether there are too few generations for a 95th percentile."""
        return len(self.seconds) < FEW


def latencies(group: Group, metric: Metric, labels: Sequence[str]) -> tuple[Latency, ...]:
    """TPOT or TTFT of those of `labels` that the group has measured, in that order, without those that have no times.

    Imported files may have none.
    """
    methods = {method.label: method for method in group.pooled.methods}
    measured = (
        Latency(label, times(group, label)[metric.name].dropna().to_numpy(), methods[label].estimate(metric))
        for label in labels
        if label in methods
    )
    return tuple(latency for latency in measured if len(latency.seconds))


def times(group: Group, label: str) -> pd.DataFrame:
    """The suite, TPOT and TTFT (columns of these metrics' names) of each generation that a method's figures rest on.

    NaN where a generation has no further token or no times.
    """
    pairs = group.pairs(label)
    committed = pairs["committed_tokens"].astype(float)
    return pd.DataFrame(
        {
            "suite": pairs["suite"],
            TPOT.name: pairs["decode_s"].astype(float) / committed.where(committed > 0),
            TTFT.name: pairs["ttft_s"].astype(float),
        }
    )


_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST: Final = {"screen": 16, "column": 6, "slide": 8}  # methods
_WIDE = 15.0  # longest over shortest time: above it the axis is logarithmic
_DOTS = 150  # the most of a method: more overlap
_LABEL_SHARE: Final = {"screen": 0.27, "column": 0.38, "slide": 0.25}  # of the picture's width


@dataclass(frozen=True)
class _Panel:
    """One of the two times of a group's methods; `labels` are their names in lines."""

    title: str
    latencies: tuple[Latency, ...]
    labels: tuple[str, ...]


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """TPOT and TTFT of each method's generations: a box with the 5th, 25th, 50th, 75th and 95th percentile, and the
    figure of the tables.

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
    figure, parts = new_panels([group for group, _ in shown], style, [_height(panels, style) for _, panels in shown])
    for part, (_, panels) in zip(parts, shown, strict=True):
        _draw(part, panels, style)
    check_names(figure, style)
    few = dict.fromkeys(each.label for _, panels in shown for panel in panels for each in panel.latencies if each.few)
    note = (
        f"{', '.join(few)}: of fewer than {FEW} generations the 95th percentile is hardly more than the slowest one. "
        "Measure more prompts, or --repeats."
    )
    return Drawing(figure, [note] if few else [])


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def _panels(group: Group, labels: Sequence[str], style: Style) -> Iterator[_Panel]:
    """Without those of which no generation has times."""
    names, width = shown_labels(labels, style, [group]), style.width * _LABEL_SHARE[style.size]
    for title, metric in (("TPOT: time per token after the first", TPOT), ("TTFT: time to the first token", TTFT)):
        if found := latencies(group, metric, labels):
            yield _Panel(
                title, found, tuple(broken_label(names[latency.label], style.small, width) for latency in found)
            )


def _height(panels: Sequence[_Panel], style: Style) -> float:
    lines = max(label.count("\n") + 2.5 for panel in panels for label in panel.labels)
    rows = max(len(panel.latencies) for panel in panels) * lines * line_inches(style)
    stacked = len(panels) if style.size == "column" else 1
    names = [str(handle.get_label()) for handle in _legend(panels, style)]
    return (rows + 6 * line_inches(style)) * stacked + legend_inches(names, style) + 1.5 * line_inches(style)


def _draw(part: SubFigure, panels: Sequence[_Panel], style: Style) -> None:
    stacked = style.size == "column"
    shape = (len(panels), 1) if stacked else (1, len(panels))
    grid = part.subplots(*shape, squeeze=False)
    for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=True)):
        for row, latency in enumerate(panel.latencies):
            _draw_box(axes, row, latency, style)
        _describe(axes, panel, style, labelled=stacked or not number or panel.labels != panels[0].labels)
    handles = _legend(panels, style)
    add_legend(part, handles, [str(handle.get_label()) for handle in handles], style)


def _draw_box(axes: Axes, row: int, latency: Latency, style: Style) -> None:
    """A box from quarter to three quarters, on a line from the 5th to the 95th percentile; the figure of the tables
    above it, and a dot for each generation below."""
    times_ms = 1e3 * latency.seconds
    low, first, median, third, high = np.quantile(times_ms, _QUANTILES)
    mark = style.mark(row)
    dots = times_ms if len(times_ms) <= _DOTS else np.sort(times_ms)[:: -(-len(times_ms) // _DOTS)]
    jitter = np.random.default_rng(0).uniform(0.26, 0.4, len(dots))
    axes.plot(dots, row + jitter, ".", color=style.faded(mark.colour, 0.75), markersize=style.marker / 2,
              markeredgewidth=0, zorder=2)  # fmt: skip
    axes.plot([low, high], [row, row], color=mark.colour, linewidth=style.line * 0.9, zorder=2)
    axes.barh(row, third - first, left=first, height=0.36, facecolor=style.faded(mark.colour, 0.3), zorder=3,
              edgecolor=mark.colour, linewidth=style.line * 0.7)  # fmt: skip
    axes.plot([median, median], [row - 0.18, row + 0.18], color=style.ink, linewidth=style.line * 1.4, zorder=4)
    axes.plot([high], [row], "|" if not latency.few else "o", color=mark.colour, markersize=style.marker * 1.2,
              markerfacecolor=style.ground, markeredgewidth=style.line, zorder=4)  # fmt: skip
    if (mean := latency.mean).value is not None:
        interval = mean.interval
        ends = [mean.value * 1e3] * 2 if interval is None else [interval.low * 1e3, interval.high * 1e3]
        axes.plot(ends, [row - 0.32] * 2, color=style.ink, linewidth=style.line * 0.8, zorder=4)
        axes.plot([mean.value * 1e3], [row - 0.32], "D", color=style.ink, markersize=style.marker * 0.5, zorder=5)
    numbers = f"{three_digits(median)} · {three_digits(high)}"
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
    axes.set_ylim(len(panel.latencies) - 0.4, -0.6)
    counts = [len(latency.seconds) for latency in panel.latencies]
    labels = [f"{label}\n(n = {count})" for label, count in zip(panel.labels, counts, strict=True)]
    axes.set_yticks(range(len(panel.latencies)), labels if labelled else [""] * len(panel.latencies))
    scale = ", logarithmic" if logarithmic else ""
    axes.set_xlabel(f"ms{scale}")
    axes.annotate("median · p95", (1, 1), xycoords="axes fraction", xytext=(style.small / 2, style.small / 3),
                  textcoords="offset points", fontsize=style.small, color=style.muted)  # fmt: skip
    dress(axes, style)
    axes.tick_params(axis="y", length=0)
    axes.set_title(panel.title, loc="left", fontsize=style.text, color=style.ink, pad=1.9 * style.small)


def _legend(panels: Sequence[_Panel], style: Style) -> list[Line2D | Patch]:
    few = any(latency.few for panel in panels for latency in panel.latencies)
    open_end = Line2D(
        [], [], color=style.muted, linewidth=style.line, marker="o", markerfacecolor=style.ground,
        markersize=style.marker * 0.9, label=f"p95 of fewer than {FEW} generations",
    )  # fmt: skip
    return [
        Patch(facecolor=style.faded(style.muted, 0.3), edgecolor=style.muted, label="middle half, median"),
        Line2D([], [], marker=".", markersize=style.marker / 2, color=style.muted, linestyle="", label="a generation"),
        Line2D([], [], marker="|", markersize=style.marker, color=style.muted, linewidth=style.line,
               label="5th to 95th percentile"),
        *([open_end] if few else []),
        Line2D([], [], marker="D", markersize=style.marker * 0.55, color=style.ink, linewidth=style.line * 0.8,
               label="figure of the tables, 95% interval"),
    ]  # fmt: skip
