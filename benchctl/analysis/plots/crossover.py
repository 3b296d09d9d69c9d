"""Speed-up against batch size: where a method stops to pay, because a larger batch leaves no idle arithmetic to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchctl.analysis.comparison import Group
from benchctl.analysis.frame.groups import differences
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.axes import LINE_SPACING, check_image, dress, headline, new_figure, save, wrapped
from benchctl.analysis.plots.style import Mark, Style
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError

_PANEL_INCHES = {"page": 4.2, "column": 2.7}  # without the legend
_NAME_INCHES = {"page": 3.3, "column": 1.8, "slide": 4.5}  # of the vertical axis: about as long as it is
_MAY_DIFFER = {"batch_size", "modes"}  # of other modes only free rows are drawn
_ASIDE = 0.02  # of a point of one method from those of the others, in doublings


@dataclass(frozen=True)
class Curve:
    """The speed-up of a method, by batch size."""

    label: str
    points: Mapping[int, Estimate]

    def crossings(self) -> tuple[float, ...]:
        """Batch sizes at which the speed-up passes 1, between measured ones on a straight line over doublings. None
        between two whose intervals both include 1, for then chance may have made it pass.

        1.2 at 2 and 0.8 at 8: 4.0.
        """
        found = []
        for (size, one), (next_size, other) in pairwise(self._values()):
            if (one - 1) * (other - 1) < 0 and (self._is_told(size) or self._is_told(next_size)):
                share = (one - 1) / (one - other)
                found.append(2 ** (log2(size) + share * (log2(next_size) - log2(size))))
        return tuple(found)

    @property
    def text(self) -> str:
        """The label, and where it crosses: a guess wherever no batch of that size was measured."""
        sizes = ", ".join(f"{size:.1f}" for size in self.crossings())
        return f"{self.label}, 1x at about {sizes} together" if sizes else self.label

    def _is_told(self, size: int) -> bool:
        """Whether the speed-up at that size is another than 1 beyond doubt."""
        interval = self.points[size].interval
        return interval is not None and not interval.low <= 1 <= interval.high

    def _values(self) -> list[tuple[int, float]]:
        return [(size, estimate.value) for size, estimate in sorted(self.points.items()) if estimate.value is not None]


def plot_crossover(groups: Sequence[Group], path: Path, style: Style | None = None) -> None:
    """Draw the speed-up of every method over the baseline on the same batches, by batch size, and write it to `path`.

    Raises UserError for groups that differ in more than batch size, for a single size, and when the picture cannot be
    written (see plots.check_image).
    """
    check_image(path)
    save(draw_crossover(groups, style or Style()), path)


def draw_crossover(groups: Sequence[Group], style: Style) -> Figure:
    found = curves(groups)
    lines = [_broken(curve.text, style) for curve in found]
    legend = sum(line.count("\n") + 1.3 for line in lines) * style.small * LINE_SPACING / 72
    figure = new_figure(style, _PANEL_INCHES.get(style.size, 0.0) + legend)
    axes = figure.add_subplot()
    for place, (curve, line) in enumerate(zip(found, lines, strict=True)):
        _draw(axes, curve, line, style.mark(place), style, 2 ** (_ASIDE * (place - (len(found) - 1) / 2)))
    _describe(axes, groups, style)
    figure.legend(loc="outside lower left", ncols=1, fontsize=style.small, frameon=False, labelcolor=style.ink)
    dress(axes, style)
    figure.suptitle(
        wrapped(_titles(groups), style, style.title), x=0.01, ha="left", fontsize=style.title, color=style.ink
    )
    return figure


def _broken(text: str, style: Style) -> str:
    """A line of the legend: after its handle."""
    return wrapped([text], style, style.small, style.width - 5 * style.small / 72)


def curves(groups: Sequence[Group]) -> tuple[Curve, ...]:
    """A curve for each method but the baseline. Raises UserError as `plot_crossover` does."""
    _check(groups)
    points: dict[str, dict[int, Estimate]] = {}
    for group in sorted(groups, key=lambda group: group.run.batch_size):
        size = group.run.batch_size
        for method in group.pooled.methods:
            if not method.is_baseline and method.estimate(SPEEDUP).value is not None:
                points.setdefault(method.label, {})[size] = method.estimate(SPEEDUP)
    if not points:
        raise UserError(
            f"{groups[0].files[0].path}: no method was measured beside the baseline. See `benchctl compare`."
        )
    return tuple(Curve(label, found) for label, found in points.items())


def _check(groups: Sequence[Group]) -> None:
    """That these groups differ in their batch size, and in nothing else."""
    first, path = groups[0].run, groups[0].files[0].path
    sizes: dict[int, Path] = {}
    for group in groups:
        size, other_path = group.run.batch_size, group.files[0].path
        for other in differences(first, group.run):
            if other.field not in _MAY_DIFFER:
                raise UserError(
                    f"{other_path}: {other.field} is {other.second}, in {path} {other.first}, so not only the "
                    "batch size differs. Name files that are alike in all else."
                )
        if size in sizes:
            raise UserError(f"{sizes[size]} and {other_path}: are of the same batch size in other modes. Name one.")
        sizes[size] = other_path
    if len(sizes) < 2:
        raise UserError(
            f"{path}: all was decoded at batch size {first.batch_size}. Measure others as well: benchctl run "
            "--batch-size 8."
        )


def _draw(axes: Axes, curve: Curve, line: str, mark: Mark, style: Style, aside: float) -> None:
    """Bars stand a little aside, for those of several methods at one size would cover each other."""
    sizes = sorted(curve.points)
    values, lows, highs = [], [], []
    for size in sizes:
        estimate = curve.points[size]
        assert estimate.value is not None
        interval = estimate.interval
        values.append(estimate.value)
        # Resamples that are all alike may differ from the value in its last digit, and no bar is negative.
        lows.append(max(estimate.value - interval.low, 0.0) if interval else 0.0)
        highs.append(max(interval.high - estimate.value, 0.0) if interval else 0.0)
    axes.errorbar(
        [size * aside for size in sizes],
        values,
        yerr=[lows, highs],
        marker=mark.marker,
        linestyle=mark.dashes,
        color=mark.colour,
        markersize=style.marker,
        markeredgecolor=style.ground,
        markeredgewidth=style.line * 0.4,
        linewidth=style.line,
        elinewidth=style.line * 0.8,
        capsize=style.marker * 0.35,
        label=line,
        zorder=3,
    )
    crossings = curve.crossings()
    axes.plot(
        [size * aside for size in crossings],
        [1.0] * len(crossings),
        "x",
        color=style.ink,
        markersize=style.marker,
        markeredgewidth=style.line * 1.2,
        zorder=4,
    )


def _titles(groups: Sequence[Group]) -> list[str]:
    run = groups[0].run
    suites = ", ".join(groups[0].title(suite) for suite in groups[0].suites[:-1] or groups[0].suites)
    prompts = [max(method.prompts for method in group.pooled.methods) for group in groups]
    count = f"{min(prompts)} to {max(prompts)}" if min(prompts) < max(prompts) else str(prompts[0])
    return [headline(groups[0]), f"{suites}: {count} prompts, up to {run.max_new_tokens} new tokens"]


def _describe(axes: Axes, groups: Sequence[Group], style: Style) -> None:
    sizes = sorted({group.run.batch_size for group in groups})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_xlabel("prompts decoded together (batch size)")
    name = [f"speed-up over {groups[0].run.baseline} on the same batches", "whole answers (bars: 95% interval)"]
    axes.set_ylabel(wrapped(name, style, style.text, _NAME_INCHES[style.size]))
    axes.axhline(1, color=style.muted, linewidth=style.line * 0.6, linestyle=":", zorder=1)
