"""Conditions out of bounds are found, measured again and marked; those that are usual in the session are not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import pytest
from fixtures_records import baseline_row, batch, failed

from benchctl.measuring.validity import ENOUGH, PATIENCE, TRIES, Bounds, Usual, Watch
from benchctl.records import Row

QUIET = {"sentinel_s": 1e-3, "waited_share": 0.0, "foreign_cores": 0.1, "sm_clock_mhz": 1980.0}
THROTTLED = {**QUIET, "throttle_reasons": float(0x40)}


def settled(spare_cores: float = 1.0, label: str = "a", **usual: float) -> Bounds:
    """Bounds that have seen enough quiet generations."""
    bounds = Bounds(spare_cores)
    for _ in range(ENOUGH):
        assert bounds.doubts(label, {**QUIET, **usual}) == ()
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
    for reading in [1.0] * 500 + [2.0] * 260:
        usual.add(reading)
    assert usual.middle == 2.0


def test_a_session_that_knows_little_doubts_nothing_but_alarms() -> None:
    bounds = Bounds(1.0)
    for _ in range(ENOUGH - 1):
        bounds.doubts("a", QUIET)
    assert bounds.doubts("a", {**QUIET, "sentinel_s": 1.0}) == ()
    assert Bounds(1.0).doubts("a", THROTTLED) == ("the GPU slowed down: too hot (hardware)",)


@pytest.mark.parametrize(
    ("name", "inside", "outside", "words"),
    [
        ("sentinel_s", 1.049e-3, 1.051e-3, "the sentinel took 1.05 times its usual time"),
        ("waited_share", 0.049, 0.12, "it waited for a core 12% of the time (usually 0%)"),
        ("foreign_cores", 1.04, 1.4, "others used 1.4 cores (usually 0.1, 1 to spare)"),
        ("sm_clock_mhz", 1890.0, 1410.0, "the GPU's clock was at 1410 MHz (usually 1980)"),
    ],
)
def test_what_is_beyond_the_sessions_usual_is_doubted_and_what_is_near_is_not(
    name: str, inside: float, outside: float, words: str
) -> None:
    assert settled().doubts("a", {**QUIET, name: inside}) == ()
    assert settled().doubts("a", {**QUIET, name: outside}) == (words,)


def test_better_than_usual_is_no_doubt() -> None:
    better = {"sentinel_s": 1e-4, "waited_share": 0.0, "foreign_cores": 0.0, "sm_clock_mhz": 2500.0}
    assert settled(waited_share=0.3, foreign_cores=3.0).doubts("a", better) == ()


def test_a_machine_that_is_always_busy_is_usual_to_its_session() -> None:
    """Such a session would have no figures at all; that it was busy is said of it as a whole."""
    busy = {"waited_share": 0.4, "foreign_cores": 1.5}
    bounds = settled(waited_share=0.4, foreign_cores=1.5)
    assert bounds.doubts("a", {**QUIET, **busy}) == ()
    assert bounds.doubts("a", {**QUIET, "waited_share": 0.6, "foreign_cores": 1.5}) != ()


def test_others_that_fit_onto_the_cores_to_spare_disturb_nobody() -> None:
    assert settled(spare_cores=7.0).doubts("a", {**QUIET, "foreign_cores": 7.0}) == ()
    assert settled(spare_cores=0.0).doubts("a", {**QUIET, "foreign_cores": 0.5}) != ()


def test_a_method_that_always_runs_at_a_lower_clock_is_not_doubted_for_it() -> None:
    bounds = settled()
    for _ in range(ENOUGH):
        assert bounds.doubts("hungry", {**QUIET, "sm_clock_mhz": 1500.0}) == ()
    assert bounds.doubts("hungry", {**QUIET, "sm_clock_mhz": 1300.0}) != ()


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"throttle_reasons": 0x08}, "the GPU slowed down: hardware slowdown"),
        ({"throttle_reasons": 0x20 | 0x04}, "the GPU slowed down: too hot (software)"),
        ({"throttle_reasons": 0x80}, "the GPU slowed down: power brake"),
        ({"foreign_processes": 1}, "1 other process computed on the GPU"),
        ({"foreign_processes": 3}, "3 other processes computed on the GPU"),
        ({"temperature_c": 90, "slowdown_c": 90}, "the GPU was at 90 °C, where it slows down"),
    ],
)
def test_alarms_of_the_gpu_are_doubts_whatever_is_usual(conditions: dict[str, float], words: str) -> None:
    bounds = Bounds(1.0)
    for _ in range(2 * ENOUGH):
        assert bounds.doubts("a", conditions) == (words,)


@pytest.mark.parametrize("reasons", [0x00, 0x01, 0x02, 0x04, 0x10, 0x100])
def test_idling_set_clocks_and_the_power_limit_are_no_alarms(reasons: int) -> None:
    assert Bounds(1.0).doubts("a", {"throttle_reasons": reasons, "temperature_c": 89, "slowdown_c": 90}) == ()


def test_without_conditions_there_is_no_doubt() -> None:
    assert settled().doubts("a", {}) == ()


def test_noise_of_a_quiet_machine_is_hardly_ever_doubted() -> None:
    """10,000 sentinels that vary by 3% and, now and then, by much more: of the ordinary ones fewer than 1 in 1,000."""
    draw = random.Random(0)
    bounds, doubted, strange = Bounds(1.0), 0, 0
    for _ in range(10_000):
        outlier = draw.random() < 0.05
        reading = 1e-3 * (draw.uniform(1.5, 3.0) if outlier else draw.gauss(1.0, 0.03))
        found = bool(bounds.doubts("a", {"sentinel_s": reading}))
        doubted += found and not outlier
        strange += found and outlier
    assert doubted < 10
    assert strange > 450


class Measured:
    """A job whose tries meet the conditions given, one after another; each has another time."""

    def __init__(self, *tries: dict[str, float]) -> None:
        self._tries: Iterator[dict[str, float]] = iter(tries)
        self.count = 0

    def __call__(self) -> tuple[Row, ...]:
        self.count += 1
        return (replace(baseline_row(ttft_s=float(self.count)), conditions=next(self._tries)),)


def watch(notices: list[str] | None = None) -> Watch:
    return Watch(Bounds(1.0), (notices if notices is not None else []).append)


def test_a_good_generation_is_measured_once_and_not_marked() -> None:
    measured, kept = Measured(QUIET), watch()
    (row,) = kept.settle(measured)
    assert (measured.count, row.invalid, row.ttft_s) == (1, "", 1.0)
    assert (kept.again, kept.marked) == (0, 0)


def test_a_disturbed_one_is_measured_again_and_the_first_good_try_is_kept() -> None:
    measured, kept = Measured(THROTTLED, QUIET, QUIET), watch()
    (row,) = kept.settle(measured)
    assert (measured.count, row.invalid, row.ttft_s, row.conditions) == (2, "", 2.0, QUIET)
    assert (kept.again, kept.marked) == (1, 0)


def test_what_stays_disturbed_is_kept_with_every_reason() -> None:
    both = {**THROTTLED, "foreign_processes": 1.0}
    measured, kept = Measured(*[both] * 9), watch()
    (row,) = kept.settle(measured)
    assert (measured.count, kept.again, kept.marked) == (TRIES, TRIES - 1, 1)
    assert row.invalid == "the GPU slowed down: too hot (hardware); 1 other process computed on the GPU"
    assert row.ttft_s == TRIES and row.conditions == both


def test_all_rows_of_a_batch_are_marked() -> None:
    rows = tuple(replace(row, conditions=THROTTLED) for row in batch(baseline_row("p0"), baseline_row("p1")))
    assert [bool(row.invalid) for row in watch().settle(lambda: rows)] == [True, True]


def test_a_failed_generation_is_not_tried_again() -> None:
    tries: list[int] = []

    def fail() -> tuple[Row, ...]:
        tries.append(1)
        return (failed(baseline_row()),)

    (row,) = watch().settle(fail)
    assert len(tries) == 1 and row.error and not row.invalid


def test_a_disturbance_that_lasts_is_told_once_and_costs_no_more_tries_until_it_is_over() -> None:
    notices: list[str] = []
    kept = watch(notices)
    counts: list[int] = []

    def settle(*tries: dict[str, float]) -> None:
        measured = Measured(*tries)
        kept.settle(measured)
        counts.append(measured.count)

    for _ in range(PATIENCE + 2):
        settle(*[THROTTLED] * TRIES)
    assert counts == [TRIES] * PATIENCE + [1, 1]
    assert len(notices) == 1 and "out of bounds (the GPU slowed down: too hot (hardware))" in notices[0]
    settle(QUIET)
    settle(*[THROTTLED] * TRIES)
    assert counts[-2:] == [1, TRIES]


def test_warm_up_makes_known_what_is_usual() -> None:
    kept = watch()
    for _ in range(ENOUGH):
        kept.observe([replace(baseline_row(), conditions=QUIET)])
    measured = Measured({**QUIET, "sentinel_s": 2e-3}, QUIET)
    kept.settle(measured)
    assert measured.count == 2


def test_measuring_again_favours_no_method() -> None:
    """Two equal arms on a machine that every fifth generation finds slow: what is kept has a ratio of 1, and hardly any
    of the disturbance. The times themselves are never asked."""
    draw = random.Random(1)
    kept = watch()
    times: dict[str, list[float]] = {"a": [], "b": []}

    def measure(label: str) -> tuple[Row, ...]:
        slow = draw.random() < 0.2
        took_s = draw.gauss(1.0, 0.1) * (2.0 if slow else 1.0)
        conditions = {"sentinel_s": 1e-3 * draw.gauss(1.0, 0.01) * (1.8 if slow else 1.0)}
        return (replace(baseline_row(tokens=1, ttft_s=took_s), label=label, conditions=conditions),)

    def valid(rows: Sequence[Row]) -> list[float]:
        return [row.ttft_s or 0.0 for row in rows if not row.invalid]

    for turn in range(2000):
        label = "ab"[turn % 2]
        times[label] += valid(kept.settle(lambda label=label: measure(label)))  # type: ignore[misc]
    means = {label: sum(found) / len(found) for label, found in times.items()}
    assert means["a"] / means["b"] == pytest.approx(1.0, abs=0.02)
    assert means["a"] == pytest.approx(1.0, abs=0.02)
    assert median(times["b"]) == pytest.approx(1.0, abs=0.02)
    assert kept.marked < 40
