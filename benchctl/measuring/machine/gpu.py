"""What an NVIDIA GPU tells of itself: clocks, power, temperature, throttling, energy, who else is on it.

The only door to NVML (nvidia-ml-py, imported as pynvml), which is optional: without it, and for whatever this GPU or
driver does not tell, facts are missing rather than guessed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Why a GPU lowers its clocks (nvml.h, nvmlClocksEventReasons). The others say that it is idle, that somebody set its
# clocks, or that it is at its power limit: a usual state of a busy card, and as much a method's doing as anybody's.
BRAKES = {
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
POWER_CAP = 0x04
_MILLI = 1e-3


@dataclass(frozen=True)
class GpuMoment:
    """What the GPU shows at one moment; None is what it does not tell.

    energy_j           since the driver was loaded
    reasons            bits of nvmlClocksEventReasons
    slowdown_c         the temperature at which it slows down
    foreign_processes  processes of others that compute on it
    """

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    slowdown_c: float | None
    energy_j: float | None
    reasons: int | None
    foreign_processes: int | None


class Gpu:
    """One GPU, by its handle in an NVML library that is initialised."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def moment(self) -> GpuMoment:
        """What it shows now."""
        nvml = self._library
        return GpuMoment(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage"), _MILLI),
            power_limit_w=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), _MILLI),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            slowdown_c=self._ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            energy_j=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), _MILLI),
            reasons=self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
            foreign_processes=self._foreign_processes(),
        )

    def _foreign_processes(self) -> int | None:
        """Whoever asks computes on the GPU too, so where its own number is not among those listed (in a container they
        may be the host's), one of them is still its own."""
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if listed is None:
            return None
        numbers = {process.pid for process in listed}
        return max(len(numbers) - 1, 0) if os.getpid() not in numbers else len(numbers - {os.getpid()})

    def _ask(self, question: str, *details: Any) -> Any:
        """The library's answer; None where this GPU, its driver or this version of the library has none."""
        ask: Callable[..., Any] | None = getattr(self._library, question, None)
        if ask is None:
            return None
        try:
            return ask(self._handle, *details)
        except self._library.NVMLError:
            return None


def open_gpu(device: str) -> Gpu | None:
    """The GPU that torch calls `device` ("cuda", "cuda:1"); None for a CPU, and where NVML does not know it.

    It is found by its UUID: NVML counts all GPUs of the machine, torch those of CUDA_VISIBLE_DEVICES in an order of its
    own, and the facts of a neighbour would be worse than none.
    """
    if not device.startswith("cuda"):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{_uuid(device)}"))
    except pynvml.NVMLError:
        return None


def conditions(start: GpuMoment, end: GpuMoment) -> dict[str, float]:
    """What a GPU showed around a generation, by name and unit; what it does not tell is missing.

    Clocks, power and temperature are those at its end, when it has just worked; `throttle_reasons` are the bits of
    either moment; `energy_j` was spent in between.
    """
    found: dict[str, float | None] = {
        "sm_clock_mhz": end.sm_clock_mhz,
        "memory_clock_mhz": end.memory_clock_mhz,
        "power_w": end.power_w,
        "temperature_c": end.temperature_c,
        "slowdown_c": end.slowdown_c,
    }
    if start.reasons is not None and end.reasons is not None:
        found["throttle_reasons"] = start.reasons | end.reasons
    if start.foreign_processes is not None and end.foreign_processes is not None:
        found["foreign_processes"] = max(start.foreign_processes, end.foreign_processes)
    if start.energy_j is not None and end.energy_j is not None:
        found["energy_j"] = end.energy_j - start.energy_j
    return {name: float(value) for name, value in found.items() if value is not None}


def _uuid(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value * unit
