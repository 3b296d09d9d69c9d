"""The clock of every measurement; the only module that imports time.

Functions of `time` are bound here when benchctl is imported: what a plug-in puts in their place later changes nothing.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter, process_time, sleep, time

wall_s = time  # seconds since 1970, to order generations and compare their times with, never for measuring one
cpu_s = process_time  # seconds of processor time of this process, all its threads together
_OVERSHOOT_S = 1e-4  # of a short sleep, measured on Linux


class Clock:
    """Monotonic seconds; before each reading it waits for the work queued on the device.

    A step ends when its tokens are on the host, but a GPU may still run work queued after them, such as writing the
    cache. Without waiting, that work would count for the next step.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._wait: Callable[[], None] = lambda: None
        if device.startswith("cuda"):
            import torch

            self._wait = lambda: torch.cuda.synchronize(device)

    def __call__(self) -> float:
        """Seconds since an arbitrary moment."""
        self._wait()
        return perf_counter()


class Timer:
    """Times transfers of limited bandwidth (see decoding.experts.offload.Timer), without waiting for a device."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment, of the same clock as Clock's."""
        return perf_counter()

    def wait_until(self, moment_s: float) -> None:
        """Return at this moment: sleep, then poll, because sleep overshoots."""
        while (left_s := moment_s - perf_counter()) > 0:
            sleep(max(left_s - _OVERSHOOT_S, 0.0))


def utc_now() -> datetime:
    """The current time in UTC, for names and headers, never for measuring."""
    return datetime.now(UTC)
