"""The machine: facts for the header, its setup, and other load, waiting time and energy during a measurement.

Names and addresses are left out. Linux's files are read under `root`, where tests put their own. On other systems, or
where a file is not readable, a fact is missing, never guessed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

import benchctl

_CPU = "sys/devices/system/cpu"
_CGROUP = "sys/fs/cgroup"
_NS = 1e-9
_UJ = 1e-6
# user, nice, system, irq, softirq, steal; not idle, nor waiting for a disk, nor guests, which are in user already.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class CpuMoment:
    """Counters at one moment; None means unknown.

    at_s      the clock
    busy_s    CPU time of all processes on the cores this process may use, time taken by a hypervisor included
    own_s     CPU time of this process, and of engines that it has started
    waited_s  by thread of this process: how long it was ready to run and had no core
    energy_j  by package of the machine; each counter wraps around at its `energy_range_j`
    """

    at_s: float
    busy_s: float | None
    own_s: float
    waited_s: Mapping[int, float] | None
    energy_j: Mapping[str, float]
    energy_range_j: Mapping[str, float]


class Host:
    """The files of a Linux system. `cores` are the numbers of those this process may use."""

    def __init__(
        self,
        clock: Callable[[], float],
        root: Path = Path("/"),
        cores: Sequence[int] | None = None,
        with_energy: bool = True,
        engines_cpu_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock = clock
        self._engines_cpu_s = engines_cpu_s
        self._root = root
        self._cores = usable_cores() if cores is None else tuple(cores)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._packages = _packages(root) if with_energy else ()
        ranges_uj = {package.name: _number(package / "max_energy_range_uj") for package in self._packages}
        self._energy_range_j = {name: (range_uj or 0.0) * _UJ for name, range_uj in ranges_uj.items()}

    def moment(self) -> CpuMoment:
        """The counters now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        energy_uj = {package.name: _number(package / "energy_uj") for package in self._packages}
        return CpuMoment(
            at_s=self._clock(),
            busy_s=self._busy_s(),
            own_s=used.ru_utime + used.ru_stime + self._engines_cpu_s(),
            waited_s=self._waited_s(),
            energy_j={name: reading * _UJ for name, reading in energy_uj.items() if reading is not None},
            energy_range_j=self._energy_range_j,
        )

    def _busy_s(self) -> float | None:
        """From /proc/stat: `cpu3 user nice system idle iowait irq softirq steal guest guest_nice`, in ticks."""
        names = {f"cpu{core}" for core in self._cores}
        lines = [line.split() for line in read_text(self._root / "proc/stat").splitlines()]
        counters = [line[1:] for line in lines if line and line[0] in names]
        if len(counters) < len(names):
            return None
        return sum(int(line[column]) for line in counters for column in _BUSY if column < len(line)) / self._ticks

    def _waited_s(self) -> Mapping[int, float] | None:
        """From schedstat of each thread: nanoseconds on a core, nanoseconds waiting for one, times put on one."""
        waited_s = {}
        for folder in (self._root / "proc/self/task").glob("*"):
            counters = read_text(folder / "schedstat").split()
            if len(counters) > 1:
                waited_s[int(folder.name)] = int(counters[1]) * _NS
        return waited_s or None


def between(start: CpuMoment, end: CpuMoment) -> dict[str, float]:
    """Conditions between two moments, by name and unit; unknown ones are missing.

    foreign_cores  CPU time per second of other processes on the cores that this process may use
    waited_share   share of the time in which the thread that waited most was ready and had no core
    energy_j       of all packages of the machine, other processes included

    Example: in 2 s four cores were busy for 5 s, of which 2 s were ours: `foreign_cores` is 1.5.
    """
    wall_s = end.at_s - start.at_s
    if wall_s <= 0:
        return {}
    conditions = {}
    if start.busy_s is not None and end.busy_s is not None:
        foreign_s = end.busy_s - start.busy_s - (end.own_s - start.own_s)
        # Ticks are coarse: over a short time own_s may exceed busy_s.
        conditions["foreign_cores"] = max(foreign_s, 0.0) / wall_s
    if start.waited_s is not None and end.waited_s is not None:
        # A thread that began in between starts at 0.
        most_s = max(now_s - start.waited_s.get(thread, 0.0) for thread, now_s in end.waited_s.items())
        conditions["waited_share"] = min(most_s / wall_s, 1.0)
    if end.energy_j and start.energy_j.keys() == end.energy_j.keys():
        spent_j = {package: joules - start.energy_j[package] for package, joules in end.energy_j.items()}
        conditions["energy_j"] = sum(
            joules if joules >= 0 else joules + end.energy_range_j[package] for package, joules in spent_j.items()
        )
    return conditions


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may use: fewer than the machine has in a container or under taskset."""
    return tuple(sorted(os.sched_getaffinity(0)))


def read_text(path: Path) -> str:
    """The stripped text of a system file; "" if it is missing or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Setup:
    """How the machine is set up for a run; None means unknown.

    cores           that this process may use
    physical_cores  of these; logical cores that share a physical one count once
    quota_cores     CPU time per second that the process's control group may use
    governors       that set the clocks of the cores, each once
    """

    cores: int
    physical_cores: int | None
    quota_cores: float | None
    governors: tuple[str, ...]
    on_battery: bool


