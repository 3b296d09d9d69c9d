"""The machine's speed by work of known size: a reference kernel around every generation, memory bandwidth, FLOP rate.

`python -m benchctl.measuring.machine.speed THREADS` prints the bandwidth of the CPU's memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine.host import read_text

_TIMEOUT_S = 60.0
# 4 MiB of float32, beyond a core's own caches, as a layer's weights are; 64 MiB, beyond most GPUs' cache.
_CPU_WIDTH, _GPU_WIDTH = 1024, 4096
_ROUND_S = 1.5e-3
_ROUNDS = 3
_LEAST_BYTES = 1 << 26
_CPU_MOST_BYTES, _GPU_BYTES = 1 << 30, 1 << 28
_GPU_SUMS = 8  # so that launching and waiting take little of the time
_CACHES = 4  # times the largest cache, so that one pass leaves little for the next
_PASSES = 5
_CPU_MATRIX, _GPU_MATRIX = 768, 8192


class Sentinel:
    """The reference kernel: one row times a matrix, like most of a decoding step, repeated for about 1.5 ms.

    The number of products is fixed at creation, so all times are of the same work. `__call__` gives the seconds of one
    product in the best of three rounds: a slower clock or lasting load slows all three, a short interruption of the
    kernel itself does not count. It holds no memory between calls, since that would count as the generation's.
    """

    def __init__(self, clock: Callable[[], float], device: str = "cpu") -> None:
        self._clock, self._device = clock, device
        self._width = _GPU_WIDTH if device.startswith("cuda") else _CPU_WIDTH
        self._products = 1
        product_s = self._best_s(_PASSES)
        self._products = max(1, round(_ROUND_S / product_s)) if product_s > 0 else 1

    def __call__(self) -> float:
        """Seconds of one product."""
        return self._best_s(_ROUNDS) / self._products

    @torch.inference_mode()
    def _best_s(self, rounds: int) -> float:
        row = torch.ones(1, self._width, device=self._device)
        matrix = torch.full((self._width, self._width), 1 / self._width, device=self._device)
        times_s = []
        for _ in range(rounds):
            started_s = self._clock()
            for _ in range(self._products):
                torch.mm(row, matrix)
            times_s.append(self._clock() - started_s)
        return min(times_s)


@torch.inference_mode()
def memory_bandwidth_mb_s(clock: Callable[[], float], device: str = "cpu", root: Path = Path("/")) -> float:
    """Megabytes (10^6) per second that torch's threads read from memory, in the best of five passes.

    A pass sums numbers that do not fit into any cache: it reads all and writes almost nothing. GPU memory is freed
    afterwards, so that it is not counted.
    """
    on_gpu = device.startswith("cuda")
    size_bytes, sums = (_GPU_BYTES, _GPU_SUMS) if on_gpu else (_beyond_caches(root), 1)
    took_s = _sums_s(clock, torch.ones(size_bytes // 4, dtype=torch.float32, device=device), sums)
    if on_gpu:
        torch.cuda.empty_cache()
    return sums * size_bytes / took_s / 1e6


@torch.inference_mode()
def flop_rate(clock: Callable[[], float], dtype: torch.dtype = torch.float32, device: str = "cpu") -> float:
    """Floating-point operations a second of a product of two square matrices, in the best of five: 2 n^3 of them."""
    size = _GPU_MATRIX if device.startswith("cuda") else _CPU_MATRIX
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * float(size) ** 3 / _best_s(clock, lambda: torch.mm(left, right))


def _sums_s(clock: Callable[[], float], numbers: Tensor, sums: int) -> float:
    return _best_s(clock, lambda: [numbers.sum() for _ in range(sums)])


def _best_s(clock: Callable[[], float], work: Callable[[], object]) -> float:
    """Seconds of the fastest of _PASSES runs, after one that touches the memory first."""
    work()
    times_s = []
    for _ in range(_PASSES):
        started_s = clock()
        work()
        times_s.append(clock() - started_s)
    return min(times_s)


def _beyond_caches(root: Path) -> int:
    """A size several times that of the largest cache, which Linux writes as "32768K"."""
    texts = [read_text(path) for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    largest = max((int(text[:-1]) << 10 for text in texts if text[:-1].isdigit() and text.endswith("K")), default=0)
    return min(max(_CACHES * largest, _LEAST_BYTES), _CPU_MOST_BYTES)


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


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    sys.stdout.write(f"{memory_bandwidth_mb_s(Clock())}\n")
