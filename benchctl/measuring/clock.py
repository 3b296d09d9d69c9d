"""The clock of every measurement; the only module that imports time."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

_OVERSHOOT_S = 1e-4  # of a short sleep, measured on Linux


class Clock:
    """Monotonic seconds; before each reading it waits for the work queued on the device.

    A step ends when its tokens are on the host, but a GPU may still run work queued after them, such as writing the
    cache. Without waiting, that work would count for the next step.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._wait = _wait_for(device)

    def __call__(self) -> float:
        """Seconds since an arbitrary moment."""
        self._wait()
        return time.perf_counter()


class Timer:
    """Times transfers of limited bandwidth (see decoding.experts.offload.Timer), without waiting for a device."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment, of the same clock as Clock's."""
        return time.perf_counter()

    def wait_until(self, moment_s: float) -> None:
        """Return at this moment: sleep, then poll, because sleep overshoots."""
        while (left_s := moment_s - time.perf_counter()) > 0:
            time.sleep(max(left_s - _OVERSHOOT_S, 0.0))


def utc_now() -> datetime:
    """The current time in UTC, for names and headers, never for measuring."""
    return datetime.now(UTC)


def _wait_for(device: str) -> Callable[[], None]:
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)
