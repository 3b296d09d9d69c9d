"""One run of a sweep, on the host and device that it has for itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from benchctl.locks import try_lock
from benchctl.sweeps.folder import finished_of, log_of, status
from benchctl.sweeps.spec import Unit

_CHILD = "from benchctl.cli.run import session; session()"  # ends with this process
_SIGNALS = 128  # exit codes of a shell whose command a signal ended are above
_POLL_S = 0.5


class Place(NamedTuple):
    """What a run has for itself: a GPU by its number or uuid, or CPU cores; ``locks`` name what it locks."""

    locks: tuple[str, ...]
    gpu: str | None = None
    cores: tuple[int, ...] = ()


def places(on_gpu: bool, per_host: int) -> list[Place]:
    """What this process may use: each visible GPU, or its cores in ``per_host`` equal sets."""
    if on_gpu:
        job = os.environ.get("SLURM_JOB_ID", "")  # Slurm may call the GPU of each of its jobs 0
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = [str(number) for number in range(_gpus())] if visible is None else visible.split(",")
        seen = takewhile(lambda gpu: gpu and not gpu.startswith("-"), gpus)  # what stands behind -1 is hidden too
        return [Place((f"gpu-{gpu}{job and f'-slurm-{job}'}",), gpu=gpu) for gpu in seen]
    cores = sorted(os.sched_getaffinity(0), reverse=True)  # other programs rather use those of low numbers
    size = max(1, len(cores) // per_host)
    sets = [tuple(cores[start : start + size]) for start in range(0, len(cores), size)][:per_host]
    return [Place(tuple(f"core-{core}" for core in each), cores=each) for each in sets]


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextmanager
def exclusive(wanted: list[Place], wait: Callable[[], None] = lambda: time.sleep(_POLL_S)) -> Iterator[Place]:
    """The first of the places that no other sweep on this host uses, held until the end; waits while all are used.

    The system releases a lock with the process that holds it, however that ends.
    """
    while True:
        for place in wanted:
            with ExitStack() as locked:
                if not all(_lock(name, locked) for name in place.locks):
                    continue
                yield place
                return
        wait()


def _lock(name: str, until: ExitStack) -> bool:
    """Whether this lock is free; then it is held until the end of ``until``."""
    path = Path(tempfile.gettempdir()) / f"benchctl-{name}.lock"
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644))
    handle = os.open(path, os.O_RDONLY)  # of another user it can only be read, which is enough
    until.callback(os.close, handle)
    return try_lock(handle)


class Settings(NamedTuple):
    """How runs are executed.

    folder     of the sweep; logs are written there
    cwd        folder that relative paths of commands start from
    attempts   how often a run is started that a signal ends or whose worker is lost
    per_host   CPU runs at the same time on one host
    scheduler  parameters of Slurm, as submitit calls them
    """

    folder: Path
    cwd: Path
    attempts: int = 3
    per_host: int = 1
    scheduler: Mapping[str, str | int] = {}


def run_unit(unit: Unit, settings: Settings) -> int:
    """Measure one run to its end, again with --resume if a signal ended it; its exit code."""
    with exclusive(places(unit.on_gpu, settings.per_host)) as place:
        code = -1  # of a run that was stopped before it began
        for _ in range(settings.attempts):
            if STOPPING.is_set():
                break
            code = measure(unit, place, settings)
            if 0 <= code < _SIGNALS:
                break
        if code == 0 or (code == 1 and status(settings.folder, unit).state == "done"):
            finished_of(settings.folder, unit).touch()
        return code


STOPPING = threading.Event()
_RUNNING: set[subprocess.Popen[bytes]] = set()


def stop_runs() -> None:
    """End the runs of this process, and start none again. What they measured is in their files."""
    STOPPING.set()
    for process in list(_RUNNING):
        process.kill()


def measure(unit: Unit, place: Place, settings: Settings) -> int:
    """Execute the command once, in a process that ends with this one; its exit code, negative for a signal."""
    environment = dict(os.environ) if place.gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": place.gpu}
    lifeline, held = os.pipe()
    try:
        with log_of(settings.folder, unit).open("ab") as log:
            command = [sys.executable, "-c", _CHILD, *unit.command[1:]]
            process = subprocess.Popen(
                command, stdin=lifeline, stdout=log, stderr=log, env=environment, cwd=settings.cwd
            )
        _RUNNING.add(process)
        if STOPPING.is_set():  # since before it was known
            process.kill()
        try:
            with suppress(ProcessLookupError):  # it has ended already
                os.sched_setaffinity(process.pid, place.cores or os.sched_getaffinity(0))
            return process.wait()
        finally:
            _RUNNING.discard(process)
    finally:
        os.close(lifeline)
        os.close(held)
