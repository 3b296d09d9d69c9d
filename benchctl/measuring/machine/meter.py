"""Reads memory, energy and the machine's conditions around a generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine import gpu, host
from benchctl.measuring.machine.facts import peak_memory_bytes, reserved_memory_bytes, reset_peak_memory
from benchctl.measuring.machine.speed import Sentinel


@dataclass(frozen=True)
class Reading:
    """One generation's memory, energy and conditions; None or missing means unknown."""

    peak_memory_bytes: int | None = None
    reserved_memory_bytes: int | None = None
    energy_j: float | None = None
    conditions: Mapping[str, float] = field(default_factory=dict)


class Instrument(Protocol):
    """Something that is read before and after a generation."""

    def start(self) -> None: ...

    def stop(self) -> Mapping[str, float]:
        """Its readings since `start`, by name and unit; energy is `energy_j`."""
        ...


class Meter:
    """Reads memory and `instruments` around a generation: start, decode, stop. Its times exclude the reading."""

    def __init__(self, device: str = "cpu", instruments: Sequence[Instrument] = ()) -> None:
        self._device, self._instruments = device, tuple(instruments)

    def start(self) -> None:
        """Instruments are read in order here and in reverse at the end: the last one is closest to the decoding."""
        for instrument in self._instruments:
            instrument.start()
        reset_peak_memory(self._device)

    def stop(self) -> Reading:
        """The readings since `start`."""
        peak_bytes, reserved_bytes = peak_memory_bytes(self._device), reserved_memory_bytes(self._device)
        conditions: dict[str, float] = {}
        for instrument in reversed(self._instruments):
            conditions.update(instrument.stop())
        return Reading(peak_bytes, reserved_bytes, conditions.pop("energy_j", None), conditions)


class SentinelWatch:
    """`sentinel_s`, the slower of two kernel times: after this generation and after the one before it."""

    def __init__(self, sentinel: Callable[[], float]) -> None:
        self._sentinel = sentinel
        self._before_s = sentinel()

    def start(self) -> None:
        """Nothing to do: the time before is the last one."""

    def stop(self) -> Mapping[str, float]:
        before_s, self._before_s = self._before_s, self._sentinel()
        return {"sentinel_s": max(before_s, self._before_s)}


class HostWatch:
    """The CPU's conditions (see host.between). Its energy is left out where a GPU decodes."""

    def __init__(self, read: host.Host, with_energy: bool) -> None:
        self._read, self._with_energy = read, with_energy

    def start(self) -> None:
        self._start = self._read.moment()

    def stop(self) -> Mapping[str, float]:
        conditions = host.between(self._start, self._read.moment())
        if not self._with_energy:
            conditions.pop("energy_j", None)
        return conditions


class GpuWatch:
    """The GPU's conditions (see gpu.conditions)."""

    def __init__(self, read: gpu.Gpu) -> None:
        self._read = read

    def start(self) -> None:
        self._start = self._read.moment()

    def stop(self) -> Mapping[str, float]:
        return gpu.conditions(self._start, self._read.moment())


def make_meter(device: str, *, watch: bool) -> Meter:
    """The meter of a run: with `watch` it has all instruments of this machine, without it none."""
    if not watch:
        return Meter(device)
    instruments: list[Instrument] = [SentinelWatch(Sentinel(Clock(device), device))]
    card = gpu.open_gpu(device)
    if card is not None:
        instruments.append(GpuWatch(card))
    instruments.append(HostWatch(host.Host(Clock()), with_energy=not device.startswith("cuda")))
    return Meter(device, instruments)
