"""The clock that every measurement reads, and the only door to time."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

_OVERSHOOT_S = 1e-4  # what a short sleep may take longer than asked, as seen on Linux


class Clock:
    """Seconds that never run backwards, with the device's queued work waited for.

    A step ends when its tokens have reached the host, but work queued behind them (a cache being written) would still
    run on a GPU and be charged to the next step; waiting before each reading charges it where it belongs.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._wait = _wait_for(device)

    def __call__(self) -> float:
        """Seconds since an arbitrary moment."""
        self._wait()
        return time.perf_counter()


class Timer:
    """Lets a transfer of limited bandwidth take its time (see decoding.tiers.Timer). It waits for no device's work."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment, of the same clock as Clock's."""
        return time.perf_counter()

    def wait_until(self, moment_s: float) -> None:
        """Return at this moment: asleep for most of the time, then looking again and again, as sleep overshoots."""
        while (left_s := moment_s - time.perf_counter()) > 0:
            time.sleep(max(left_s - _OVERSHOOT_S, 0.0))


def utc_now() -> datetime:
    """The present moment, in UTC, for names and headers; never for measuring."""
    return datetime.now(UTC)


def _wait_for(device: str) -> Callable[[], None]:
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)
