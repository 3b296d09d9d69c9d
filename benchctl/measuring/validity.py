"""Whether a generation's times can be trusted: its conditions against what is usual in its session, and against the
alarms of the GPU itself. What is out of bounds is measured again, and marked where that does not help.

Bounds on load and speed are the session's own: a machine that is always busy, or always slow, is so for the baseline
too, and is told of as a whole (analysis.doubts); what makes a comparison wrong is a disturbance that only some
generations met. The times of a generation are never looked at, for leaving out slow ones would make a method fast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchctl.measuring.gpu import BRAKES
from benchctl.records import Row

TRIES = 3
PATIENCE = 3  # generations in a row for which no try was good; from then on nothing is tried again until one is
ENOUGH = 8  # readings before a session knows what is usual
MARGIN = 0.05  # what warm-up, too, takes for the same time
_SPREADS = 5.0  # chance alone puts one reading in a million beyond five standard deviations
_NORMAL = 1.4826  # standard deviations in a median deviation, of a normal distribution
_REMEMBERED = 500


class Usual:
    """The readings of one condition in this session, and how far from their median the next may lie."""

    def __init__(self) -> None:
        self._readings: list[float] = []

    def add(self, reading: float) -> None:
        """Take a reading; the oldest of many is forgotten."""
        self._readings = [*self._readings[-_REMEMBERED + 1 :], reading]

    @property
    def known(self) -> bool:
        """Whether there are enough of them."""
        return len(self._readings) >= ENOUGH

    @property
    def middle(self) -> float:
        return median(self._readings)

    def reach(self, least: float) -> float:
        """How far from the middle a reading may lie: `least`, or five standard deviations where that is more, as told
        by the median deviation, which a few outliers do not widen.

        Readings 1.0 1.0 1.1 1.1 1.1 1.2 1.2 9.0 have the median 1.1 and the median deviation 0.1: 5 * 1.4826 * 0.1.
        """
        middle = self.middle
        return max(least, _SPREADS * _NORMAL * median(abs(reading - middle) for reading in self._readings))


class Bounds:
    """Judges conditions and remembers them. `spare_cores` are those of the usable ones that the run does not need."""

    def __init__(self, spare_cores: float) -> None:
        self._spare_cores = spare_cores
        self._usual: defaultdict[str, Usual] = defaultdict(Usual)

    def doubts(self, label: str, conditions: Mapping[str, float]) -> tuple[str, ...]:
        """What speaks against times taken under these conditions; empty where nothing does. A condition that is missing
        says nothing."""
        found = [
            self._slow(conditions.get("sentinel_s")),
            self._waiting(conditions.get("waited_share")),
            self._crowded(conditions.get("foreign_cores")),
            self._clocked_down(label, conditions.get("sm_clock_mhz")),
            *_alarms(conditions),
        ]
        for name in ("sentinel_s", "waited_share", "foreign_cores"):
            if name in conditions:
                self._usual[name].add(conditions[name])
        if "sm_clock_mhz" in conditions:
            self._usual[_clock(label)].add(conditions["sm_clock_mhz"])
        return tuple(doubt for doubt in found if doubt)

    def _slow(self, sentinel_s: float | None) -> str:
        usual = self._usual["sentinel_s"]
        if sentinel_s is None or not usual.known or sentinel_s <= usual.middle + usual.reach(MARGIN * usual.middle):
            return ""
        return f"the sentinel took {sentinel_s / usual.middle:.2f} times its usual time"

    def _waiting(self, waited_share: float | None) -> str:
        usual = self._usual["waited_share"]
        if waited_share is None or not usual.known or waited_share <= usual.middle + usual.reach(MARGIN):
            return ""
        return f"it waited for a core {waited_share:.0%} of the time (usually {usual.middle:.0%})"

    def _crowded(self, foreign_cores: float | None) -> str:
        """Nobody has to wait as long as others fit onto the cores to spare."""
        usual = self._usual["foreign_cores"]
        if foreign_cores is None or not usual.known:
            return ""
        if foreign_cores <= max(self._spare_cores + MARGIN, usual.middle + usual.reach(MARGIN)):
            return ""
        return f"others used {foreign_cores:.1f} cores (usually {usual.middle:.1f}, {self._spare_cores:.0f} to spare)"

    def _clocked_down(self, label: str, clock_mhz: float | None) -> str:
        """Each label has a usual clock of its own: what draws more power runs at a lower one."""
        usual = self._usual[_clock(label)]
        if clock_mhz is None or not usual.known or clock_mhz >= usual.middle - usual.reach(MARGIN * usual.middle):
            return ""
        return f"the GPU's clock was at {clock_mhz:.0f} MHz (usually {usual.middle:.0f})"


class Watch:
    """Has a job measured again while its conditions are out of bounds, and marks the rows of what stays so.

    Where a disturbance lasts further tries only cost time, so there are none until a generation was good again.
    `again` counts the further tries, `marked` the generations (batches) that stayed bad.
    """

    def __init__(self, bounds: Bounds, notify: Callable[[str], None]) -> None:
        self._bounds, self._notify = bounds, notify
        self._bad_in_a_row = 0
        self.again = 0
        self.marked = 0

    def observe(self, rows: Sequence[Row]) -> None:
        """Take the conditions of a warm-up for usual ones."""
        self._bounds.doubts(rows[0].label, rows[0].conditions)

    def settle(self, measure: Callable[[], tuple[Row, ...]]) -> tuple[Row, ...]:
        """The rows of the first try that is in bounds, or of the last one, with `invalid` saying why not."""
        tries = TRIES if self._bad_in_a_row < PATIENCE else 1
        rows, doubts = self._try(measure)
        for _ in range(1, tries):
            if not doubts:
                break
            self.again += 1
            rows, doubts = self._try(measure)
        if not doubts:
            self._bad_in_a_row = 0
            return rows
        self._mark(doubts)
        return tuple(replace(row, invalid="; ".join(doubts)) for row in rows)

    def _try(self, measure: Callable[[], tuple[Row, ...]]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
        """Rows of one batch share its conditions; a failed one has none."""
        rows = measure()
        return rows, self._bounds.doubts(rows[0].label, rows[0].conditions)

    def _mark(self, doubts: Sequence[str]) -> None:
        self.marked += 1
        self._bad_in_a_row += 1
        if self._bad_in_a_row == PATIENCE:
            self._notify(
                f"{PATIENCE} generations in a row were measured out of bounds ({doubts[0]}); while that lasts they are "
                "marked and not measured again. Stop what disturbs, or use --no-watch to measure regardless."
            )


def _alarms(conditions: Mapping[str, float]) -> tuple[str, ...]:
    """What no GPU should show, whatever is usual."""
    reasons, others = int(conditions.get("throttle_reasons", 0)), int(conditions.get("foreign_processes", 0))
    found = [f"the GPU slowed down: {why}" for bit, why in BRAKES.items() if reasons & bit]
    if others:
        found.append(f"{others} other process{'es' if others > 1 else ''} computed on the GPU")
    temperature_c, slowdown_c = conditions.get("temperature_c"), conditions.get("slowdown_c")
    if temperature_c is not None and slowdown_c is not None and temperature_c >= slowdown_c:
        found.append(f"the GPU was at {temperature_c:.0f} °C, where it slows down")
    return tuple(found)


def _clock(label: str) -> str:
    return f"sm_clock_mhz of {label}"
