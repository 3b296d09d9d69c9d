"""What a run was measured on: hardware, operating system, load, versions, commit of the code. No name, no address."""

import hashlib
import os
import platform
import re
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import benchctl
from benchctl.measuring.advice import read_setup
from benchctl.measuring.host import usable_cores

Fact = str | int | float | list[float]
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")
_COMMAND_TIMEOUT_S = 10


def machine_facts(device: str) -> dict[str, Fact]:
    """The machine as it is now. `device` is "cpu" or "cuda"; the GPU's facts are empty on a CPU."""
    gpu, driver = _gpu() if device.startswith("cuda") else ("", "")
    return {
        "hostname_hash": hashlib.sha256(platform.node().encode()).hexdigest()[:8],
        "os": platform.platform(),
        "cpu": _cpu(),
        "cores": len(usable_cores()),
        "governor": ", ".join(read_setup(usable_cores()).governors),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "gpu": gpu,
        "gpu_driver": driver,
    }


def versions() -> dict[str, str]:
    """Versions of benchctl, Python and the libraries that decide how fast a model runs."""
    found = {name: _version(name) for name in _LIBRARIES}
    return {"benchctl": benchctl.__version__, "python": platform.python_version(), **found}


def commit(folder: Path | None = None) -> str:
    """The git commit of the code that runs, with "+dirty" when tracked files have changed since; "" outside a clone.

    Only a `.git` directly in `folder` (default: where the benchctl package lies) counts: an installed benchctl inside
    somebody else's repository must not take that repository's commit for its own.
    """
    root = folder or Path(benchctl.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if not head:
        return ""
    return head + ("+dirty" if _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no") else "")


def peak_memory_bytes(device: str) -> int:
    """The most memory held so far: by the process on a CPU (it never falls), on a GPU since `reset_peak_memory`."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reserved_memory_bytes(device: str) -> int | None:
    """The most memory that torch has held of a GPU since `reset_peak_memory`, used or kept for later; None on a CPU,
    where nothing is kept apart."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.max_memory_reserved(device))


def reset_peak_memory(device: str) -> None:
    """Start a new peak on a GPU; a process cannot do that for itself."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def _cpu() -> str:
    """The processor's name as its maker writes it, or the architecture where none is told."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    facts = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", facts.read_text(), re.MULTILINE) if facts.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _gpu() -> tuple[str, str]:
    """The first GPU's name and its driver's version."""
    import torch

    if not torch.cuda.is_available():
        return "", ""
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return torch.cuda.get_device_name(), driver.splitlines()[0] if driver else ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    """What a program prints, or "" where it is missing, fails or hangs: these facts are welcome, never needed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
