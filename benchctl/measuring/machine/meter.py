"""What the machine showed while something was decoded: memory, energy, and the conditions that its times depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine import gpu, host
from benchctl.measuring.machine.facts import peak_memory_bytes, reserved_memory_bytes, reset_peak_memory
from benchctl.measuring.machine.sentinel import Sentinel


@dataclass(frozen=True)
class Reading:
    """Memory and energy are None where the machine does not tell; conditions it does not tell are missing."""

    peak_memory_bytes: int | None = None
    reserved_memory_bytes: int | None = None
    energy_j: float | None = None
    conditions: Mapping[str, float] = field(default_factory=dict)


class Instrument(Protocol):
    """Something that is read before and after a generation."""

    def start(self) -> None: ...

    def stop(self) -> Mapping[str, float]:
        """What it showed since `start`, by name and unit; energy is `energy_j`."""
        ...


class Meter:
    """Reads memory and `instruments` around a generation: start, decode, stop. Reading is no part of its times."""

    def __init__(self, device: str = "cpu", instruments: Sequence[Instrument] = ()) -> None:
        self._device, self._instruments = device, tuple(instruments)

    def start(self) -> None:
        """The last instrument is read last here and first at the end: the nearest to what is decoded."""
        for instrument in self._instruments:
            instrument.start()
        reset_peak_memory(self._device)

    def stop(self) -> Reading:
        """What there was since `start`."""
        peak_bytes, reserved_bytes = peak_memory_bytes(self._device), reserved_memory_bytes(self._device)
        found: dict[str, float] = {}
        for instrument in reversed(self._instruments):
            found.update(instrument.stop())
        return Reading(peak_bytes, reserved_bytes, found.pop("energy_j", None), found)


class SentinelWatch:
    """`sentinel_s`, the slower of two looks: that after the generation, and that after the one before it."""

    def __init__(self, sentinel: Callable[[], float]) -> None:
        self._sentinel = sentinel
        self._before_s = sentinel()

    def start(self) -> None:
        """Nothing to do: the look before was the last one."""

    def stop(self) -> Mapping[str, float]:
        before_s, self._before_s = self._before_s, self._sentinel()
        return {"sentinel_s": max(before_s, self._before_s)}


class HostWatch:
    """The CPU's conditions (see host.between). Energy is left to the GPU where one decodes: the CPU's is not the
    answer's."""

    def __init__(self, read: host.Host, with_energy: bool) -> None:
        self._read, self._with_energy = read, with_energy

    def start(self) -> None:
        self._start = self._read.moment()

    def stop(self) -> Mapping[str, float]:
        found = host.between(self._start, self._read.moment())
        if not self._with_energy:
            found.pop("energy_j", None)
        return found


class GpuWatch:
    """The GPU's conditions (see gpu.conditions)."""

    def __init__(self, read: gpu.Gpu) -> None:
        self._read = read

    def start(self) -> None:
        self._start = self._read.moment()

    def stop(self) -> Mapping[str, float]:
        return gpu.conditions(self._start, self._read.moment())


def make_meter(device: str, *, watch: bool) -> Meter:
    """The meter of a run: with `watch` it reads all that this machine has, without it only memory."""
    if not watch:
        return Meter(device)
    instruments: list[Instrument] = [SentinelWatch(Sentinel(Clock(device), device))]
    found = gpu.open_gpu(device)
    if found is not None:
        instruments.append(GpuWatch(found))
    instruments.append(HostWatch(host.Host(Clock()), with_energy=not device.startswith("cuda")))
    return Meter(device, instruments)
