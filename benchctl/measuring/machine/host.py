"""What the operating system tells about a CPU while something is measured on it: others' load, waiting, energy.

All of it is read from Linux's files under `root` (tests lay their own there); elsewhere, or where a file is not
readable, a fact is missing rather than guessed.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NS = 1e-9
_UJ = 1e-6
# user, nice, system, irq, softirq, steal; not idle, nor waiting for a disk, nor guests, which are in user already.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class CpuMoment:
    """Counters at one moment. Any of them is None where the system does not tell.

    at_s      the clock
    busy_s    CPU time spent by anybody on the cores this process may use, what a hypervisor took away included
    own_s     CPU time of this process
    waited_s  by thread of this process: how long it was ready to run and had no core
    energy_j  by package of the machine; each counts up to its `energy_range_j` and then starts again
    """

    at_s: float
    busy_s: float | None
    own_s: float
    waited_s: Mapping[int, float] | None
    energy_j: Mapping[str, float]
    energy_range_j: Mapping[str, float]


class Host:
    """The files of a Linux system. `cores` are the numbers of those this process may use."""

    def __init__(self, clock: Callable[[], float], root: Path = Path("/"), cores: Sequence[int] | None = None) -> None:
        self._clock = clock
        self._root = root
        self._cores = usable_cores() if cores is None else tuple(cores)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._packages = _packages(root)

    def moment(self) -> CpuMoment:
        """The counters now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        energy_j = {package.name: _number(package / "energy_uj") for package in self._packages}
        return CpuMoment(
            at_s=self._clock(),
            busy_s=self._busy_s(),
            own_s=used.ru_utime + used.ru_stime,
            waited_s=self._waited_s(),
            energy_j={name: joules * _UJ for name, joules in energy_j.items() if joules is not None},
            energy_range_j={
                package.name: (_number(package / "max_energy_range_uj") or 0.0) * _UJ for package in self._packages
            },
        )

    def _busy_s(self) -> float | None:
        """From /proc/stat: `cpu3 user nice system idle iowait irq softirq steal guest guest_nice`, in ticks."""
        names = {f"cpu{core}" for core in self._cores}
        lines = [line.split() for line in read_text(self._root / "proc/stat").splitlines()]
        found = [line[1:] for line in lines if line and line[0] in names]
        if len(found) < len(names):
            return None
        return sum(int(line[place]) for line in found for place in _BUSY if place < len(line)) / self._ticks

    def _waited_s(self) -> Mapping[int, float] | None:
        """From schedstat of each thread: nanoseconds on a core, nanoseconds waiting for one, times put on one."""
        waited_s = {}
        for folder in (self._root / "proc/self/task").glob("*"):
            parts = read_text(folder / "schedstat").split()
            if len(parts) > 1:
                waited_s[int(folder.name)] = int(parts[1]) * _NS
        return waited_s or None


def between(start: CpuMoment, end: CpuMoment) -> dict[str, float]:
    """Conditions, by name and unit, of what lies between two moments; those that the system does not tell are missing.

    foreign_cores  cores' worth of work of others on the cores that this process may use
    waited_share   share of the time for which the thread that waited most was ready and had no core
    energy_j       of all packages of the machine, others' work included

    Example: in 2 s four cores were busy for 5 s, of which 2 s were ours: `foreign_cores` is 1.5.
    """
    wall_s = end.at_s - start.at_s
    if wall_s <= 0:
        return {}
    found = {}
    if start.busy_s is not None and end.busy_s is not None:
        foreign_s = end.busy_s - start.busy_s - (end.own_s - start.own_s)
        found["foreign_cores"] = max(foreign_s, 0.0) / wall_s  # ticks are coarse: in a short time ours may seem more
    if start.waited_s is not None and end.waited_s is not None:
        # A thread that began in between had waited for nothing before.
        most_s = max(now_s - start.waited_s.get(thread, 0.0) for thread, now_s in end.waited_s.items())
        found["waited_share"] = min(most_s / wall_s, 1.0)
    if end.energy_j and start.energy_j.keys() == end.energy_j.keys():
        found["energy_j"] = sum(_spent_j(start, end, package) for package in end.energy_j)
    return found


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may use: fewer than the machine has in a container or under taskset."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def read_text(path: Path) -> str:
    """What a file of the system holds, without the space around it; "" where there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _spent_j(start: CpuMoment, end: CpuMoment, package: str) -> float:
    spent_j = end.energy_j[package] - start.energy_j[package]
    return spent_j if spent_j >= 0 else spent_j + end.energy_range_j[package]


def _packages(root: Path) -> tuple[Path, ...]:
    """Counters of whole packages (intel-rapl:0, AMD's too); intel-rapl:0:1 is a part of one, and would count twice."""
    folders = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
    return tuple(
        folder
        for folder in folders
        if folder.name.count(":") == 1
        and read_text(folder / "name").startswith("package")
        and _number(folder / "energy_uj") is not None
    )


def _number(path: Path) -> float | None:
    text = read_text(path)
    return float(text) if text.isdigit() else None
