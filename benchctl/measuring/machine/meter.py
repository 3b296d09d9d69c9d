"""Measures the machine: its bandwidth, and memory, energy and conditions around a generation.

`python -m benchctl.measuring.machine.meter THREADS` prints the bandwidth of the CPU's memory.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine import gpu, host
from benchctl.measuring.machine.host import read_text

_TIMEOUT_S = 60.0
_LEAST_BYTES = 1 << 26
_CPU_MOST_BYTES, _GPU_BYTES = 1 << 30, 1 << 28
_GPU_SUMS = 8  # so that launching and waiting take little of the time
_CACHES = 4  # times the largest cache, so that one pass leaves little for the next
_PASSES = 5
_State = TypeVar("_State")


@torch.inference_mode()
def memory_bandwidth_mb_s(clock: Callable[[], float], device: str = "cpu", root: Path = Path("/")) -> float:
    """Megabytes (10^6) per second that torch's threads read from memory, in the best of five passes.

    A pass sums numbers that do not fit into any cache: it reads all and writes almost nothing. GPU memory is freed
    afterwards, so that it is not counted.
    """
    on_gpu = device.startswith("cuda")
    # Linux writes the size of a cache as "32768K".
    texts = [read_text(path) for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    largest_cache = max((int(text[:-1]) << 10 for text in texts if text[:-1].isdigit() and text[-1] == "K"), default=0)
    size_bytes, sums = (
        (_GPU_BYTES, _GPU_SUMS) if on_gpu else (min(max(_CACHES * largest_cache, _LEAST_BYTES), _CPU_MOST_BYTES), 1)
    )
    numbers = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    numbers.sum()  # touches the memory
    times_s = []
    for _ in range(_PASSES):
        started_s = clock()
        for _ in range(sums):
            numbers.sum()
        times_s.append(clock() - started_s)
    if on_gpu:
        del numbers
        torch.cuda.empty_cache()
    return sums * size_bytes / min(times_s) / 1e6


def bandwidth_mb_s(device: str, threads: int) -> float | None:
    """memory_bandwidth_mb_s of a CPU in a process of its own, of a GPU in this one; None if that process fails.

    The numbers, several times the largest cache, would stay in this process's peak memory, which never falls, and so
    in the figures of every method.
    """
    if device.startswith("cuda"):
        return memory_bandwidth_mb_s(Clock(device), device)
    command = (sys.executable, "-m", __name__, str(threads))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def peak_memory_bytes(device: str) -> int:
    """The most memory held so far: by the process on a CPU (it never falls), on a GPU since Meter.start."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    return host.peak_resident_bytes()


def free_memory() -> None:
    """Give back what nothing refers to any more: objects in cycles, and blocks that torch keeps of a GPU."""
    gc.collect()
    torch.cuda.empty_cache()


@dataclass(frozen=True)
class Reading:
    """One generation's memory, energy and conditions; None or missing means unknown."""

    peak_memory_bytes: int | None = None
    reserved_memory_bytes: int | None = None
    energy_j: float | None = None
    conditions: Mapping[str, float] = field(default_factory=dict)

    def of_engine(self) -> Reading:
        """Without what is of this process alone: its memory, and that others use the GPU, as the engine itself does."""
        conditions = {name: value for name, value in self.conditions.items() if name != "foreign_processes"}
        return replace(self, peak_memory_bytes=None, reserved_memory_bytes=None, conditions=conditions)


# Read before a generation; calling what it returns gives its readings since, by name and unit; energy is `energy_j`.
Instrument = Callable[[], Callable[[], Mapping[str, float]]]


class Meter:
    """Reads memory and `instruments` around a generation: start, decode, stop. Its times exclude the reading."""

    def __init__(self, device: str = "cpu", instruments: Sequence[Instrument] = ()) -> None:
        self._device, self._instruments = device, tuple(instruments)
        self._on_gpu = device.startswith("cuda")

    def start(self) -> None:
        """Instruments are read in order here and in reverse at the end: the last one is closest to the decoding."""
        self._stops = [instrument() for instrument in self._instruments]
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)

    def stop(self) -> Reading:
        """The readings since `start`."""
        peak_bytes = peak_memory_bytes(self._device)
        reserved_bytes = int(torch.cuda.max_memory_reserved(self._device)) if self._on_gpu else None
        conditions: dict[str, float] = {}
        for stop in reversed(self._stops):
            conditions.update(stop())
        return Reading(peak_bytes, reserved_bytes, conditions.pop("energy_j", None), conditions)


def watch_state(read: Callable[[], _State], between: Callable[[_State, _State], Mapping[str, float]]) -> Instrument:
    """The conditions between the states of a CPU (see host.between) or a GPU (see gpu.conditions) at start and stop."""

    def start() -> Callable[[], Mapping[str, float]]:
        begun = read()
        return lambda: between(begun, read())

    return start


def make_meter(device: str, *, watch: bool, engines_cpu_s: Callable[[], float] = lambda: 0.0) -> Meter:
    """The meter of a run: with `watch` it has all instruments of this machine, without it none.

    ``engines_cpu_s`` is the processor time of the engines that the run has started: they are not other load.
    Where a GPU decodes, the CPU's energy is left out.
    """
    if not watch:
        return Meter(device)
    card = gpu.open_gpu(device)
    instruments = [] if card is None else [watch_state(card.moment, gpu.conditions)]
    cpu = host.Host(Clock(), with_energy=not device.startswith("cuda"), engines_cpu_s=engines_cpu_s)
    instruments.append(watch_state(cpu.moment, host.between))
    return Meter(device, instruments)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    sys.stdout.write(f"{memory_bandwidth_mb_s(Clock())}\n")
