"""Where each method gains and loses time, from runs with --profile.

From the baseline's time per token, through what each cause takes off or adds, to the method's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.plots.axes import dress, new_panels
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Style, broken_label, line_inches, shown_labels, three_digits
from benchctl.analysis.predict.accounts import UNEXPLAINED
from benchctl.analysis.predict.speedup import Figure, Prediction, Unpredicted, predict
from benchctl.analysis.stats.intervals import Interval
from benchctl.errors import UserError

# The cause behind each part of an account (see predict.accounts).
_DRAFTING = {
    "target steps": "fewer steps",
    "drafting": "drafting",
    "wider passes": "verifying",
    "commit": "commit",
    "host": "host",
    UNEXPLAINED: "not in profile",
}
_LEAVING = _DRAFTING | {"target steps": "fewer layers", "rest of passes": "rest of passes"}

_NOTHING = 1e-9  # of the baseline's time: the rounding error of sums


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
        """Without changes that are only rounding."""
        return tuple(bar for bar in self.bars if abs(bar.change_s) > _NOTHING * self.bars[0].end_s)


@dataclass(frozen=True)
class Waterfalls:
    """A group's profiled methods, and why others are left out."""

    profiled: tuple[Waterfall, ...]
    notes: tuple[str, ...]


def waterfalls(group: Group, labels: Sequence[str]) -> Waterfalls:
    """Of those of `labels` that were profiled, in that order. Raises UserError as speedup.predict does."""
    suites = {figures.suite for figures in group.suites}
    files = [replace(file, rows=[row for row in file.rows if row.suite in suites]) for file in group.files]
    accounts = {account.label: account for account in predict(files)}
    asked = [accounts[label] for label in labels if label in accounts]
    return Waterfalls(
        tuple(_waterfall(account, group.run.baseline) for account in asked if _is_profiled(account)),
        tuple(_why_left_out(account) for account in asked if not _is_profiled(account)),
    )


def _is_profiled(account: Prediction | Unpredicted) -> TypeGuard[Prediction]:
    return isinstance(account, Prediction) and account.basis == "profile"


def _why_left_out(account: Prediction | Unpredicted) -> str:
    no_phases = "it or the baseline was not profiled, or has steps without phases. Measure with --profile"
    return f"{account.label} is left out: {account.reason if isinstance(account, Unpredicted) else no_phases}."


def _waterfall(account: Prediction, baseline: str) -> Waterfall:
    names = _DRAFTING if account.costs.drafted_per_step else _LEAVING
    unit_s = account.baseline_token_s
    bars = [Bar(baseline, 0.0, unit_s, None, True)]
    for index, part in enumerate(account.parts):
        # The first part, the target's steps, stands for the whole baseline: it changes the time by its share less 1.
        start_s, offset = bars[-1].end_s, 0 if index else 1
        end_s = start_s + (part.share - offset) * unit_s
        interval = part.interval and Interval(
            start_s + (part.interval.low - offset) * unit_s, start_s + (part.interval.high - offset) * unit_s
        )
        bars.append(Bar(names[part.name], start_s, end_s, interval))
    speedup = account.measured  # its interval gives that of the method, as if the baseline's time had no error
    ends = speedup.interval and Interval(unit_s / speedup.interval.high, unit_s / speedup.interval.low)
    bars.append(Bar("method", 0.0, unit_s / speedup.value, ends, True))
    return Waterfall(account.label, speedup, tuple(bars))


