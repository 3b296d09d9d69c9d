"""Where each method gains and loses time, from runs with --profile.

From the baseline's time per token, through what each cause takes off or adds, to the method's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.plots.axes import dress, new_panels
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Style, line_inches, shown_labels, three_digits, wrapped
from benchctl.analysis.predict import UNEXPLAINED, Figure, Prediction, Unpredicted, predict
from benchctl.analysis.stats.intervals import Interval
from benchctl.errors import UserError

# The cause behind each part of an account (see analysis.predict). Less target work: fewer steps, or fewer layers.
_CAUSES: Final = {
    "target steps": "less target work",
    "drafting": "drafting",
    "wider passes": "longer passes",
    "rest of passes": "longer passes",
    "commit": "commit",
    "host": "host",
    UNEXPLAINED: "not in profile",
}
_SMALL = 0.01  # of the baseline's time: smaller changes have no bar


@dataclass(frozen=True)
class Bar:
    """A row of a waterfall in seconds per token. `interval` is of its end; a `whole` bar starts at 0."""

    name: str
    start_s: float
    end_s: float
    interval: Interval | None
    whole: bool = False

    @property
    def change_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def right_s(self) -> float:
        """The furthest that it reaches."""
        return max(self.start_s, self.end_s, self.interval.high if self.interval else 0.0)

    @property
    def text(self) -> str:
        """The time or the change in ms."""
        digits = three_digits(1e3 * self.change_s)
        return f"+{digits}" if not self.whole and self.change_s > 0 and digits != "0.00" else digits


@dataclass(frozen=True)
class Waterfall:
    """The bars from the top: the baseline, each cause, which starts where the one before ended, and the method."""

    label: str
    speedup: Figure
    bars: tuple[Bar, ...]

    @property
    def visible(self) -> tuple[Bar, ...]:
        """Without small changes."""
        return tuple(bar for bar in self.bars if bar.whole or abs(bar.change_s) >= _SMALL * self.bars[0].end_s)


def waterfalls(group: Group, labels: Sequence[str]) -> tuple[tuple[Waterfall, ...], tuple[str, ...]]:
    """Of those of `labels` that were profiled, the fastest method first; and notes why others are left out.

    Raises UserError as `predict` does.
    """
    suites = {figures.suite for figures in group.suites}
    files = [replace(file, rows=[row for row in file.rows if row.suite in suites]) for file in group.files]
    accounts = {account.label: account for account in predict(files)}
    asked = [accounts[label] for label in labels if label in accounts]
    profiled = [_waterfall(account, group.run.baseline) for account in asked if isinstance(account, Prediction)]
    return (
        tuple(sorted(profiled, key=lambda waterfall: -waterfall.speedup.value)),
        tuple(f"{each.label} is left out: {each.reason}." for each in asked if isinstance(each, Unpredicted)),
    )


def _waterfall(account: Prediction, baseline: str) -> Waterfall:
    unit_s = account.baseline_token_s
    bars = [Bar(baseline, 0.0, unit_s, None, True)]
    for index, part in enumerate(account.parts):
        # The first part, the target's steps, stands for the whole baseline: it changes the time by its share less 1.
        start_s, offset = bars[-1].end_s, 0 if index else 1
        end_s = start_s + (part.share - offset) * unit_s
        bars.append(Bar(_CAUSES[part.name], start_s, end_s, None))
    speedup = account.measured  # its interval gives that of the method, as if the baseline's time had no error
    ends = speedup.interval and Interval(unit_s / speedup.interval.high, unit_s / speedup.interval.low)
    bars.append(Bar("method", 0.0, unit_s / speedup.value, ends, True))
    return Waterfall(account.label, speedup, tuple(bars))


_BAR = 0.62  # of a row
_MOST: Final = {"screen": 12, "column": 4}  # methods
_COLUMNS: Final = {"screen": 3, "column": 2}


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """How the baseline's time per token becomes the method's, by cause, for every method that was profiled.

    Groups that cannot be drawn, such as batches, are left out with a note. Raises UserError where all are left out, and
    for more methods or groups than there is room for.
    """
    style = request.style
    baselines = {group.run.baseline for group in groups}
    labels = [label for label in chosen(groups, request.methods) if label not in baselines]
    by_group, problems = list[tuple[Group, tuple[Waterfall, ...], tuple[str, ...]]](), list[UserError]()
    for group in groups:
        try:
            by_group.append((group, *waterfalls(group, labels)))
        except UserError as error:  # of batches, imported, or of the baseline alone
            problems.append(error)
    if not by_group:
        raise problems[0]
    profiled = [waterfall.label for _, methods, _ in by_group for waterfall in methods]
    if not profiled:
        raise UserError(
            "not_profiled",
            f"{groups[0].files[0].path}: no method was profiled together with the baseline, so the phases of steps are "
            "not known. Measure with `benchctl run --profile`.",
        )
    check_count(profiled, _MOST[style.size], "methods that were profiled")
    names = shown_labels(profiled, groups)
    shown = [(group, methods) for group, methods, _ in by_group if methods]
    titles = ["Where each method gains and loses time per token"] * len(shown)
    heights = [_height(methods, names, style) for _, methods in shown]
    figure, parts = new_panels([group for group, _ in shown], titles, style, heights)
    for part, (_, methods) in zip(parts, shown, strict=True):
        _draw(part, methods, names, style)
    notes = [note for _, _, notes in by_group for note in notes]
    return Drawing(figure, [*notes, *(f"{problem} It is left out." for problem in problems)])


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def _title(waterfall: Waterfall, names: Mapping[str, str], style: Style) -> str:
    speedup, interval = waterfall.speedup.value, waterfall.speedup.interval
    spread = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    inches = style.width * 0.75 / _COLUMNS[style.size]
    return wrapped([names[waterfall.label], f"{speedup:.2f}x{spread}"], style.small, inches)


def _rows(methods: Sequence[Waterfall]) -> list[str]:
    """The names of the bars from the top. A cause that is small for every method has no row."""
    seen = {bar.name for waterfall in methods for bar in waterfall.visible}
    return [name for name in dict.fromkeys(bar.name for bar in methods[0].bars) if name in seen]


def _height(methods: Sequence[Waterfall], names: Mapping[str, str], style: Style) -> float:
    lines = max(_title(waterfall, names, style).count("\n") + 1 for waterfall in methods)
    of_a_method = len(_rows(methods)) * 1.35 + lines + 0.7
    return (ceil(len(methods) / _COLUMNS[style.size]) * of_a_method + 3) * line_inches(style)


def _draw(part: SubFigure, methods: Sequence[Waterfall], names: Mapping[str, str], style: Style) -> None:
    columns, rows = min(len(methods), _COLUMNS[style.size]), _rows(methods)
    grid = part.subplots(ceil(len(methods) / columns), columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(methods) :]:
        axes.set_visible(False)
    right = max(bar.right_s for waterfall in methods for bar in waterfall.bars)
    for number, (axes, waterfall) in enumerate(zip(grid.flat, methods, strict=False)):
        _draw_bars(axes, waterfall, rows, style)
        dress(axes, style)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(labelbottom=number + columns >= len(methods))
        axes.grid(visible=False, axis="y")
        axes.set_title(_title(waterfall, names, style), loc="left", fontsize=style.small, color=style.ink)
    axes = grid[0, 0]  # all share theirs
    axes.set_xlim(0, 1e3 * right * 1.25)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), rows)
    part.supxlabel("ms per token after the first (95% intervals)", fontsize=style.text, color=style.ink)


def _draw_bars(axes: Axes, waterfall: Waterfall, rows: Sequence[str], style: Style) -> None:
    """What a method saves is light, what it costs hatched, and its own time solid."""
    placed = [(rows.index(bar.name), bar) for bar in waterfall.visible]
    colour = style.colour_of(waterfall.label)
    for row, bar in placed:
        is_method = bar.whole and row > 0
        fill = style.muted if bar.whole else style.faded(colour, 0.3)
        axes.barh(
            row, 1e3 * bar.change_s, left=1e3 * bar.start_s, height=_BAR, facecolor=colour if is_method else fill,
            edgecolor=style.muted if bar.whole and not is_method else colour, linewidth=style.line * 0.6, zorder=2,
            hatch="" if bar.whole or bar.change_s < 0 else "////",
        )  # fmt: skip
        if bar.interval:
            ends = [1e3 * bar.interval.low, 1e3 * bar.interval.high]
            axes.plot(ends, [row, row], "|-", color=style.ink, linewidth=style.line * 0.7,
                      markersize=style.marker * 0.6, zorder=3)  # fmt: skip
        axes.annotate(bar.text, (1e3 * bar.right_s, row), xytext=(style.small / 3, 0), textcoords="offset points",
                      va="center", fontsize=style.small, color=style.ink, zorder=4)  # fmt: skip
    for (row, bar), (next_row, _) in pairwise(placed):  # to where the next one starts
        axes.plot([1e3 * bar.end_s] * 2, [row, next_row], color=style.muted, linewidth=style.line * 0.5, zorder=1)
