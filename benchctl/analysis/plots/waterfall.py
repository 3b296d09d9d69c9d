"""Where a speed-up comes from: the baseline's time for a token, what each cause takes off or adds, the method's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from benchctl.analysis.comparison import Group, check_count, chosen
from benchctl.analysis.plots.axes import check_image, dress, save
from benchctl.analysis.plots.panels import broken, check_groups, line_inches, names, parted, three_digits
from benchctl.analysis.plots.style import Style
from benchctl.analysis.predict.accounts import UNEXPLAINED, Part
from benchctl.analysis.predict.speedup import Figure, Prediction, Unpredicted, predict
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.errors import UserError

# What each part of an account does to a token's time. The first one stands against the whole of the baseline's.
_DRAFTING = {
    "target steps": "fewer steps",
    "drafting": "drafting",
    "wider passes": "verifying",
    "commit": "commit",
    "host": "host",
    UNEXPLAINED: "not in profile",
}
_LEAVING = _DRAFTING | {"target steps": "fewer layers", "rest of passes": "rest of passes"}

_NOTHING = 1e-9  # of the baseline's time: what sums of shares are off by


@dataclass(frozen=True)
class Fall:
    """By what something changes the time of a token, in seconds, and where it starts; `interval` is of the change."""

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
    def told(self) -> tuple[Fall, ...]:
        """The falls that are more than rounding."""
        return tuple(fall for fall in self.falls if abs(fall.change_s) > _NOTHING * self.baseline_s)

    @property
    def token_s(self) -> float:
        """What the method takes for a token."""
        return self.baseline_s / self.speedup.value

    @property
    def token_interval(self) -> Interval | None:
        """Of what the method takes for a token, were the baseline's known."""
        found = self.speedup.interval
        return None if found is None else Interval(self.baseline_s / found.high, self.baseline_s / found.low)


@dataclass(frozen=True)
class Waterfalls:
    """Those of a group, and why there are none of the others."""

    found: tuple[Waterfall, ...]
    notes: tuple[str, ...]


def waterfalls(group: Group, labels: Sequence[str]) -> Waterfalls:
    """Of those of `labels` that were profiled, in that order. Raises UserError as predict.predict does."""
    suites = {figures.suite for figures in group.suites}
    files = [replace(file, rows=[row for row in file.rows if row.suite in suites]) for file in group.files]
    accounts = {account.label: account for account in predict(files)}
    asked = [accounts[label] for label in labels if label in accounts]
    found = tuple(_waterfall(account) for account in asked if _is_profiled(account))
    return Waterfalls(found, tuple(_why(account) for account in asked if not _is_profiled(account)))


def _is_profiled(account: Prediction | Unpredicted) -> TypeGuard[Prediction]:
    return isinstance(account, Prediction) and account.basis == "profile"


def _why(account: Prediction | Unpredicted) -> str:
    unsplit = "it or the baseline was not profiled, or has steps that tell no phases. Measure with --profile"
    return f"{account.label} is left out: {account.reason if isinstance(account, Unpredicted) else unsplit}."


def _waterfall(account: Prediction) -> Waterfall:
    names = _DRAFTING if account.costs.drafted_per_step else _LEAVING
    falls: list[Fall] = []
    at_s, unit_s = account.baseline_token_s, account.baseline_token_s
    for place, part in enumerate(account.parts):
        whole = 0 if place else 1
        falls.append(_fall(part, names[part.name], whole, at_s, unit_s))
        at_s = falls[-1].end_s
    return Waterfall(account.label, unit_s, account.measured, tuple(falls), account.prompts)


def _fall(part: Part, name: str, whole: int, start_s: float, unit_s: float) -> Fall:
    """What the part adds to a token of `unit_s` that had `whole` of it already."""
    interval = part.interval
    between = None if interval is None else Interval((interval.low - whole) * unit_s, (interval.high - whole) * unit_s)
    return Fall(name, start_s, (part.share - whole) * unit_s, between)


_BAR = 0.62  # of a row


@dataclass(frozen=True)
class _Layout:
    most: int
    columns: int


_LAYOUTS: Final = {
    "page": _Layout(most=12, columns=3),
    "column": _Layout(most=4, columns=1),
    "slide": _Layout(most=3, columns=3),
}


@dataclass(frozen=True)
class _Sheet:
    """What is the same for all panels: `names` are what methods are called."""

    style: Style
    layout: _Layout
    names: Mapping[str, str]

    def title(self, waterfall: Waterfall) -> str:
        speedup, interval = waterfall.speedup.value, waterfall.speedup.interval
        spread = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
        width = self.style.width * 0.8 / self.layout.columns
        name = broken(self.names[waterfall.label], self.style.small, width)
        return f"{name}\n{speedup:.2f}x{spread} per token"

    def row_height(self, row: Sequence[Waterfall]) -> float:
        bars_of_row = 2 + len(row[0].told)
        lines = max(self.title(waterfall).count("\n") + 1 for waterfall in row)
        return (bars_of_row * 1.35 + lines + 3) * line_inches(self.style)


