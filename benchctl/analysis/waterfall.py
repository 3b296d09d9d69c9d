"""From the baseline's time for a token to a method's, cause by cause: an account of predict.py as a flight of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from benchctl.analysis.accounts import UNEXPLAINED, Part
from benchctl.analysis.comparison import Group
from benchctl.analysis.predict import Figure, Prediction, Unpredicted, predict
from benchctl.analysis.stats import Interval

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
