"""How well a machine can measure: its facts, how steady it is, how fast it reads and multiplies, and what to mend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine.advice import Seen, advise, read_setup
from benchctl.measuring.machine.facts import Fact, machine_facts
from benchctl.measuring.machine.gpu import GpuMoment, open_gpu
from benchctl.measuring.machine.host import Host, between, usable_cores
from benchctl.measuring.machine.sentinel import Sentinel, flop_rate, memory_bandwidth_mb_s

_LOOKS = 200  # of about 5 ms: a second
_SLOWEST = 95  # percent of looks that are faster than the slowest twentieth
_GPU_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Examination:
    """What was found. Rates are those of the threads asked for, or of the GPU.

    sentinel_s  median of a product of the sentinel
    flop_dtype  the numbers that flops_per_s is of
    """

    facts: Mapping[str, Fact]
    device: str
    threads: int
    sentinel_s: float
    seen: Seen
    memory_bandwidth_mb_s: float
    flops_per_s: float
    flop_dtype: str
    gpu: GpuMoment | None
    advice: tuple[str, ...]


def examine_machine(device: str, threads: int) -> Examination:
    """Takes about two seconds. Sets torch to that many threads."""
    torch.set_num_threads(threads)
    clock, card = Clock(device), open_gpu(device)
    sentinel_s, seen = _look(Sentinel(clock, device), Host(Clock()))
    dtype = _GPU_DTYPE if device.startswith("cuda") else torch.float32
    rates = memory_bandwidth_mb_s(clock, device), flop_rate(clock, dtype, device)
    gpu = card.moment() if card is not None else None
    return Examination(
        facts=machine_facts(device),
        device=device,
        threads=threads,
        sentinel_s=sentinel_s,
        seen=seen,
        memory_bandwidth_mb_s=rates[0],
        flops_per_s=rates[1],
        flop_dtype=str(dtype).removeprefix("torch."),
        gpu=gpu,
        advice=advise(read_setup(usable_cores(), Path("/")), seen, threads, gpu),
    )


def _look(sentinel: Sentinel, host: Host) -> tuple[float, Seen]:
    """The sentinel's median, and what a second of it showed."""
    start = host.moment()
    looks_s = [sentinel() for _ in range(_LOOKS)]
    found = between(start, host.moment())
    middle_s = float(np.median(looks_s))
    slow_s = float(np.percentile(looks_s, _SLOWEST))
    return middle_s, Seen(found.get("foreign_cores"), found.get("waited_share"), slow_s / middle_s - 1)
