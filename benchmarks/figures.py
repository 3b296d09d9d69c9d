"""What a command takes beside what it may take: seconds by the clock and of the processor, and memory."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 0.02
_MOST, _KB = re.compile(r"VmHWM:\s*(\d+) kB"), 1024


@dataclass(frozen=True)
class Took:
    """One run of a command, with the processes that it started: seconds by the clock, of the processor, and the most
    memory that each held, in sum: they may not have held it at one time, and what they share counts for each."""

    wall_s: float
    user_s: float = 0.0
    system_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Figure:
    """What `command` took, run by run, and what it may take at most. `of` is what it was done to."""

    command: str
    of: str
    most_s: float
    took: tuple[Took, ...]
    most_bytes: float = float("inf")

    @property
    def wall_s(self) -> float:
        """The median: what else the machine did is in the slowest."""
        return statistics.median(one.wall_s for one in self.took)

    @property
    def peak_bytes(self) -> int:
        """The most of all runs: memory that was needed once is needed."""
        return max(one.peak_bytes for one in self.took)

    @property
    def is_met(self) -> bool:
        return self.wall_s < self.most_s and self.peak_bytes < self.most_bytes


def took(arguments: Sequence[str]) -> Took:
    """Run a command of benchctl by itself. Raises ChildProcessError where it fails."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "benchctl", *arguments], stdout=subprocess.DEVNULL)
    with _Watch(process.pid) as watch:
        _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ChildProcessError(f"benchctl {arguments[0]} ended with exit code {process.returncode}")
    alone = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # which counts what held it before it began, too
    return Took(wall_s, used.ru_utime, used.ru_stime, watch.most_bytes or alone)


class _Watch:
    """Looks now and then at what memory a process and those that it started have held, where there is /proc."""

    def __init__(self, process: int) -> None:
        self.most_bytes = 0
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        program = _program(os.getpid())
        while not self._ended.wait(_LOOK_S):
            with suppress(OSError):
                self.most_bytes = max(self.most_bytes, _held_bytes(self._process, program))


def _held_bytes(process: int, starter: bytes) -> int:
    """0 as long as it is still a copy of the program that starts it. Raises OSError for one that has ended."""
    program = _program(process)
    status = Path(f"/proc/{process}/status").read_text()
    most = _MOST.search(status)  # none once it is ending
    held = _KB * int(most[1]) if most and program != starter else 0
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return held + sum(_held_bytes(int(child), program) for child in children)


def _program(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()
