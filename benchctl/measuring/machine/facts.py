"""What a run was measured on: hardware, operating system, load, versions, commit of the code. No names or addresses."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import benchctl
from benchctl.decoding.model.layers import Experts
from benchctl.decoding.model.target import Target
from benchctl.measuring.machine.host import read_setup, usable_cores

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
    libraries = {name: _version(name) for name in _LIBRARIES}
    return {"benchctl": benchctl.__version__, "python": platform.python_version(), **libraries}


def commit(folder: Path | None = None) -> str:
    """The git commit of the running code, with "+dirty" if tracked files have changed since; "" outside a clone.

    Only a `.git` directly in `folder` (default: the parent of the benchctl package) counts: a benchctl installed inside
    another repository must not report that repository's commit.
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
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reserved_memory_bytes(device: str) -> int | None:
    """The most GPU memory that torch has reserved since `reset_peak_memory`, used or cached; None on a CPU."""
    if not device.startswith("cuda"):
        return None
    return int(torch.cuda.max_memory_reserved(device))


def reset_peak_memory(device: str) -> None:
    """Start a new peak on a GPU; the peak of a process cannot be reset."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)


def _cpu() -> str:
    """The processor's name, or the architecture if the name is unknown."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return name[1].strip() if name else platform.processor() or platform.machine()


def _gpu() -> tuple[str, str]:
    """The first GPU's name and its driver's version."""
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
    """What a program prints, or "" if it is missing, fails or hangs: these facts are optional."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


@dataclass(frozen=True)
class Traffic:
    """Bytes that a step of one row at full depth reads: of weights, and of keys and values for each token before it and
    its own. 0 where that cannot be said."""

    step_bytes: int = 0
    cache_token_bytes: int = 0


def traffic_of(target: Target) -> Traffic:
    """Of a target's layers, final norm and head, each weight read once; of experts those that a token goes to. The one
    row of the embedding that a token takes is left out.

    Not said of a target with an encoder, nor of one that looks back through a window: what their caches cost does not
    grow with the text.

    A target of one layer whose weights are 1,000 numbers, a head of 500 and keys and values of 8 each in float32:
    `step_bytes` 6,000, `cache_token_bytes` 64.
    """
    if target.encoder is not None or any(block.attention.window is not None for block in target.blocks):
        return Traffic()
    step_bytes = target.final_norm.gain.nbytes + target.lm_head.weight.nbytes
    cache_token_bytes = 0
    for block in target.blocks:
        attention = block.attention
        linears = [attention.qkv, attention.out]
        norms = (block.attention_norm, block.mlp_norm, attention.query_norm, attention.key_norm)
        if isinstance(block.mlp, Experts):
            of_experts = block.mlp.gate_up.nbytes + block.mlp.down.nbytes
            step_bytes += block.mlp.router.nbytes + of_experts * block.mlp.top_k // len(block.mlp.gate_up)
        else:
            linears += [block.mlp.gate_up, block.mlp.down]
        step_bytes += sum(linear.weight.nbytes for linear in linears)
        step_bytes += sum(linear.bias.nbytes for linear in linears if linear.bias is not None)
        step_bytes += sum(norm.gain.nbytes for norm in norms if norm is not None)
        cache_token_bytes += 2 * attention.kv_heads * attention.head_dim * target.dtype.itemsize
    return Traffic(step_bytes, cache_token_bytes)
