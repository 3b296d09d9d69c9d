"""The facts and the state of a machine: its CPU, its GPU, and the advice that follows from them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes_machine import HEAD, TICKS, FakeNvml, NVMLError, healthy, lay, package, powercap, processes, stat

from benchctl.measuring.machine import host as machine
from benchctl.measuring.machine.advice import LoadSample, advise
from benchctl.measuring.machine.gpu import BRAKES, POWER_CAP, Gpu, conditions, open_gpu
from benchctl.measuring.machine.host import CpuMoment, Host, Setup, between, read_setup, usable_cores


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_facts_are_of_this_machine_and_hold_a_hash_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.machine_facts("cpu")["hostname_hash"]
    monkeypatch.setattr(platform, "node", lambda: "secret-name")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = machine.machine_facts("cuda")
    assert facts["cpu"] and facts["os"]
    assert 1 <= int(str(facts["cores"])) <= (os.cpu_count() or 1)
    assert int(str(facts["memory_bytes"])) > 2**28
    assert isinstance(facts["load_average"], list) and len(facts["load_average"]) == 3
    assert (facts["gpu"], facts["gpu_driver"]) == ("", "")
    assert facts["hostname_hash"] != here and "secret-name" not in str(facts)


def test_the_commit_is_the_head_and_dirty_if_a_known_file_changed(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder inside somebody else's clone has none: that commit says nothing about the benchctl installed there."""
    head = git(clone, "rev-parse", "HEAD")
    assert machine.commit(clone) == head
    (clone / "notes.txt").write_text("new")
    assert machine.commit(clone) == head
    dirty = set()
    for number in (2, 3):
        (clone / "code.py").write_text(f"a = {number}\n")
        dirty.add(machine.commit(clone))
    assert len(dirty) == 2 and all(re.fullmatch(rf"{head}\+dirty-[0-9a-f]{{8}}", each) for each in dirty)
    (clone / "site-packages").mkdir()
    assert machine.commit(clone / "site-packages") == ""
    git(clone / "site-packages", "init", "--quiet")
    assert machine.commit(clone / "site-packages") == ""  # before the first commit
    monkeypatch.setenv("PATH", "")
    assert machine.commit(clone) == ""


PEAKS = """
import torch
from benchctl.measuring.machine.meter import peak_memory_bytes
before = peak_memory_bytes("cpu")
block = torch.ones(2**26)
after = peak_memory_bytes("cpu")
del block
print(before, after, peak_memory_bytes("cpu"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process begins at the peak of the one that started it")
def test_the_processes_peak_memory_is_in_bytes_its_own_and_never_falls() -> None:
    """This process has a GiB more, which a process it starts does not count. Another 256 MiB count whole, also after
    they are given back."""
    ours = torch.ones(2**28)
    ended = subprocess.run((sys.executable, "-c", PEAKS), check=True, capture_output=True, text=True)
    before, after, later = map(int, ended.stdout.split())
    assert 2**26 <= before < ours.nbytes
    assert 200 * 2**20 < after - before < 300 * 2**20
    assert later >= after - 2**20  # the system counts pages in batches


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


def test_what_a_gpu_shows_is_read_in_the_units_of_its_names() -> None:
    moment = Gpu(FakeNvml(healthy()), "handle").moment()
    assert (moment.sm_clock_mhz, moment.memory_clock_mhz, moment.temperature_c, moment.slowdown_c) == (
        1980,
        2619,
        60,
        90,
    )
    assert (moment.power_w, moment.power_limit_w, moment.energy_j, moment.reasons) == (300.0, 700.0, 5000.0, 0)


@pytest.mark.parametrize("question", sorted(healthy()))
def test_a_fact_that_this_gpu_or_library_does_not_have_is_missing_and_the_others_stay(question: str) -> None:
    whole = Gpu(FakeNvml(healthy()), "handle").moment()
    answers = healthy()
    answers[question] = NVMLError("not supported")
    refused = Gpu(FakeNvml(answers), "handle").moment()
    del answers[question]
    assert Gpu(FakeNvml(answers), "handle").moment() == refused != whole
    missing = [name for name in vars(whole) if getattr(refused, name) is None]
    assert replace(whole, **dict.fromkeys(missing)) == refused and 1 <= len(missing) <= 2


@pytest.mark.parametrize(
    ("listed", "others"),
    [
        (processes(os.getpid()), 0),
        (processes(os.getpid(), 41, 42), 2),
        (processes(41), 0),  # in a container that sees the host's numbers: this one is ourselves
        (processes(41, 42), 1),
        ([], 0),
        (processes(os.getpid(), os.getpid(), 41), 1),
    ],
)
def test_the_other_processes_are_those_that_are_not_ourselves(listed: list[SimpleNamespace], others: int) -> None:
    answers = {**healthy(), "nvmlDeviceGetComputeRunningProcesses": listed}
    assert Gpu(FakeNvml(answers), "handle").moment().foreign_processes == others


def test_conditions_have_the_energy_in_between_and_the_worst_of_both_moments() -> None:
    start = Gpu(FakeNvml(healthy()), "handle").moment()
    start = replace(start, reasons=0x40, foreign_processes=2, sm_clock_mhz=1000)
    end = replace(start, energy_j=5012.5, reasons=0x04, foreign_processes=0, sm_clock_mhz=1980, temperature_c=61)
    moment = conditions(start, end)
    assert moment["energy_j"] == pytest.approx(12.5)
    assert (moment["throttle_reasons"], moment["foreign_processes"]) == (0x44, 2)
    assert (moment["sm_clock_mhz"], moment["temperature_c"], moment["power_w"]) == (1980, 61, 300)
    blind = replace(end, energy_j=None, reasons=None, power_w=None)
    assert conditions(start, blind).keys() == moment.keys() - {"energy_j", "throttle_reasons", "power_w"}


@pytest.fixture
def uuid(monkeypatch: pytest.MonkeyPatch) -> str:
    bare = HEAD.removeprefix("GPU-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=bare))
    return bare


@pytest.mark.usefixtures("uuid")
def test_the_gpu_is_identified_by_torchs_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its number: under CUDA_VISIBLE_DEVICES=3 torch's first GPU is NVML's fourth."""
    library = FakeNvml(healthy())
    monkeypatch.setitem(sys.modules, "pynvml", library)
    moment = open_gpu("cuda")
    assert moment is not None and moment.moment().power_w == 300.0
    assert library.asked == ["init", HEAD]


@pytest.mark.usefixtures("uuid")
def test_without_the_library_the_driver_or_that_gpu_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu("cuda") is None
    library = FakeNvml(healthy())
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert open_gpu("cpu") is None and library.asked == []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="other"))
    assert open_gpu("cuda") is None

    def no_driver() -> None:
        raise NVMLError("no driver")

    monkeypatch.setattr(library, "nvmlInit", no_driver)
    assert open_gpu("cuda") is None


def test_the_real_library_has_every_name_and_number_that_is_used() -> None:
    real = pytest.importorskip("pynvml")
    assert set(healthy()) <= set(dir(real)) and issubclass(real.NVMLError, Exception)
    for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"):
        assert getattr(real, name) == getattr(FakeNvml, name)
    reasons = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert [getattr(real, f"nvmlClocksThrottleReason{name}") for name in reasons] == list(BRAKES)
    assert real.nvmlClocksThrottleReasonSwPowerCap == POWER_CAP


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
def test_a_containers_quota_is_read_of_any_version(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
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
