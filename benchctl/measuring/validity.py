"""Whether a round's times can be trusted: its conditions against the usual ones of the session, and GPU alarms.

A round is one repeat of a prompt, or batch, by every label in every mode. Outside load is judged over the whole round,
time-weighted. A disturbed round is marked, figures leave it out for all labels, and it is measured again (plan.py).
Readings at single moments (such as a GPU's clock) are recorded but exclude nothing: they describe a short
generation better than a long one, so exclusion by them shifted speed-ups by 1 to 5% in the simulation of the tests.
GPU alarms do exclude, since no GPU should show them at all.

Bounds are those of the session: constant load affects the baseline too and triggers a warning, not an exclusion
(analysis.warnings). A resumed run uses what was usual in its file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchctl.measuring.machine.gpu import BRAKES
from benchctl.records.schema import Row

PATIENCE = 3  # disturbed rounds in a row until the user gets a notice and retries stop
ENOUGH = 8  # rounds before the usual level is known
MARGIN = 0.05  # relative difference that counts as none, in warm-up too
_SPREADS = 5.0  # chance alone puts one reading in a million beyond five standard deviations
_NORMAL = 1.4826  # standard deviations per median absolute deviation, for a normal distribution
_REMEMBERED = 60  # rounds: a new level that lasts becomes the usual one after half of them
_JUDGED = ("waited_share", "foreign_cores")  # conditions that cover the whole time of a generation


class Usual:
    """The latest readings of one condition in this session."""

    def __init__(self) -> None:
        self._readings: list[float] = []

    def add(self, reading: float) -> None:
        self._readings = [*self._readings[-_REMEMBERED + 1 :], reading]

    @property
    def known(self) -> bool:
        """Whether there are enough readings."""
        return len(self._readings) >= ENOUGH

    @property
    def middle(self) -> float:
        """Their median."""
        return median(self._readings)

    def reach(self, least: float) -> float:
        """How far from the median a reading may lie: five robust standard deviations, but not less than `least`.

        The robust standard deviation is 1.4826 median absolute deviations. Readings 1.0 1.0 1.1 1.1 1.1 1.2 1.2 9.0
        have the median 1.1 and the median absolute deviation 0.1, hence the reach 5 * 1.4826 * 0.1.
        """
        middle = self.middle
        return max(least, _SPREADS * _NORMAL * median(abs(reading - middle) for reading in self._readings))


class Bounds:
    """Judges rounds by their conditions and remembers them. `spare_cores` are usable cores that the run leaves idle."""

    def __init__(self, spare_cores: float) -> None:
        self._spare_cores = spare_cores
        self._usual: defaultdict[str, Usual] = defaultdict(Usual)

    def problems(self, conditions: Mapping[str, float]) -> tuple[str, ...]:
        """Why times under these conditions are not valid; empty where they are. Missing conditions are ignored."""
        waited_share, foreign_cores = conditions.get("waited_share"), conditions.get("foreign_cores")
        waiting, foreign = self._usual["waited_share"], self._usual["foreign_cores"]
        problems = []
        if waited_share is not None and waiting.known and waited_share > waiting.middle + waiting.reach(MARGIN):
            problems.append(f"it waited for a CPU core {waited_share:.0%} of the time; usual is {waiting.middle:.0%}")
        # Other processes disturb nothing as long as they fit onto the spare cores.
        if foreign_cores is not None and foreign.known:
            most = max(self._spare_cores + MARGIN, foreign.middle + foreign.reach(MARGIN))
            usually = f"usually {foreign.middle:.1f}, {self._spare_cores:.0f} to spare"
            problems += [f"others used {foreign_cores:.1f} cores ({usually})"] if foreign_cores > most else []
        for name in _JUDGED:
            if name in conditions:
                self._usual[name].add(conditions[name])
        return tuple(problems)


class Watch:
    """Marks disturbed rounds. `marked` counts them, retries included."""

    def __init__(self, bounds: Bounds, notify: Callable[[str], None]) -> None:
        self._bounds, self._notify = bounds, notify
        self._round: list[Row] = []
        self._problems: list[str] = []
        self._disturbed_in_a_row = 0
        self.marked = 0

    @property
    def lasts(self) -> bool:
        """Whether the disturbance lasts, so that a retry would meet it again."""
        return self._disturbed_in_a_row >= PATIENCE

    def observe(self, rows: Sequence[Row], *, ends_round: bool) -> tuple[str, ...]:
        """Take a job's rows into their round; the round's problems once it ends.

        Called alone for rounds that are not to be marked: warm-up, and those that the file has already.
        """
        self._round.append(max(rows, key=decoding_s))  # rows of a batch share conditions; the longest has its time
        if not ends_round:
            return ()
        whole, self._round = over_round(self._round), []
        return self._bounds.problems(whole)

    def mark(self, rows: tuple[Row, ...], *, ends_round: bool) -> tuple[Row, ...]:
        """The job's rows, `invalid` naming GPU alarms, and in the last rows of a round the round's problems."""
        problems = [*_alarms(rows[0].conditions)]
        problems += [f"its round: {problem}" for problem in self.observe(rows, ends_round=ends_round)]
        self._problems += problems
        if ends_round:
            of_round, self._problems = self._problems, []
            self._disturbed_in_a_row = self._disturbed_in_a_row + 1 if of_round else 0
            self.marked += bool(of_round)
            if self._disturbed_in_a_row == PATIENCE:
                self._notify(
                    f"{PATIENCE} rounds in a row were disturbed ({of_round[0]}). Figures leave them out, and no round "
                    "is repeated until one is undisturbed. Stop the other work: --resume measures them again. Or use "
                    "--no-watch to measure regardless."
                )
        return tuple(replace(row, invalid="; ".join(problems)) for row in rows) if problems else rows


def over_round(rows: Sequence[Row]) -> dict[str, float]:
    """The conditions of a whole round: the mean over its generations, weighted by their seconds.

    3 s with a waited share of 10% and 1 s with 50% give 20%. A failed generation has no time.
    """
    conditions = {}
    for name in _JUDGED:
        readings = [(row.conditions[name], decoding_s(row)) for row in rows if name in row.conditions]
        if (whole_s := sum(seconds for _, seconds in readings)) > 0:
            conditions[name] = sum(reading * seconds for reading, seconds in readings) / whole_s
    return conditions


def decoding_s(row: Row) -> float:
    """Seconds of prefill and steps; 0 for a failed generation."""
    return (row.ttft_s or 0.0) + row.decode_s


def _alarms(conditions: Mapping[str, float]) -> tuple[str, ...]:
    """GPU states that invalidate times whatever is usual."""
    reasons, others = int(conditions.get("throttle_reasons", 0)), int(conditions.get("foreign_processes", 0))
    alarms = [f"the GPU slowed down: {why}" for bit, why in BRAKES.items() if reasons & bit]
    if others:
        alarms.append(f"{others} other process{'es' if others > 1 else ''} computed on the GPU")
    temperature_c, slowdown_c = conditions.get("temperature_c"), conditions.get("slowdown_c")
    if temperature_c is not None and slowdown_c is not None and temperature_c >= slowdown_c:
        alarms.append(f"the GPU was at {temperature_c:.0f} °C, where it slows down")
    return tuple(alarms)