def read_setup(cores: Sequence[int], root: Path = Path("/")) -> Setup:
    """From Linux's files under `root`, for a process that may use these `cores`."""
    siblings = [read_text(root / _CPU / f"cpu{core}/topology/thread_siblings_list") for core in cores]
    governors = {read_text(root / _CPU / f"cpu{core}/cpufreq/scaling_governor") for core in cores} - {""}
    supplies = (root / "sys/class/power_supply").glob("*")
    mains = [read_text(supply / "online") for supply in supplies if read_text(supply / "type") == "Mains"]
    # Control groups, version 2 ("150000 100000" in one file) or 1 (in two files; -1 is no limit), at the root that a
    # container sees.
    quota, period = read_text(root / _CGROUP / "cpu.max").split() or [
        read_text(root / _CGROUP / "cpu" / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    ]
    has_quota = quota.isdigit() and period.isdigit() and int(period) > 0
    return Setup(
        cores=len(cores),
        physical_cores=len(set(siblings)) if all(siblings) else None,
        quota_cores=int(quota) / int(period) if has_quota else None,
        governors=tuple(sorted(governors)),
        on_battery=bool(mains) and "1" not in mains,
    )


def _packages(root: Path) -> tuple[Path, ...]:
    """Counters of whole packages (intel-rapl:0, AMD's too). intel-rapl:0:1 is inside one and would count twice."""
    return tuple(
        folder
        for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
        if folder.name.count(":") == 1
        and read_text(folder / "name").startswith("package")
        and _number(folder / "energy_uj") is not None
    )


def _number(path: Path) -> float | None:
    text = read_text(path)
    return float(text) if text.isdigit() else None


Fact = str | int | float | list[float]
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")
_COMMAND_TIMEOUT_S = 10


def machine_facts(device: str) -> dict[str, Fact]:
    """The machine as it is now. `device` is "cpu" or "cuda"; the GPU's facts are empty on a CPU."""
    gpu, driver = "", ""
    if device.startswith("cuda") and torch.cuda.is_available():
        driver_lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
        gpu, driver = torch.cuda.get_device_name(), "".join(driver_lines[:1])
    return {
        "hostname_hash": hashlib.sha256(platform.node().encode()).hexdigest()[:8],
        "os": platform.platform(),
        "cpu": _cpu(),
        "cores": len(usable_cores()),
        "governor": ", ".join(read_setup(usable_cores()).governors),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "gpu": gpu,
        "gpu_driver": driver,
    }


def free_memory_bytes(device: str, root: Path = Path("/")) -> int | None:
    """Memory that this process can still take: of a GPU, or of the machine within its container's and its own limit.

    None where the system does not say.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    available = re.search(r"^MemAvailable:\s*(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    free = [int(available[1]) * 1024] if available else []
    limit, used = (_number(root / _CGROUP / f"memory.{name}") for name in ("max", "current"))
    cached = re.search(r"^inactive_file (\d+)$", read_text(root / _CGROUP / "memory.stat"), re.MULTILINE)
    if limit is not None and used is not None:
        free.append(int(limit - used) + (int(cached[1]) if cached else 0))  # files are dropped where memory is needed
    most, pages = resource.getrlimit(resource.RLIMIT_AS)[0], read_text(root / "proc/self/statm").split()
    if most != resource.RLIM_INFINITY and pages:
        free.append(most - int(pages[0]) * os.sysconf("SC_PAGE_SIZE"))
    return min(free, default=None)


def resident_bytes() -> int:
    """Memory that this process has now; the most it has had where the system does not say."""
    pages = read_text(Path("/proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most memory that this process has had; it never falls.

    On Linux, `ru_maxrss` begins at the peak of the process that started this one. VmHWM does not.
    """
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", read_text(Path("/proc/self/status")), re.MULTILINE)
    if peak:
        return int(peak[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # Linux counts in KiB, macOS in bytes


def versions() -> dict[str, str]:
    """Versions of benchctl, Python and the libraries that decide how fast a model runs."""
    libraries = {name: version(name) for name in _LIBRARIES}
    return {"benchctl": benchctl.__version__, "python": platform.python_version(), **libraries}


def commit(folder: Path | None = None) -> str:
    """The git commit of the running code, with "+dirty-" and a hash if code has changed since; "" outside a clone.

    Only a `.git` directly in `folder` (default: the parent of the benchctl package) counts: a benchctl installed inside
    another repository must not report that repository's commit.
    """
    root = folder or Path(benchctl.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(root), "diff", "HEAD", "--", "*.py") if head else ""
    return f"{head}+dirty-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else head


def _cpu() -> str:
    """The processor's name, or the architecture if the name is unknown."""
    name = re.search(r"^model name\s*:\s*(.+)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


def _output(*command: str) -> str:
    """What a program prints, or "" if it is missing, fails or hangs: these facts are optional."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
