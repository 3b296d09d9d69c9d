"""What is read around a generation, from instruments whose answers were chosen; the clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes_machine import HEAD, FakeNvml, healthy, lay, package, powercap, stat

from benchctl.measuring.clock import Clock, Timer
from benchctl.measuring.machine import meter as meters
from benchctl.measuring.machine.host import Host, between
from benchctl.measuring.machine.meter import (
    Instrument,
    Meter,
    make_meter,
    memory_bandwidth_mb_s,
    watch_state,
)

PASSES_S = (0.0, 0.5, 1.0, 1.02, 2.0, 2.01, 3.0, 4.0, 5.0, 6.0)  # the fastest of five takes 0.01 s


def logged(name: str, log: list[str], **answer: float) -> Instrument:
    """An instrument that writes down when it is asked."""

    def start() -> Callable[[], Mapping[str, float]]:
        def stop() -> Mapping[str, float]:
            log.append(f"{name} stops")
            return answer

        log.append(f"{name} starts")
        return stop

    return start


def clock_of(*moments_s: float) -> Callable[[], float]:
    """A clock that shows these moments one after another."""
    left: Iterator[float] = iter(moments_s)
    return lambda: next(left)


def test_the_last_instrument_is_nearest_to_the_generation_and_energy_has_a_place_of_its_own() -> None:
    log: list[str] = []
    meter = Meter("cpu", [logged("outer", log, far=1.0), logged("inner", log, near=2.0, energy_j=3.0)])
    meter.start()
    log.append("decode")
    found = meter.stop()
    assert log == ["outer starts", "inner starts", "decode", "inner stops", "outer stops"]
    assert (found.conditions, found.energy_j) == ({"far": 1.0, "near": 2.0}, 3.0)
    assert found.peak_memory_bytes and found.reserved_memory_bytes is None


def test_the_cpus_energy_is_told_only_where_the_cpu_decodes(tmp_path: Path) -> None:
    def shown(with_energy: bool) -> Mapping[str, float]:
        lay(tmp_path, {"proc/stat": stat(10.0)} | powercap("intel-rapl:0", package(7.0)))
        stop = watch_state(Host(clock_of(0.0, 2.0), tmp_path, (0,), with_energy).moment, between)()
        lay(tmp_path, {"proc/stat": stat(1e6)} | powercap("intel-rapl:0", package(9.0)))
        return stop()

    assert shown(True).keys() == {"foreign_cores", "energy_j"}
    assert shown(True)["energy_j"] == pytest.approx(2.0)
    assert shown(False).keys() == {"foreign_cores"}


@pytest.mark.parametrize("watch", [False, True])
def test_a_meter_reads_memory_and_with_a_watch_the_conditions_of_this_machine(watch: bool) -> None:
    meter = make_meter("cpu", watch=watch)
    meter.start()
    reading = meter.stop()
    assert reading.peak_memory_bytes
    assert ("foreign_cores" in reading.conditions) == (watch and sys.platform == "linux")


@pytest.mark.parametrize("watch", [False, True])
def test_a_gpus_meter_reads_memory_and_with_a_watch_the_gpu(watch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[str] = []
    answers, bare = healthy(), HEAD.removeprefix("GPU-")
    monkeypatch.setattr(meters, "Clock", lambda device="cpu": clock_of(*range(99)))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(answers))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=bare))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 11)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 13)
    meter = make_meter("cuda", watch=watch)
    meter.start()
    answers["nvmlDeviceGetTotalEnergyConsumption"] = 5_250_000
    reading = meter.stop()
    assert (resets, reading.peak_memory_bytes, reading.reserved_memory_bytes) == (["cuda"], 11, 13)
    assert reading.energy_j == (250.0 if watch else None)
    shown = {"sm_clock_mhz": 1980}
    assert reading.conditions.items() >= shown.items() if watch else not reading.conditions


def test_bandwidth_is_the_bytes_of_the_fastest_pass_and_they_exceed_the_caches(tmp_path: Path) -> None:
    """Caches of 24 MiB at most: a pass reads 96 MiB; the fastest of five takes 0.01 s."""
    lay(tmp_path, {f"sys/devices/system/cpu/cpu0/cache/index{i}/size": size for i, size in enumerate(["1K", "24576K"])})
    found = memory_bandwidth_mb_s(clock_of(*PASSES_S), root=tmp_path)
    assert found == pytest.approx(96 * 2**20 / 0.01 / 1e6)
    assert memory_bandwidth_mb_s(clock_of(*PASSES_S), root=tmp_path / "none") == pytest.approx(64 * 2**20 / 0.01 / 1e6)


def test_a_gpus_bandwidth_is_of_several_sums_and_its_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that stands in for the GPU: eight sums of 256 MiB in the fastest go of 0.01 s."""
    given_back: list[bool] = []
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device, **kind: ones(1, **kind))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    assert memory_bandwidth_mb_s(clock_of(*PASSES_S), "cuda") == pytest.approx(8 * 2**28 / 0.01 / 1e6)
    assert given_back == [True]


@pytest.mark.parametrize(("device", "waits"), [("cuda", ["cuda"] * 2), ("cpu", [])])
def test_each_reading_waits_for_queued_work(device: str, waits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = Clock(device)
    assert waited == []
    clock()
    clock()
    assert waited == waits


def test_a_timer_returns_at_its_moment_and_at_once_after_it() -> None:
    timer = Timer()
    moment_s = timer.now_s() + 0.01
    timer.wait_until(moment_s)
    reached_s = timer.now_s()
    assert reached_s >= moment_s
    timer.wait_until(moment_s - 60)
    assert timer.now_s() - reached_s < 30  # a busy machine may take long, but not the minute that has passed
