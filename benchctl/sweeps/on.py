"""Where the runs of a sweep are executed: this machine, a Ray cluster, Slurm. Each only places and repeats runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from benchctl.errors import UserError
from benchctl.sweeps.spec import Unit
from benchctl.sweeps.work import STOPPING, Settings, places, run_unit, stop_runs

LOST = -1  # instead of an exit code
_TIMEOUT_MIN = 24 * 60  # of a Slurm job, which submitit would end after 5 minutes


class Ended(NamedTuple):
    """A run that ended with this exit code, or was LOST with its worker for this ``reason``."""

    unit: Unit
    code: int
    reason: str = ""


Executor = Callable[[Sequence[Unit], Settings], Iterator[Ended]]


def local(units: Sequence[Unit], settings: Settings) -> Iterator[Ended]:
    """Run by as many threads as this machine has places. Raises UserError for runs that have no place here."""
    for unit in units:
        found = places(unit.on_gpu, settings.per_host)
        if not found:
            raise UserError("no_gpu", "no GPU is visible. Plan with `devices: [cpu]`, or run this where one is.")
        if not unit.on_gpu and unit.threads > min(len(place.cores) for place in found):
            raise UserError(
                "too_few_cores",
                f"{unit.name} has {unit.threads} threads, and a run has {len(found[0].cores)} cores here. Plan with "
                "fewer threads, or use a smaller --per-host.",
            )
    workers = max((len(places(unit.on_gpu, settings.per_host)) for unit in units), default=1)
    pool = ThreadPoolExecutor(workers)
    try:
        futures = {pool.submit(run_unit, unit, settings): unit for unit in units}
        for future in as_completed(futures):
            yield _ended(futures[future], future.result)
    except BaseException:
        stop_runs()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        STOPPING.clear()


def _ended(unit: Unit, result: Callable[[], int]) -> Ended:
    """A run that raises is not the end of the sweep."""
    try:
        return Ended(unit, int(result()))
    except Exception as error:
        return Ended(unit, LOST, f"{type(error).__name__}: {error}")


def ray(units: Sequence[Unit], settings: Settings) -> Iterator[Ended]:
    """Run as tasks of the Ray cluster at RAY_ADDRESS, or of one that is started here."""
    library = _imported("ray", "ray")
    os.environ.update(RAY_worker_niceness="0")  # with Ray's default, 15, every other program delays a run
    library.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    try:
        # Tasks for a CPU ask for a host's share, since the lock would let them wait where others are free.
        cores = [int(node["Resources"].get("CPU", 0)) for node in library.nodes() if node["Alive"]]
        share = min(filter(None, cores), default=1)  # a head node may offer none
        if any(unit.on_gpu for unit in units) and not library.cluster_resources().get("GPU"):
            raise UserError("no_gpu", "runs of this sweep need a GPU, and the Ray cluster has none.")
        task = library.remote(max_retries=settings.attempts - 1)(run_unit)
        futures = {
            task.options(
                num_cpus=unit.threads if unit.on_gpu else max(unit.threads, share // settings.per_host),
                num_gpus=int(unit.on_gpu),
            ).remote(unit, settings): unit
            for unit in units
        }
        waiting = list(futures)
        while waiting:
            (done,), waiting = library.wait(waiting)
            yield _ended(futures[done], partial(library.get, done))
    finally:
        library.shutdown()


def slurm(units: Sequence[Unit], settings: Settings, cluster: str = "slurm") -> Iterator[Ended]:
    """Run as arrays of Slurm jobs, one for GPUs and one for whole hosts. Raises UserError without Slurm."""
    submitit = _imported("submitit", "slurm")
    try:
        executor = submitit.AutoExecutor(settings.folder / "logs", cluster=cluster)
    except RuntimeError as error:
        raise UserError("no_slurm", f"--on slurm: {error}. Run this on a host of the cluster.") from error
    jobs: dict[Any, Unit] = {}
    for on_gpu in (False, True):
        if chosen := [unit for unit in units if unit.on_gpu == on_gpu]:
            cores = max(unit.threads for unit in chosen)
            executor.update_parameters(name="benchctl", gpus_per_node=int(on_gpu), cpus_per_task=cores)
            whole_host = {} if on_gpu or settings.per_host > 1 else {"slurm_exclusive": True}
            executor.update_parameters(**{"timeout_min": _TIMEOUT_MIN, **whole_host, **settings.scheduler})
            jobs |= dict(zip(executor.map_array(_Job(settings), chosen), chosen, strict=True))
    for job in submitit.helpers.as_completed(list(jobs)):
        yield _ended(jobs[job], job.result)


class _Job:
    """The work of one Slurm job. submitit calls `checkpoint` when Slurm preempts it, and submits what it returns."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, unit: Unit) -> int:
        # Slurm gives a job its cores, so none are divided again.
        return run_unit(unit, self._settings._replace(per_host=1))

    def checkpoint(self, unit: Unit) -> Any:
        return _imported("submitit", "slurm").helpers.DelayedSubmission(self, unit)


EXECUTORS: Mapping[str, Executor] = {"local": local, "ray": ray, "slurm": slurm}


def _imported(library: str, extra: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        raise UserError(
            "package_missing", f"--on {extra} needs the package {library}: pip install 'benchctl[{extra}]'"
        ) from error
