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
class Fall:
    """A change of the time per token, in seconds, and where it starts; `interval` is of the change."""

    name: str
    start_s: float
    change_s: float
    interval: Interval | None

    @property
    def end_s(self) -> float:
        return self.start_s + self.change_s


@dataclass(frozen=True)
class Waterfall:
    """The first fall starts at the baseline's time for a token, the last ends at the method's."""

    label: str
    baseline_s: float
    speedup: Figure
    falls: tuple[Fall, ...]
    prompts: int

    @property
    def visible_falls(self) -> tuple[Fall, ...]:
        """The falls that are more than rounding."""
        return tuple(fall for fall in self.falls if abs(fall.change_s) > _NOTHING * self.baseline_s)

    @property
    def token_s(self) -> float:
        """The method's seconds per token."""
        return self.baseline_s / self.speedup.value

    @property
    def token_interval(self) -> Interval | None:
        """Of `token_s`, as if the baseline's time had no error."""
        interval = self.speedup.interval
        return None if interval is None else Interval(self.baseline_s / interval.high, self.baseline_s / interval.low)


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
        tuple(_waterfall(account) for account in asked if _is_profiled(account)),
        tuple(_why_left_out(account) for account in asked if not _is_profiled(account)),
    )


def _is_profiled(account: Prediction | Unpredicted) -> TypeGuard[Prediction]:
    return isinstance(account, Prediction) and account.basis == "profile"


def _why_left_out(account: Prediction | Unpredicted) -> str:
    no_phases = "it or the baseline was not profiled, or has steps without phases. Measure with --profile"
    return f"{account.label} is left out: {account.reason if isinstance(account, Unpredicted) else no_phases}."


def _waterfall(account: Prediction) -> Waterfall:
    names = _DRAFTING if account.costs.drafted_per_step else _LEAVING
    falls: list[Fall] = []
    unit_s = account.baseline_token_s
    start_s = unit_s
    for index, part in enumerate(account.parts):
        # The first part, the target's steps, stands for the whole baseline: it changes the time by its share less 1.
        offset = 0 if index else 1
        interval = part.interval and Interval(
            (part.interval.low - offset) * unit_s, (part.interval.high - offset) * unit_s
        )
        falls.append(Fall(names[part.name], start_s, (part.share - offset) * unit_s, interval))
        start_s = falls[-1].end_s
    return Waterfall(account.label, unit_s, account.measured, tuple(falls), account.prompts)


_BAR = 0.62  # of a row


@dataclass(frozen=True)
class _Layout:
    most: int
    columns: int


_LAYOUTS: Final = {
    "screen": _Layout(most=12, columns=3),
    "column": _Layout(most=4, columns=1),
    "slide": _Layout(most=3, columns=3),
}


@dataclass(frozen=True)
class _Sheet:
    """Shared by all panels; `names` are the names of labels."""

    style: Style
    layout: _Layout
    names: Mapping[str, str]

    def title(self, waterfall: Waterfall) -> str:
        speedup, interval = waterfall.speedup.value, waterfall.speedup.interval
        spread = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
        width = self.style.width * 0.8 / self.layout.columns
        name = broken_label(self.names[waterfall.label], self.style.small, width)
        return f"{name}\n{speedup:.2f}x{spread} per token"

    def row_height(self, row: Sequence[Waterfall]) -> float:
        bars_of_row = 2 + len(row[0].visible_falls)
        lines = max(self.title(waterfall).count("\n") + 1 for waterfall in row)
        return (bars_of_row * 1.35 + lines + 3) * line_inches(self.style)


@dataclass(frozen=True)
class _Bar:
    """A row of a panel, in ms. `interval` is of its end; `whole` bars start at 0."""

    name: str
    start: float
    end: float
    interval: Interval | None
    text: str
    whole: bool

    @property
    def right(self) -> float:
        """The furthest that it reaches."""
        return max(self.start, self.end, self.interval.high if self.interval else 0.0)


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """How the baseline's time per token becomes the method's, by cause, for every method that was profiled.

    Raises UserError where none was, for batches, and for more methods or groups than there is room for.
    """
    style, layout = request.style, _LAYOUTS[request.style.size]
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
    check_count(profiled, layout.most, "methods that were profiled")
    shown = [(group, _in_rows(each.profiled, layout.columns)) for group, each in by_group if each.profiled]
    sheet = _Sheet(style, layout, shown_labels(profiled, style))
    heights = [sum(map(sheet.row_height, rows)) + 2 * line_inches(style) for _, rows in shown]
    figure, parts = new_panels([group for group, _ in shown], style, heights)
    for part, (group, rows) in zip(parts, shown, strict=True):
        _draw(part, group.run.baseline, rows, sheet)
    return Drawing(figure, [note for _, each in by_group for note in each.notes])


