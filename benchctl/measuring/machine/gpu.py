"""The state of an NVIDIA GPU: clocks, power, temperature, throttling, energy, other processes.

The only door to NVML (nvidia-ml-py, imported as pynvml), which is optional. Without it, and for what this GPU or driver
does not report, facts are missing, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Why a GPU lowers its clocks (nvml.h, nvmlClocksEventReasons). The other reasons are harmless: it is idle, its clocks
# are set by a user, or it is at its power limit, which is usual for a busy card.
BRAKES = {
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
POWER_CAP = 0x04


@dataclass(frozen=True)
class GpuMoment:
    """The GPU at one moment; None means unknown.

    energy_j           since the driver was loaded
    reasons            bits of nvmlClocksEventReasons
    slowdown_c         the temperature at which it slows down
    foreign_processes  other processes that compute on it
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
        """Its state now."""
        nvml = self._library
        return GpuMoment(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=self._ask_milli("nvmlDeviceGetPowerUsage"),
            power_limit_w=self._ask_milli("nvmlDeviceGetEnforcedPowerLimit"),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            slowdown_c=self._ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            energy_j=self._ask_milli("nvmlDeviceGetTotalEnergyConsumption"),
            reasons=self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
            foreign_processes=self._foreign_processes(),
        )

    def _foreign_processes(self) -> int | None:
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses")
        # One is this process, even if its id is not listed: in a container the ids may be the host's.
        return None if listed is None else max(len({process.pid for process in listed}) - 1, 0)

    def _ask_milli(self, question: str) -> float | None:
        """The answer, given in thousandths of a unit, in that unit."""
        answer = self._ask(question)
        return None if answer is None else answer * 1e-3

    def _ask(self, question: str, *details: Any) -> Any:
        """The library's answer; None if this GPU, driver or library version has none."""
        ask: Callable[..., Any] | None = getattr(self._library, question, None)
        if ask is None:
            return None
        try:
            return ask(self._handle, *details)
        except self._library.NVMLError:
            return None


def open_gpu(device: str) -> Gpu | None:
    """The GPU that torch calls `device` ("cuda", "cuda:1"); None for a CPU, or if NVML does not know it.

    It is identified by its UUID: NVML counts all GPUs of the machine, torch only those of CUDA_VISIBLE_DEVICES in its
    own order, so an index could name another GPU.
    """
    if not device.startswith("cuda"):
        return None
    import torch

    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except pynvml.NVMLError:
        return None


def conditions(start: GpuMoment, end: GpuMoment) -> dict[str, float]:
    """The conditions of a generation, by name and unit; unknown ones are missing.

    Clocks, power and temperature are those at the end, just after the work. `throttle_reasons` are the bits of either
    moment. `energy_j` was used in between.
    """
    names = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "slowdown_c")
    values: dict[str, float | None] = {name: getattr(end, name) for name in names}
    if start.reasons is not None and end.reasons is not None:
        values["throttle_reasons"] = start.reasons | end.reasons
    if start.foreign_processes is not None and end.foreign_processes is not None:
        values["foreign_processes"] = max(start.foreign_processes, end.foreign_processes)
    if start.energy_j is not None and end.energy_j is not None:
        values["energy_j"] = end.energy_j - start.energy_j
    return {name: float(value) for name, value in values.items() if value is not None}
