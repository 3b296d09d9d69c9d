"""A session without a model: its rows take the times and meet the conditions that a function of the task chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, failed

from benchctl.measuring.plan import Job, Plan, Task
from benchctl.measuring.session import Progress, Report, Session
from benchctl.measuring.validity import Watch
from benchctl.records.schema import Row, Run
from benchctl.records.writer import Writer

if TYPE_CHECKING:
    from benchctl.measuring.measure import Measurer

LABELS = (BASELINE, DRAFTED)


@dataclass(frozen=True)
class Met:
    """What a generation took, and met; `error` where it failed."""

    conditions: dict[str, float]
    took_s: float = 1.0
    error: str = ""


@dataclass
class FakeMeasurer:
    """Stands for a Measurer; keeps the tasks that it was asked for."""

    meet: Callable[[Task], Met]
    batched: bool = False
    measured: list[Task] = field(default_factory=list)

    def begin(self) -> None:
        """Nothing to begin."""

    def recall(self, task: Task, row: Row, goes_on: bool = False) -> None:
        """Nothing to remember."""

    def measure(self, job: Job) -> tuple[Row, ...]:
        self.measured += job
        met = self.meet(job[0])
        batch = tuple(task.prompt.id for task in job) if self.batched else ()
        return tuple(row_of(task, met, batch) for task in job)


def row_of(task: Task, met: Met, batch: tuple[str, ...] = ()) -> Row:
    """One token that took so long."""
    plain = replace(
        baseline_row(task.prompt.id, tokens=1, ttft_s=met.took_s),
        turn=task.turn,
        label=task.label,
        repeat=task.repeat,
        order=task.order,
        batch=batch,
    )
    if met.error:
        return failed(plain, met.error)
    phases = {"host": ()} if task.mode == "profile" else {}
    return replace(plain, mode=task.mode, phases=phases, conditions=met.conditions)


def run_of(plan: Plan) -> Run:
    """The first line of such a file."""
    return replace(RUN, repeats=plan.repeats, modes=plan.modes, batch_size=plan.batch_size)


def measure(
    path: Path,
    plan: Plan,
    meet: Callable[[Task], Met],
    watch: Watch | None,
    report: Report = lambda event: None,
    *,
    resume: bool = True,
) -> tuple[Session, list[Task]]:
    """Begin a file, or go on with it; the session when it is done, and the tasks that were measured in it."""
    measurer = FakeMeasurer(meet, batched=plan.batch_size > 1)
    with Writer(path, run_of(plan), resume=resume) as writer:
        session = Session(plan, cast("Measurer", measurer), writer, report, watch)
        session.measure(0)
    return session, measurer.measured


def ended(events: Sequence[object]) -> tuple[int, int]:
    """How far a run had come when it last said so; no step of it may have been beyond its end."""
    told = [event for event in events if isinstance(event, Progress)]
    assert all(event.done <= event.total for event in told)
    return told[-1].done, told[-1].total
