"""What is advised follows from how the machine is set up, read from files that were laid out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes_machine import FakeNvml, healthy, lay

from benchctl.measuring.machine.advice import LoadSample, advise
from benchctl.measuring.machine.gpu import Gpu
from benchctl.measuring.machine.host import Setup, read_setup

STEADY = Setup(cores=8, physical_cores=8, quota_cores=None, governors=("performance",), on_battery=False)
QUIET = LoadSample(foreign_cores=0.1, waited_share=0.0, sentinel_spread=0.02)
CARD = Gpu(FakeNvml(healthy()), "handle").moment()


def cpu(core: int, siblings: str, governor: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{core}"
    return {f"{folder}/topology/thread_siblings_list": siblings, f"{folder}/cpufreq/scaling_governor": governor}


def test_the_setup_is_read_of_the_cores_that_may_be_used(tmp_path: Path) -> None:
    lay(tmp_path, cpu(0, "0-1", "powersave") | cpu(1, "0-1", "performance") | cpu(2, "2-3", "schedutil"))
    lay(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000"})
    lay(tmp_path, {"sys/class/power_supply/AC/type": "Mains", "sys/class/power_supply/AC/online": "0"})
    lay(tmp_path, {"sys/class/power_supply/BAT0/type": "Battery"})
    assert read_setup((0, 1), tmp_path) == Setup(2, 1, 1.5, ("performance", "powersave"), on_battery=True)
    assert read_setup((1, 2), tmp_path).physical_cores == 2


def test_a_machine_of_which_nothing_is_known_gets_no_advice(tmp_path: Path) -> None:
    setup = read_setup((0, 1), tmp_path)
    assert setup == Setup(2, None, None, (), on_battery=False)
    assert advise(setup, LoadSample(None, None, 0.0), threads=1) == ()
    lay(tmp_path, {"sys/class/power_supply/AC/type": "Mains", "sys/class/power_supply/AC/online": "1"})
    assert not read_setup((0,), tmp_path).on_battery


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "50000 100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
    ],
)
def test_the_quota_of_a_container_is_read_of_either_version(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    lay(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert read_setup((0,), tmp_path).quota_cores == quota


def test_a_steady_and_quiet_machine_needs_no_advice() -> None:
    assert advise(STEADY, QUIET, threads=4, gpu=CARD) == ()


@pytest.mark.parametrize(
    ("setup", "load", "threads", "fact"),
    [
        (STEADY, QUIET, 9, "--threads 8"),
        (replace(STEADY, physical_cores=4), QUIET, 5, "--threads 4"),
        (replace(STEADY, quota_cores=1.5), QUIET, 2, "1.5 cores"),
        (STEADY, QUIET, 8, "--threads 7"),
        (STEADY, replace(QUIET, foreign_cores=2.0), 1, "2.0 of 8 cores"),
        (STEADY, replace(QUIET, waited_share=0.3, foreign_cores=2.0), 1, "30%"),
        (replace(STEADY, governors=("performance", "powersave")), QUIET, 1, "(governor powersave)"),
        (replace(STEADY, on_battery=True), QUIET, 1, "battery"),
        (STEADY, replace(QUIET, sentinel_spread=0.4), 1, "40%"),
    ],
)
def test_each_problem_is_named_once_with_what_to_do(setup: Setup, load: LoadSample, threads: int, fact: str) -> None:
    (advice,) = advise(setup, load, threads)
    assert fact in advice


@pytest.mark.parametrize(
    ("answers", "fact"),
    [
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x40}, "too hot (hardware)"),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": 0x04}, "700 W"),
        (healthy(others=[41, 42]), "2 other processes"),
    ],
)
def test_each_problem_of_a_gpu_is_named(answers: dict[str, object], fact: str) -> None:
    (advice,) = advise(STEADY, QUIET, 1, Gpu(FakeNvml({**healthy(), **answers}), "handle").moment())
    assert fact in advice
