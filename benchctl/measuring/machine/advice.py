"""How well a machine can measure: facts, noise, rates, and advice about what makes it noisy or slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine.gpu import BRAKES, POWER_CAP, GpuMoment, open_gpu
from benchctl.measuring.machine.host import Fact, Host, Setup, between, machine_facts, read_setup, usable_cores
from benchctl.measuring.machine.meter import memory_bandwidth_mb_s
from benchctl.measuring.validity import MARGIN

# 4 MiB of float32, beyond a core's own caches, as a layer's weights are; 64 MiB, beyond most GPUs' cache.
_CPU_WIDTH, _GPU_WIDTH = 1024, 4096
_PRODUCTS = 20  # in a round, which takes about 1.5 ms
_LOOKS = 200  # of three rounds: about a second
_SLOWEST = 95  # percentile
_MUCH_CORES = 0.2  # an idle desktop stays below


@dataclass(frozen=True)
class LoadSample:
    """The load during a second of reference kernels, see host.between; None means unknown.

    `sentinel_spread` is how much longer than the median the slowest twentieth of the kernels took, as a share.
    """

    foreign_cores: float | None
    waited_share: float | None
    sentinel_spread: float


@dataclass(frozen=True)
class Examination:
    """The result for one device. Rates are those of the threads asked for, or of the GPU.

    sentinel_s  median seconds of a product of the reference kernel
    """

    facts: Mapping[str, Fact]
    device: str
    threads: int
    sentinel_s: float
    seen: LoadSample
    memory_bandwidth_mb_s: float
    gpu: GpuMoment | None
    advice: tuple[str, ...]


def examine_machine(device: str, threads: int) -> Examination:
    """Takes about two seconds. Sets torch to that many threads."""
    torch.set_num_threads(threads)
    clock, card = Clock(device), open_gpu(device)
    sentinel_s, load = _sample(clock, device, Host(Clock()))
    bandwidth_mb_s = memory_bandwidth_mb_s(clock, device)
    gpu = card.moment() if card is not None else None
    return Examination(
        facts=machine_facts(device),
        device=device,
        threads=threads,
        sentinel_s=sentinel_s,
        seen=load,
        memory_bandwidth_mb_s=bandwidth_mb_s,
        gpu=gpu,
        advice=advise(read_setup(usable_cores(), Path("/")), load, threads, gpu),
    )


@torch.inference_mode()
def _sample(clock: Callable[[], float], device: str, host: Host) -> tuple[float, LoadSample]:
    """The median seconds of the reference kernel, and the load during a second of it.

    The kernel is a row times a matrix, like most of a decoding step. A look at it is the best of three rounds: a slower
    clock or lasting load slows all three, a short interruption does not count.
    """
    width = _GPU_WIDTH if device.startswith("cuda") else _CPU_WIDTH
    row, matrix = torch.ones(1, width, device=device), torch.full((width, width), 1 / width, device=device)

    def round_s() -> float:
        started_s = clock()
        for _ in range(_PRODUCTS):
            torch.mm(row, matrix)
        return clock() - started_s

    start = host.moment()
    kernels_s = [min(round_s() for _ in range(3)) / _PRODUCTS for _ in range(_LOOKS)]
    conditions = between(start, host.moment())
    middle_s = float(np.median(kernels_s))
    slow_s = float(np.percentile(kernels_s, _SLOWEST))
    load = LoadSample(conditions.get("foreign_cores"), conditions.get("waited_share"), slow_s / middle_s - 1)
    return middle_s, load


def advise(setup: Setup, load: LoadSample, threads: int, gpu: GpuMoment | None = None) -> tuple[str, ...]:
    """Each problem with what to do, for a run of that many threads; empty if there is none."""
    advice = _about_cores(setup, load, threads)
    slow = [governor for governor in setup.governors if governor != "performance"]
    if slow:
        advice.append(
            f"the CPU's clock follows its load (governor {', '.join(slow)}): set it to performance, as with "
            "`cpupower frequency-set -g performance`."
        )
    if setup.on_battery:
        advice.append("it runs on battery, which lowers clocks: plug it in.")
    if load.sentinel_spread > MARGIN:
        advice.append(
            f"the slowest 5% of equal tasks take at least {load.sentinel_spread:.0%} longer than the median: use more "
            "--repeats and several --sessions."
        )
    if gpu is None:
        return tuple(advice)
    reasons = gpu.reasons or 0
    for bit, why in BRAKES.items():
        if reasons & bit:
            advice.append(f"the GPU slows down ({why}): check its cooling and power supply before you measure.")
    if reasons & POWER_CAP and gpu.power_limit_w is not None:
        advice.append(
            f"the GPU is at its power limit of {gpu.power_limit_w:.0f} W, which sets its clock: compare only runs "
            "under the same limit."
        )
    if gpu.foreign_processes:
        others = f"{gpu.foreign_processes} other process{'es' if gpu.foreign_processes > 1 else ''}"
        advice.append(f"{others} computed on the GPU: stop that work, or choose another GPU.")
    return tuple(advice)


def _about_cores(setup: Setup, load: LoadSample, threads: int) -> list[str]:
    advice, waited, foreign = [], load.waited_share, load.foreign_cores
    cores, physical = (f"{count} {{}}core{'' if count == 1 else 's'}" for count in (setup.cores, setup.physical_cores))
    if threads > setup.cores:
        advice.append(
            f"{threads} threads on {cores.format('')} wait for each other: use --threads {setup.cores} or fewer."
        )
    elif setup.physical_cores is not None and threads > setup.physical_cores:
        advice.append(
            f"{threads} threads share {physical.format('physical ')} in pairs: use --threads {setup.physical_cores} or "
            "fewer."
        )
    if setup.quota_cores is not None and threads > setup.quota_cores:
        advice.append(
            f"the group of this process may use {setup.quota_cores:g} cores' worth of time, less than {threads} "
            "threads do, and is stopped when that is spent: raise the container's CPU limit."
        )
    if waited is not None and waited > MARGIN:
        advice.append(f"it waited for a core {waited:.0%} of the time: stop other work, or wait until it is done.")
    elif foreign is not None and foreign > _MUCH_CORES:
        advice.append(
            f"other processes use {foreign:.1f} of {cores.format('')}, which also slows memory and lowers the clock: "
            "stop them, or wait until they are done."
        )
    if threads == setup.cores > 1:
        advice.append(
            f"{threads} threads leave no core for anything else the system does: --threads {threads - 1} is steadier."
        )
    return advice
