"""What Linux tells of a CPU: read from files whose numbers were chosen, so that every condition is known."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes_machine import TICKS, lay, package, powercap, stat

from benchctl.measuring.machine.host import CpuMoment, Host, between, usable_cores

RANGES_J = {"a": 100.0, "b": 100.0}
START = CpuMoment(0.0, 10.0, 1.0, {7: 0.5}, {"a": 10.0, "b": 95.0}, RANGES_J)


def at(seconds: float) -> Callable[[], float]:
    return lambda: seconds


@pytest.mark.parametrize(
    ("changes", "condition", "expected"),
    [
        ({"busy_s": 15.0, "own_s": 3.0}, "foreign_cores", 1.5),
        ({"busy_s": 11.9, "own_s": 3.0}, "foreign_cores", 0.0),  # ticks are coarse
        ({"waited_s": {7: 0.6, 8: 0.4}}, "waited_share", 0.2),  # thread 8 is new and waited most
        ({"energy_j": {"a": 12.0, "b": 1.0}}, "energy_j", 2.0 + 6.0),  # b wrapped around
    ],
)
def test_conditions_between_two_moments(changes: dict[str, Any], condition: str, expected: float) -> None:
    assert between(START, replace(START, at_s=2.0, **changes))[condition] == pytest.approx(expected)


def test_what_the_system_does_not_tell_is_missing_not_nought() -> None:
    blind = CpuMoment(0.0, None, 1.0, None, {}, {})
    assert between(blind, replace(blind, at_s=1.0)) == {}
    assert between(START, START) == {}  # no time has passed


def test_only_cores_that_we_may_use_count_and_stolen_time_is_busy(tmp_path: Path) -> None:
    """Idle time, waiting for a disk and guests, whose time is in `user` already, do not count."""
    lay(tmp_path, {"proc/stat": stat(100.0, 20.0, 3.0)})
    assert Host(at(5.0), tmp_path, cores=(1, 2)).moment().busy_s == pytest.approx(23.0)
    assert Host(at(5.0), tmp_path, cores=(0, 9)).moment().busy_s is None


def test_each_threads_waiting_is_read_in_seconds(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/self/task/11/schedstat": "9000 2500000000 7", "proc/self/task/12/schedstat": "1 0 1"})
    assert Host(at(5.0), tmp_path, cores=(0,)).moment().waited_s == {11: 2.5, 12: 0.0}


def test_a_system_without_these_files_tells_nothing_but_the_clock_and_our_own_time(tmp_path: Path) -> None:
    moment = Host(at(5.0), tmp_path, cores=(0,)).moment()
    assert (moment.at_s, moment.busy_s, moment.waited_s, moment.energy_j) == (5.0, None, None, {})
    assert moment.own_s > 0


def test_parts_of_a_package_and_other_domains_are_not_counted_beside_it(tmp_path: Path) -> None:
    lay(tmp_path, powercap("intel-rapl:0", package(7.5)) | powercap("intel-rapl:1", package(2.5, "package-1")))
    lay(tmp_path, powercap("intel-rapl:0:0", package(5.0, "core")) | powercap("intel-rapl:2", package(9.0, "psys")))
    moment = Host(at(5.0), tmp_path, cores=(0,)).moment()
    assert moment.energy_j == pytest.approx({"intel-rapl:0": 7.5, "intel-rapl:1": 2.5})
    assert moment.energy_range_j == {"intel-rapl:0": 100.0, "intel-rapl:1": 100.0}


def test_energy_that_may_not_be_read_is_missing(tmp_path: Path) -> None:
    """Linux lets only root read it; reading fails as it does for a folder of that name."""
    lay(tmp_path, powercap("intel-rapl:0", {"name": "package-0", "max_energy_range_uj": "1"}))
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").mkdir()
    assert Host(at(5.0), tmp_path, cores=(0,)).moment().energy_j == {}


def test_the_real_machines_busy_time_covers_our_own() -> None:
    """As far as ticks are exact: what this process computed, some core was busy with."""
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat here")
    host = Host(at(0.0))
    start = host.moment()
    while host.moment().own_s - start.own_s < 20 / TICKS:
        sum(range(10_000))
    end = host.moment()
    assert start.busy_s is not None and end.busy_s is not None
    assert end.busy_s - start.busy_s >= end.own_s - start.own_s - 4 * len(usable_cores()) / TICKS


def test_the_usable_cores_are_those_of_our_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 1}, raising=False)
    assert usable_cores() == (1, 3)