@dataclass(frozen=True)
class _Bar:
    """A row of a panel, in ms: from where to where, which `interval` its end has, and the number beside it."""

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


def plot_waterfall(
    groups: Sequence[Group], path: Path, style: Style, *, methods: Sequence[str] = ()
) -> tuple[str, ...]:
    """Draw for each of `methods` (all that were profiled, if not given; see chosen) how the baseline's seconds for a
    token become the method's, by what cause; write it to `path`, and return what to know of it.

    Raises UserError where none was profiled beside the baseline, for batches, for more methods or groups than there is
    room for, and when the picture cannot be written.
    """
    check_image(path)
    check_groups(groups, style)
    layout = _LAYOUTS[style.size]
    labels = [label for label in chosen(groups, methods) if label not in {group.run.baseline for group in groups}]
    found = [waterfalls(group, labels) for group in groups]
    told = [waterfall.label for each in found for waterfall in each.found]
    if not told:
        raise UserError(
            f"{groups[0].files[0].path}: no method was profiled beside the baseline, so what steps are made of is not "
            "known. Measure with `benchctl run --profile`."
        )
    check_count(told, layout.most, "methods that were profiled")
    by_group = zip(groups, found, strict=True)
    kept = [(group, _by_kind(each.found, layout.columns)) for group, each in by_group if each.found]
    sheet = _Sheet(style, layout, names(told, style))
    heights = [sum(map(sheet.row_height, rows)) + 2 * line_inches(style) for _, rows in kept]
    figure, parts = parted([group for group, _ in kept], style, heights)
    for part, (group, rows) in zip(parts, kept, strict=True):
        _draw(part, group.run.baseline, rows, sheet)
    save(figure, path)
    return tuple(note for each in found for note in each.notes)


def bars(waterfall: Waterfall, baseline: str) -> tuple[_Bar, ...]:
    """The rows of a panel from the top: the baseline, each fall that is any, and the method."""
    whole = 1e3 * waterfall.baseline_s
    found = [_Bar(baseline, 0.0, whole, None, three_digits(whole), True)]
    for fall in waterfall.told:
        start, end, interval = 1e3 * fall.start_s, 1e3 * fall.end_s, fall.interval
        ends = None if interval is None else Interval(start + 1e3 * interval.low, start + 1e3 * interval.high)
        found.append(_Bar(fall.name, start, end, ends, _signed(end - start), False))
    token, interval = 1e3 * waterfall.token_s, waterfall.token_interval
    ends = None if interval is None else Interval(1e3 * interval.low, 1e3 * interval.high)
    found.append(_Bar("method", 0.0, token, ends, three_digits(token), True))
    return tuple(found)


def _signed(change: float) -> str:
    digits = three_digits(change)
    return f"+{digits}" if change > 0 and digits != "0.00" else digits


def _by_kind(found: Sequence[Waterfall], columns: int) -> list[list[Waterfall]]:
    """Rows of panels, in which all have the same causes, so that these are named once."""
    kinds: dict[tuple[str, ...], list[Waterfall]] = {}
    for waterfall in found:
        kinds.setdefault(tuple(fall.name for fall in waterfall.told), []).append(waterfall)
    return [alike[at : at + columns] for alike in kinds.values() for at in range(0, len(alike), columns)]


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
    for place, row in enumerate(rows):
        for axes in grid[place][len(row) :]:
            axes.set_visible(False)
        below = rows[place + 1] if place + 1 < len(rows) else []
        for number, waterfall in enumerate(row):
            axes = grid[place][number]
            _draw_panel(axes, bars(waterfall, baseline), style, named=not number)
            axes.set_xlim(0, right * 1.22)
            axes.tick_params(labelbottom=number >= len(below))
            axes.set_title(sheet.title(waterfall), loc="left", fontsize=style.small, color=style.ink)
    part.supxlabel("ms per token after the first (lines at ends: 95% interval)", fontsize=style.text, color=style.ink)


def _draw_panel(axes: Axes, found: Sequence[_Bar], style: Style, *, named: bool) -> None:
    for place, bar in enumerate(found):
        saves = bar.end < bar.start
        colour = style.muted if bar.whole else style.mark(0 if saves else 1).colour
        axes.barh(
            place,
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
                [place, place],
                "|-",
                color=style.ink,
                linewidth=style.line * 0.7,
                markersize=style.marker * 0.6,
                zorder=3,
            )
        if place + 1 < len(found):  # to where the next one starts
            axes.plot([bar.end] * 2, [place, place + 1], color=style.muted, linewidth=style.line * 0.5, zorder=1)
        axes.annotate(
            bar.text,
            (bar.right, place),
            xytext=(style.small / 3, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.small,
            color=style.ink,
            zorder=4,
        )
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_yticks(range(len(found)), [bar.name if named else "" for bar in found])
    dress(axes, style)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
