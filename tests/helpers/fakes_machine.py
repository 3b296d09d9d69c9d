"""A machine whose answers are chosen: the files of a Linux system, and an NVML library with one GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

TICKS = os.sysconf("SC_CLK_TCK")
HEAD = "GPU-1234"


def lay(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their path under `root`, as /proc and /sys have them: with a newline at the end."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def stat(*busy_s: float, idle_s: float = 1000.0) -> str:
    """/proc/stat in which core i was busy for busy_s[i] seconds: half as user, half stolen by a hypervisor."""
    cores = [
        f"cpu{core} {round(spent * TICKS / 2)} 0 0 {round(idle_s * TICKS)} 700 0 0 {round(spent * TICKS / 2)} 55 0"
        for core, spent in enumerate(busy_s)
    ]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *cores, "intr 5 6 7", "ctxt 8"])


def package(joules: float, name: str = "package-0", most_j: float = 100.0) -> dict[str, str]:
    """Files of a RAPL domain."""
    return {
        "name": name,
        "energy_uj": str(round(joules * 1e6)),
        "max_energy_range_uj": str(round(most_j * 1e6)),
    }


def powercap(domain: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"sys/class/powercap/{domain}/{name}": text for name, text in files.items()}


class NVMLError(Exception):
    """What the library raises for whatever a GPU does not tell."""


@dataclass
class FakeNvml:
    """The library, with the names and numbers of the real one. An answer that is an exception is raised; one that is
    missing from `answers` is a function that this version of the library lacks."""

    answers: dict[str, object] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        self.asked.append("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        if uuid != HEAD:
            raise NVMLError(f"no {uuid}")
        return "handle"

    def __getattr__(self, question: str) -> Callable[..., object]:
        if question not in self.answers:
            raise AttributeError(question)

        def answer(handle: str, *details: object) -> object:
            assert handle == "handle"
            found = self.answers[question]
            found = found[details[0]] if isinstance(found, dict) and details else found
            if isinstance(found, Exception):
                raise found
            return found

        return answer


def processes(*numbers: int) -> list[SimpleNamespace]:
    """What NVML lists of processes."""
    return [SimpleNamespace(pid=number) for number in numbers]


def healthy(others: Sequence[int] = ()) -> dict[str, object]:
    """The answers of a GPU at work: 300 W of 700, 60 °C, nothing slowed down, ourselves on it, and `others`."""
    return {
        "nvmlDeviceGetClockInfo": {1: 1980, 2: 2619},
        "nvmlDeviceGetPowerUsage": 300_000,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTemperature": {0: 60},
        "nvmlDeviceGetTemperatureThreshold": {1: 90},
        "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
        "nvmlDeviceGetComputeRunningProcesses": processes(os.getpid(), *others),
    }