PLOT = Plot(draw, options=("suites", "by_suite", "methods"))


def bars(waterfall: Waterfall, baseline: str) -> tuple[_Bar, ...]:
    """The rows of a panel from the top: the baseline, each visible fall, and the method."""
    whole = 1e3 * waterfall.baseline_s
    rows = [_Bar(baseline, 0.0, whole, None, three_digits(whole), True)]
    for fall in waterfall.visible_falls:
        start, end, interval = 1e3 * fall.start_s, 1e3 * fall.end_s, fall.interval
        ends = None if interval is None else Interval(start + 1e3 * interval.low, start + 1e3 * interval.high)
        rows.append(_Bar(fall.name, start, end, ends, _signed(end - start), False))
    token, interval = 1e3 * waterfall.token_s, waterfall.token_interval
    ends = None if interval is None else Interval(1e3 * interval.low, 1e3 * interval.high)
    rows.append(_Bar("method", 0.0, token, ends, three_digits(token), True))
    return tuple(rows)


def _signed(change: float) -> str:
    digits = three_digits(change)
    return f"+{digits}" if change > 0 and digits != "0.00" else digits


def _in_rows(waterfalls: Sequence[Waterfall], columns: int) -> list[list[Waterfall]]:
    """Rows of panels. All panels of a row have the same causes, which the first one names."""
    by_causes: dict[tuple[str, ...], list[Waterfall]] = {}
    for waterfall in waterfalls:
        by_causes.setdefault(tuple(fall.name for fall in waterfall.visible_falls), []).append(waterfall)
    return [alike[at : at + columns] for alike in by_causes.values() for at in range(0, len(alike), columns)]


def _draw(part: SubFigure, baseline: str, rows: Sequence[Sequence[Waterfall]], sheet: _Sheet) -> None:
    style = sheet.style
    grid = part.subplots(
        len(rows),
        min(sheet.layout.columns, max(map(len, rows))),
        squeeze=False,
        sharex=True,
        height_ratios=[sheet.row_height(row) for row in rows],
    )
    right = max(bar.right for row in rows for waterfall in row for bar in bars(waterfall, baseline))
    for index, row in enumerate(rows):
        for axes in grid[index][len(row) :]:
            axes.set_visible(False)
        below = rows[index + 1] if index + 1 < len(rows) else []
        for number, waterfall in enumerate(row):
            axes = grid[index][number]
            _draw_panel(axes, bars(waterfall, baseline), style, named=not number)
            axes.set_xlim(0, right * 1.22)
            axes.tick_params(labelbottom=number >= len(below))
            axes.set_title(sheet.title(waterfall), loc="left", fontsize=style.small, color=style.ink)
    part.supxlabel("ms per token after the first (lines at ends: 95% interval)", fontsize=style.text, color=style.ink)


def _draw_panel(axes: Axes, bars_shown: Sequence[_Bar], style: Style, *, named: bool) -> None:
    for row, bar in enumerate(bars_shown):
        saves = bar.end < bar.start
        colour = style.muted if bar.whole else style.mark(0 if saves else 1).colour
        axes.barh(
            row,
            bar.end - bar.start,
            left=bar.start,
            height=_BAR,
            facecolor=style.faded(colour, 0.75 if bar.whole else 0.6),
            edgecolor=colour,
            hatch="" if bar.whole or saves else "////",
            linewidth=style.line * 0.6,
            zorder=2,
        )
        if bar.interval:
            axes.plot(
                [bar.interval.low, bar.interval.high],
                [row, row],
                "|-",
                color=style.ink,
                linewidth=style.line * 0.7,
                markersize=style.marker * 0.6,
                zorder=3,
            )
        if row + 1 < len(bars_shown):  # to where the next one starts
            axes.plot([bar.end] * 2, [row, row + 1], color=style.muted, linewidth=style.line * 0.5, zorder=1)
        axes.annotate(
            bar.text,
            (bar.right, row),
            xytext=(style.small / 3, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.small,
            color=style.ink,
            zorder=4,
        )
    axes.set_ylim(len(bars_shown) - 0.5, -0.5)
    axes.set_yticks(range(len(bars_shown)), [bar.name if named else "" for bar in bars_shown])
    dress(axes, style)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
