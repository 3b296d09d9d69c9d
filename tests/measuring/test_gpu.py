"""What NVML tells of a GPU, from a library whose answers were chosen."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fakes_machine import HEAD, FakeNvml, NVMLError, healthy, processes

from benchctl.measuring.machine.gpu import BRAKES, POWER_CAP, Gpu, conditions, open_gpu


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
