"""The bandwidth of a CPU's memory, taken by a process of its own: `python -m benchctl.measuring.machine.apart THREADS`.

What the measurement holds, several times the largest cache, would stay in the peak memory of the process, which never
falls, and so in the figures of every method.
"""

from __future__ import annotations

import subprocess
import sys

import torch

from benchctl.measuring.clock import Clock
from benchctl.measuring.machine.sentinel import memory_bandwidth_mb_s

_TIMEOUT_S = 60.0


def bandwidth_mb_s(device: str, threads: int) -> float | None:
    """See sentinel.memory_bandwidth_mb_s. A GPU's is taken here, as it gives its memory back. None where the other
    process came to nothing: the fact is missing then."""
    if device.startswith("cuda"):
        return memory_bandwidth_mb_s(Clock(device), device)
    command = (sys.executable, "-m", "benchctl.measuring.machine.apart", str(threads))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    sys.stdout.write(f"{memory_bandwidth_mb_s(Clock())}\n")
