"""Whether times can be trusted: what a round met against what is usual in its session, and the alarms of the GPU.

A round is one repeat of a prompt, or batch, by every label in every mode. What outside load took of a round is judged
over the whole round, time-weighted. One out of bounds is marked, figures leave it out as a whole, for all alike
(analysis.rounds), and the session measures it again as a whole, as a further repeat (session.py). A generation is never
judged, or measured again, by itself: a short one is hit by a passing load wholly or not at all, while a long one meets
its average, so to leave out the worst generations, or the rounds of those, makes the shorter method fast. In the
simulation of the tests that was 2 to 3%. For the same reason readings of single moments (the sentinel, the clock) judge
nothing, and are only told of: the moments around a short generation say more of it than those around a long one, which
came to 1 to 5%. The alarms are the exception, as no GPU should show them at all.

Bounds are the session's own: a machine that is always busy is so for the baseline too, and is told of as a whole
(analysis.doubts); what makes a comparison wrong is a disturbance that only some met. A run that goes on is held against
what was usual to its file (session.py), which is one session in all figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchctl.measuring.machine.gpu import BRAKES
from benchctl.records.schema import Row

PATIENCE = 3  # rounds in a row out of bounds until it is told of, and nothing is measured again
MOST_TRIES = 2  # to measure a round again
ENOUGH = 8  # rounds before a session knows what is usual
MARGIN = 0.05  # what warm-up, too, takes for the same time
_SPREADS = 5.0  # chance alone puts one reading in a million beyond five standard deviations
_NORMAL = 1.4826  # standard deviations in a median deviation, of a normal distribution
_REMEMBERED = 60  # rounds: another level that lasts is the usual one after half of them
_JUDGED = ("waited_share", "foreign_cores")  # what covers the time of a generation evenly


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
    """Judges rounds and remembers them. `spare_cores` are those of the usable ones that the run does not need."""

    def __init__(self, spare_cores: float) -> None:
        self._spare_cores = spare_cores
        self._usual: defaultdict[str, Usual] = defaultdict(Usual)

    def doubts(self, conditions: Mapping[str, float]) -> tuple[str, ...]:
        """What speaks against times taken under these conditions; empty where nothing does. A condition that is missing
        says nothing."""
        found = self._waiting(conditions.get("waited_share")), self._crowded(conditions.get("foreign_cores"))
        for name in _JUDGED:
            if name in conditions:
                self._usual[name].add(conditions[name])
        return tuple(doubt for doubt in found if doubt)

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


class Watch:
    """Marks what was measured out of bounds. `marked` counts the rounds, each measurement of one by itself."""

    def __init__(self, bounds: Bounds, notify: Callable[[str], None]) -> None:
        self._bounds, self._notify = bounds, notify
        self._round: list[Row] = []
        self._doubts: list[str] = []
        self._bad_in_a_row = 0
        self.marked = 0

    @property
    def lasts(self) -> bool:
        """Whether what disturbs has come to stay, so that measuring again would meet it again."""
        return self._bad_in_a_row >= PATIENCE

    def observe(self, rows: Sequence[Row], *, ends_round: bool) -> tuple[str, ...]:
        """Take a job's rows into their round, which these end or not; what speaks against the round, once it ends.

        By itself it is for what is not to be marked: warm-up, and what the file has already.
        """
        self._round.append(max(rows, key=_took_s))  # rows of a batch share its conditions, and its time is the longest
        if not ends_round:
            return ()
        whole, self._round = over_round(self._round), []
        return self._bounds.doubts(whole)

    def mark(self, rows: tuple[Row, ...], *, ends_round: bool) -> tuple[Row, ...]:
        """The job's rows, with `invalid` naming the GPU's alarms, and in a round's last ones what the round met."""
        doubts = [*_alarms(rows[0].conditions)]
        doubts += [f"its round: {doubt}" for doubt in self.observe(rows, ends_round=ends_round)]
        self._doubts += doubts
        if ends_round:
            self._end()
        return tuple(replace(row, invalid="; ".join(doubts)) for row in rows) if doubts else rows

    def _end(self) -> None:
        doubts, self._doubts = self._doubts, []
        if not doubts:
            self._bad_in_a_row = 0
            return
        self.marked += 1
        self._bad_in_a_row += 1
        if self._bad_in_a_row == PATIENCE:
            self._notify(
                f"{PATIENCE} rounds in a row were measured out of bounds ({doubts[0]}): they are marked, figures will "
                "leave them out, and none is measured again until one is in bounds. Stop what disturbs: --resume will "
                "measure them again. Or use --no-watch to measure regardless."
            )


def over_round(rows: Sequence[Row]) -> dict[str, float]:
    """What others took of a whole round: the mean of its generations, each weighing as much as it lasted.

    Of 3 s that waited for 10% and 1 s that waited for 50% the round waited for 20%. A failed one has no time.
    """
    found = {}
    for name in _JUDGED:
        told = [(row.conditions[name], _took_s(row)) for row in rows if name in row.conditions]
        if (whole_s := sum(took_s for _, took_s in told)) > 0:
            found[name] = sum(reading * took_s for reading, took_s in told) / whole_s
    return found


def _took_s(row: Row) -> float:
    return (row.ttft_s or 0.0) + sum(row.step_s)


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
