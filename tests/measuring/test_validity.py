"""What a round met is judged over the round, the alarms of the GPU at once, and no arm is favoured by it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from compared import to_frame
from fakes_sessions import Met, measure
from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, batch, failed

from benchctl.analysis.frame.build import pair
from benchctl.measuring.plan import Plan, Task
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.validity import ENOUGH, PATIENCE, Bounds, Usual, Watch, over_round
from benchctl.records.schema import Row
from benchctl.records.writer import RunFile, read

QUIET = {"sentinel_s": 1e-3, "waited_share": 0.0, "foreign_cores": 0.1, "sm_clock_mhz": 1980.0}
LOUD = {**QUIET, "waited_share": 0.5}
BUSY = {"waited_share": 0.4, "foreign_cores": 1.5}
THROTTLED = {**QUIET, "throttle_reasons": float(0x40)}


def settled(spare_cores: float = 1.0, **usual: float) -> Bounds:
    """Bounds that have seen enough quiet rounds."""
    bounds = Bounds(spare_cores)
    for _ in range(ENOUGH):
        assert bounds.problems({**QUIET, **usual}) == ()
    return bounds


def test_the_reach_is_five_robust_deviations_and_at_least_what_is_given() -> None:
    usual = Usual()
    for reading in (1.0, 1.0, 1.1, 1.1, 1.1, 1.2, 1.2, 9.0):
        usual.add(reading)
    assert usual.middle == pytest.approx(1.1)
    assert usual.reach(0.0) == pytest.approx(5 * 1.4826 * 0.1)
    assert usual.reach(2.0) == 2.0


def test_of_many_readings_the_oldest_are_forgotten() -> None:
    usual = Usual()
    for reading in [1.0] * 500 + [2.0] * 31:
        usual.add(reading)
    assert usual.middle == 2.0


def test_a_session_that_knows_little_doubts_nothing() -> None:
    bounds = Bounds(1.0)
    for _ in range(ENOUGH - 1):
        bounds.problems(QUIET)
    assert bounds.problems(LOUD) == ()


def test_another_level_that_lasts_becomes_the_usual_one() -> None:
    bounds = settled()
    found = [bool(bounds.problems({**QUIET, "foreign_cores": 1.9})) for _ in range(60)]
    assert found[0] and not any(found[40:])


@pytest.mark.parametrize(
    ("usual", "spare_cores", "reading", "facts"),
    [
        ({}, 1.0, {"waited_share": 0.049}, ()),
        ({}, 1.0, {"waited_share": 0.12}, ("12%", "0%")),
        ({}, 1.0, {"foreign_cores": 1.04}, ()),
        ({}, 1.0, {"foreign_cores": 1.4}, ("1.4 cores", "0.1, 1 to spare")),
        ({}, 7.0, {"foreign_cores": 7.0}, ()),
        ({}, 0.0, {"foreign_cores": 0.5}, ("0.5 cores",)),
        # Constant load is usual: such a session would have no figures at all.
        (BUSY, 1.0, {**BUSY}, ()),
        (BUSY, 1.0, {**BUSY, "waited_share": 0.6}, ("60%", "40%")),
        (BUSY, 1.0, {"waited_share": 0.0, "foreign_cores": 0.0}, ()),  # better than usual
        # Readings of single moments describe a short generation better than a long one.
        ({}, 1.0, {"sentinel_s": 9.0, "sm_clock_mhz": 300.0}, ()),
    ],
)
def test_conditions_beyond_the_usual_ones_of_the_session_are_problems(
    usual: dict[str, float], spare_cores: float, reading: dict[str, float], facts: tuple[str, ...]
) -> None:
    problems = settled(spare_cores, **usual).problems({**QUIET, **reading})
    assert len(problems) == bool(facts) and all(fact in problems[0] for fact in facts)
    assert settled(spare_cores, **usual).problems({}) == ()


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"throttle_reasons": 0x08}, "the GPU slowed down: hardware slowdown"),
        ({"throttle_reasons": 0x20 | 0x04}, "the GPU slowed down: too hot (software)"),
        ({"throttle_reasons": 0x80}, "the GPU slowed down: power brake"),
        ({"foreign_processes": 1}, "1 other process computed on the GPU"),
        ({"foreign_processes": 3}, "3 other processes computed on the GPU"),
        ({"temperature_c": 90, "slowdown_c": 90}, "the GPU was at 90 °C, where it slows down"),
        # Idling, set clocks and the power limit are no alarms.
        ({"throttle_reasons": 0x01 | 0x02 | 0x04 | 0x10 | 0x100, "temperature_c": 89, "slowdown_c": 90}, ""),
    ],
)
def test_alarms_of_the_gpu_mark_their_generation_whatever_is_usual(conditions: dict[str, float], words: str) -> None:
    kept = watch()
    for _ in range(2 * ENOUGH):
        (row,) = kept.mark(met(conditions), ends_round=False)
        assert row.invalid == words


def test_noise_of_a_quiet_machine_is_hardly_ever_doubted() -> None:
    """10,000 rounds whose load varies and, now and then, is much more: of the ordinary ones fewer than 1 in 1,000."""
    draw = random.Random(0)
    bounds, doubted, strange = Bounds(0.0), 0, 0
    for _ in range(10_000):
        outlier = draw.random() < 0.05
        reading = draw.uniform(1.5, 3.0) if outlier else draw.gauss(1.0, 0.03)
        found = bool(bounds.problems({"foreign_cores": reading}))
        doubted += found and not outlier
        strange += found and outlier
    assert doubted < 10
    assert strange > 450


def met(conditions: dict[str, float], took_s: float = 1.0) -> tuple[Row, ...]:
    """The row of a generation that met these conditions."""
    return (replace(baseline_row(tokens=1, ttft_s=took_s), conditions=conditions),)


def watch(notices: list[str] | None = None) -> Watch:
    return Watch(Bounds(1.0), (notices if notices is not None else []).append)


def warmed(notices: list[str] | None = None) -> Watch:
    """One that has seen enough quiet rounds."""
    kept = watch(notices)
    for _ in range(ENOUGH):
        assert kept.observe(met(QUIET), ends_round=True) == ()
    return kept


def test_a_round_is_the_mean_of_its_generations_by_their_time() -> None:
    """3 s that waited for 10% and 1 s that waited for 50%: 0.8 s of 4. What failed counts nothing."""
    rows = [*met({"waited_share": 0.1, "foreign_cores": 2.0}, 3.0), *met({"waited_share": 0.5}), failed(baseline_row())]
    assert over_round(rows) == {"waited_share": pytest.approx(0.2), "foreign_cores": 2.0}
    assert over_round([failed(baseline_row())]) == {}


@pytest.mark.parametrize(
    ("first_s", "last", "share"),
    [
        (0.1, (QUIET, 9.9), ""),  # a short generation that waited, in a round that hardly did
        (1.0, (QUIET, 1.0), "25%"),
        (1.0, None, "50%"),  # a failed generation has no conditions, and ends its round all the same
    ],
)
def test_the_last_rows_of_a_round_are_marked(
    first_s: float, last: tuple[dict[str, float], float] | None, share: str
) -> None:
    kept = warmed()
    assert kept.mark(met(LOUD, first_s), ends_round=False)[0].invalid == ""
    (row,) = kept.mark(met(*last) if last else (failed(baseline_row()),), ends_round=True)
    assert row.invalid.startswith("its round: ") == bool(share) and share in row.invalid
    assert kept.mark(met(QUIET), ends_round=True)[0].invalid == ""
    assert kept.marked == bool(share)
    assert kept.observe(met(LOUD), ends_round=True) != () and kept.marked == bool(share)


def test_every_reason_is_told_and_a_round_counts_once() -> None:
    kept = warmed()
    both = {**THROTTLED, "foreign_processes": 1.0}
    for ends_round in (False, True):
        (row,) = kept.mark(met(both), ends_round=ends_round)
        assert "too hot (hardware)" in row.invalid and "1 other process" in row.invalid
    assert kept.marked == 1


def test_all_rows_of_a_batch_are_marked() -> None:
    rows = tuple(replace(row, conditions=THROTTLED) for row in batch(baseline_row("p0"), baseline_row("p1")))
    assert [bool(row.invalid) for row in watch().mark(rows, ends_round=True)] == [True, True]


def test_a_disturbance_that_lasts_is_told_once_until_it_is_over() -> None:
    notices: list[str] = []
    kept = watch(notices)
    for _ in range(PATIENCE + 2):
        kept.mark(met(THROTTLED), ends_round=True)
    assert len(notices) == 1 and "too hot (hardware)" in notices[0]
    kept.mark(met(QUIET), ends_round=True)
    for _ in range(PATIENCE):
        kept.mark(met(THROTTLED), ends_round=True)
    assert len(notices) == 2


class Neighbour:
    """A machine whose one core somebody else wants in bursts: while one lasts, the core is shared half and half. Gaps
    and bursts have exponential lengths of the given means, in seconds."""

    def __init__(self, gap_s: float, burst_s: float, seed: int) -> None:
        self._means_s, self._draw = (gap_s, burst_s), random.Random(seed)
        self._busy, self._left_s = False, self._draw.expovariate(1 / gap_s)

    def work(self, work_s: float) -> tuple[float, float]:
        """Seconds that so much work takes, and how many of them it waited."""
        took_s = waited_s = 0.0
        while work_s > 1e-12:
            speed = 0.5 if self._busy else 1.0
            lapse_s = min(work_s / speed, self._left_s)
            work_s -= lapse_s * speed
            took_s += lapse_s
            waited_s += lapse_s * (1 - speed)
            self._left_s -= lapse_s
            if self._left_s <= 1e-12:
                self._busy = not self._busy
                self._left_s = self._draw.expovariate(1 / self._means_s[self._busy])
        return took_s, waited_s


def disturbed_run(works_s: dict[str, float], machine: Neighbour, prompts: int, folder: Path) -> list[Row]:
    """Two repeats of each prompt in ABBA order, by a real session under a real watch."""

    def meet(task: Task) -> Met:
        took_s, waited_s = machine.work(works_s[task.label])
        machine.work(0.02)
        foreign_s = round(waited_s, 2)  # in ticks
        return Met({"waited_share": waited_s / took_s, "foreign_cores": foreign_s / took_s}, took_s)

    plan = Plan(tuple(Prompt(f"p{number}", "koala", ("Hi",)) for number in range(prompts)), tuple(works_s), repeats=2)
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    measure(path, plan, meet, Watch(Bounds(0.0), lambda notice: None))
    return list(read(path).rows)


def ratio_and_left_out(runs: list[list[Row]]) -> tuple[float, float]:
    """The baseline's time over the method's in all pairs of these runs, and the share of pairs that were left out."""
    files = [RunFile(Path(f"{number}.jsonl"), RUN, tuple(rows)) for number, rows in enumerate(runs)]
    pairs = pair(to_frame(files), DRAFTED, BASELINE)
    ratio = pairs["whole_s_baseline"].sum() / pairs["whole_s"].sum()
    return float(ratio), 1 - 2 * len(pairs) / sum(map(len, runs))


@pytest.mark.slow
@pytest.mark.parametrize(("baseline_s", "method_s", "gap_s", "burst_s"), [(0.3, 0.1, 2.0, 0.3), (1.0, 0.5, 3.0, 0.3)])
def test_a_watched_run_favours_neither_the_short_nor_the_long_arm(
    baseline_s: float, method_s: float, gap_s: float, burst_s: float, tmp_path: Path
) -> None:
    """Load in bursts slows either arm alike: the ratio of the work is the truth. What is out of bounds is left out, and
    measured again."""
    works_s = {BASELINE: baseline_s, DRAFTED: method_s}
    runs = [disturbed_run(works_s, Neighbour(gap_s, burst_s, seed), 150, tmp_path) for seed in range(8)]
    found, left_out = ratio_and_left_out(runs)
    assert found == pytest.approx(baseline_s / method_s, rel=0.01)
    assert left_out > 0.1
    again = sum(row.repeat >= 2 for rows in runs for row in rows) / sum(map(len, runs))
    assert again > 0.1
