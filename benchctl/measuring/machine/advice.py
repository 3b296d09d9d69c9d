"""What about a machine makes measurements on it noisy, or slower than they need be, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.measuring.machine.gpu import BRAKES, POWER_CAP, GpuMoment
from benchctl.measuring.machine.host import read_text
from benchctl.measuring.validity import MARGIN

_CPU = "sys/devices/system/cpu"
_CGROUP = "sys/fs/cgroup"
_MUCH_CORES = 0.2  # what a desktop at rest stays below


@dataclass(frozen=True)
class Setup:
    """How the machine is set up for a run; "" and None are what it does not tell.

    cores          that this process may use
    physical_cores of these, counting those that share one once
    quota_cores    cores' worth of time that the process's group may use
    governors      what decides the clocks of the cores, each once
    """

    cores: int
    physical_cores: int | None
    quota_cores: float | None
    governors: tuple[str, ...]
    on_battery: bool


@dataclass(frozen=True)
class Seen:
    """What a second of sentinels showed: see host.between; `sentinel_spread` is how much longer than the median the
    slowest twentieth took, as a share."""

    foreign_cores: float | None
    waited_share: float | None
    sentinel_spread: float


def read_setup(cores: Sequence[int], root: Path = Path("/")) -> Setup:
    """From Linux's files under `root`, for a process that may use these `cores`."""
    siblings = [read_text(root / _CPU / f"cpu{core}/topology/thread_siblings_list") for core in cores]
    governors = {read_text(root / _CPU / f"cpu{core}/cpufreq/scaling_governor") for core in cores} - {""}
    supplies = (root / "sys/class/power_supply").glob("*")
    mains = [read_text(supply / "online") for supply in supplies if read_text(supply / "type") == "Mains"]
    return Setup(
        cores=len(cores),
        physical_cores=len(set(siblings)) if all(siblings) else None,
        quota_cores=_quota_cores(root),
        governors=tuple(sorted(governors)),
        on_battery=bool(mains) and "1" not in mains,
    )


def _quota_cores(root: Path) -> float | None:
    """Of control groups, version 2 ("150000 100000" in one file) or 1 (in two; -1 is no limit), at the root that a
    container sees."""
    parts = read_text(root / _CGROUP / "cpu.max").split() or [
        read_text(root / _CGROUP / "cpu" / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    ]
    if not all(part.isdigit() for part in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def advise(setup: Setup, seen: Seen, threads: int, gpu: GpuMoment | None = None) -> tuple[str, ...]:
    """What is wrong, each with what to do, for a run of that many threads; empty where nothing is."""
    return (
        *_about_threads(setup, threads),
        *_about_load(setup, seen, threads),
        *_about_clocks(setup, seen),
        *(_about_gpu(gpu) if gpu is not None else ()),
    )


def _about_threads(setup: Setup, threads: int) -> Iterator[str]:
    if threads > setup.cores:
        yield f"{threads} threads on {_cores(setup.cores)} wait for each other: use --threads {setup.cores} or fewer."
    elif setup.physical_cores is not None and threads > setup.physical_cores:
        yield (
            f"{threads} threads share {setup.physical_cores} physical {_noun(setup.physical_cores)} in pairs: use "
            f"--threads {setup.physical_cores} or fewer."
        )
    if setup.quota_cores is not None and threads > setup.quota_cores:
        yield (
            f"the group of this process may use {setup.quota_cores:g} cores' worth of time, less than {threads} "
            "threads do, and is stopped when that is spent: raise the container's CPU limit."
        )


def _about_load(setup: Setup, seen: Seen, threads: int) -> Iterator[str]:
    waited, foreign = seen.waited_share, seen.foreign_cores
    if waited is not None and waited > MARGIN:
        yield f"it waited for a core {waited:.0%} of the time: stop other work, or wait until it is done."
    elif foreign is not None and foreign > _MUCH_CORES:
        yield (
            f"others use {foreign:.1f} of {_cores(setup.cores)}, and with them memory and clock: stop them, or wait "
            "until they are done."
        )
    if threads == setup.cores > 1:
        yield (
            f"{threads} threads leave no core for anything else the system does: --threads {threads - 1} is steadier."
        )


def _about_clocks(setup: Setup, seen: Seen) -> Iterator[str]:
    slow = [governor for governor in setup.governors if governor != "performance"]
    if slow:
        yield (
            f"the CPU's clock follows its load (governor {', '.join(slow)}): set it to performance, as with "
            "`cpupower frequency-set -g performance`."
        )
    if setup.on_battery:
        yield "it runs on battery, which lowers clocks: plug it in."
    if seen.sentinel_spread > MARGIN:
        yield (
            f"every twentieth piece of equal work takes {seen.sentinel_spread:.0%} longer than usual or more: use more "
            "--repeats and several --sessions, and believe the intervals."
        )


def _about_gpu(gpu: GpuMoment) -> Iterator[str]:
    reasons = gpu.reasons or 0
    for bit, why in BRAKES.items():
        if reasons & bit:
            yield f"the GPU slows down ({why}): see to its cooling and power before measuring."
    if reasons & POWER_CAP and gpu.power_limit_w is not None:
        yield (
            f"the GPU is at its power limit of {gpu.power_limit_w:.0f} W, which sets its clock: compare only runs "
            "under the same limit."
        )
    if gpu.foreign_processes:
        yield f"{gpu.foreign_processes} other processes compute on the GPU: stop them, or choose another GPU."


def _cores(count: int) -> str:
    return f"{count} {_noun(count)}"


def _noun(count: int) -> str:
    return "core" if count == 1 else "cores"
