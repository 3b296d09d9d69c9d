"""Work of a known size, timed: a short piece of it around every generation tells when the machine has become slower,
longer ones tell how fast it reads memory and multiplies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchctl.measuring.machine.host import read_text

# 4 MiB of float32, beyond a core's own caches, as a layer's weights are; 64 MiB, beyond most GPUs' cache.
_CPU_WIDTH, _GPU_WIDTH = 1024, 4096
_ROUND_S = 1.5e-3
_ROUNDS = 3
_LEAST_BYTES = 1 << 26
_CPU_MOST_BYTES, _GPU_BYTES = 1 << 30, 1 << 28
_GPU_SUMS = 8  # so that starting and waiting for them is nothing beside their work
_CACHES = 4  # times the largest cache, so that little of what one pass leaves there helps the next
_PASSES = 5
_CPU_MATRIX, _GPU_MATRIX = 768, 8192


class Sentinel:
    """One row times a matrix, as often as takes about 1.5 ms: what a decoding step mostly is.

    The number of products is fixed when it is made, so that all its times are those of the same work. `__call__` gives
    the seconds of one product in the best of three rounds: a slower clock, a fuller memory bus or a neighbour that
    stays slow all three, while one interruption of the sentinel itself says nothing about the generation beside it.
    Between two looks it holds no memory, which would be counted as the generation's.
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
    """Megabytes (10^6) a second that the threads torch is set to read from memory, in the best of five passes.

    A pass sums up numbers that do not fit into any cache: it reads all of them and writes next to nothing. What it took
    of a GPU's memory is given back, so that nobody counts it.
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
    """Seconds of the fastest of some goes; the first one, which meets untouched memory, does not count."""
    work()
    times_s = []
    for _ in range(_PASSES):
        started_s = clock()
        work()
        times_s.append(clock() - started_s)
    return min(times_s)


def _beyond_caches(root: Path) -> int:
    """Bytes that exceed the largest cache by far, as Linux tells its size ("32768K")."""
    texts = [read_text(path) for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    largest = max((int(text[:-1]) << 10 for text in texts if text[:-1].isdigit() and text.endswith("K")), default=0)
    return min(max(_CACHES * largest, _LEAST_BYTES), _CPU_MOST_BYTES)