_BAR = 0.62  # of a row
_MOST: Final = {"screen": 12, "column": 4, "slide": 3}  # methods
_COLUMNS: Final = {"screen": 3, "column": 1, "slide": 3}


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """How the baseline's time per token becomes the method's, by cause, for every method that was profiled.

    Raises UserError where none was, for batches, and for more methods or groups than there is room for.
    """
    style = request.style
    baselines = {group.run.baseline for group in groups}
    labels = [label for label in chosen(groups, request.methods) if label not in baselines]
    by_group = [(group, waterfalls(group, labels)) for group in groups]
    profiled = [waterfall.label for _, each in by_group for waterfall in each.profiled]
    if not profiled:
        raise UserError(
            "not_profiled",
            f"{groups[0].files[0].path}: no method was profiled together with the baseline, so the phases of steps are "
            "not known. Measure with `benchctl run --profile`.",
        )
    check_count(profiled, _MOST[style.size], "methods that were profiled")
    names = shown_labels(profiled, style, groups)
    shown = [(group, _in_rows(each.profiled, _COLUMNS[style.size])) for group, each in by_group if each.profiled]
    heights = [[_height(row, names, style) for row in rows] for _, rows in shown]
    totals = [sum(of_rows) + 2 * line_inches(style) for of_rows in heights]
    figure, parts = new_panels([group for group, _ in shown], style, totals)
    for part, (_, rows), of_rows in zip(parts, shown, heights, strict=True):
        _draw(part, rows, of_rows, names, style)
    return Drawing(figure, [note for _, each in by_group for note in each.notes])


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def _title(waterfall: Waterfall, names: Mapping[str, str], style: Style) -> str:
    speedup, interval = waterfall.speedup.value, waterfall.speedup.interval
    spread = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    name = broken_label(names[waterfall.label], style.small, style.width * 0.8 / _COLUMNS[style.size])
    return f"{name}\n{speedup:.2f}x{spread} per token"


def _height(row: Sequence[Waterfall], names: Mapping[str, str], style: Style) -> float:
    lines = max(_title(waterfall, names, style).count("\n") + 1 for waterfall in row)
    return (len(row[0].visible) * 1.35 + lines + 3) * line_inches(style)


def _in_rows(waterfalls: Sequence[Waterfall], columns: int) -> list[list[Waterfall]]:
    """Rows of panels. All panels of a row have the same causes, which the first one names."""
    by_causes: dict[tuple[str, ...], list[Waterfall]] = {}
    for waterfall in waterfalls:
        by_causes.setdefault(tuple(bar.name for bar in waterfall.visible), []).append(waterfall)
    return [alike[at : at + columns] for alike in by_causes.values() for at in range(0, len(alike), columns)]


def _draw(
    part: SubFigure,
    rows: Sequence[Sequence[Waterfall]],
    heights: Sequence[float],
    names: Mapping[str, str],
    style: Style,
) -> None:
    grid = part.subplots(len(rows), max(map(len, rows)), squeeze=False, sharex=True, height_ratios=heights)
    right = max(bar.right_s for row in rows for waterfall in row for bar in waterfall.bars)
    for index, row in enumerate(rows):
        for axes in grid[index][len(row) :]:
            axes.set_visible(False)
        below = rows[index + 1] if index + 1 < len(rows) else []
        for number, (axes, waterfall) in enumerate(zip(grid[index], row, strict=False)):
            _draw_panel(axes, waterfall.visible, style, named=not number)
            axes.set_xlim(0, 1e3 * right * 1.22)
            axes.tick_params(labelbottom=number >= len(below))
            axes.set_title(_title(waterfall, names, style), loc="left", fontsize=style.small, color=style.ink)
    part.supxlabel("ms per token after the first (lines at ends: 95% interval)", fontsize=style.text, color=style.ink)


def _draw_panel(axes: Axes, bars: Sequence[Bar], style: Style, *, named: bool) -> None:
    for row, bar in enumerate(bars):
        saves, end = bar.change_s < 0, 1e3 * bar.end_s
        colour = style.muted if bar.whole else style.mark(0 if saves else 1).colour
        axes.barh(
            row, 1e3 * bar.change_s, left=1e3 * bar.start_s, height=_BAR,
            facecolor=style.faded(colour, 0.75 if bar.whole else 0.6), edgecolor=colour,
            hatch="" if bar.whole or saves else "////", linewidth=style.line * 0.6, zorder=2,
        )  # fmt: skip
        if bar.interval:
            ends = [1e3 * bar.interval.low, 1e3 * bar.interval.high]
            axes.plot(ends, [row, row], "|-", color=style.ink, linewidth=style.line * 0.7,
                      markersize=style.marker * 0.6, zorder=3)  # fmt: skip
        if row + 1 < len(bars):  # to where the next one starts
            axes.plot([end, end], [row, row + 1], color=style.muted, linewidth=style.line * 0.5, zorder=1)
        axes.annotate(bar.text, (1e3 * bar.right_s, row), xytext=(style.small / 3, 0), textcoords="offset points",
                      va="center", fontsize=style.small, color=style.ink, zorder=4)  # fmt: skip
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.name if named else "" for bar in bars])
    dress(axes, style)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
