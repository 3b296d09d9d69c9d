"""Runs a training job for the command line: what surrounds it, what it tells while it runs and at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from benchctl.registry import parse_label

if TYPE_CHECKING:
    from benchctl.training.jobs import Surroundings
    from benchctl.training.options import TrainOptions
    from benchctl.training.record import Result


def run_job(
    job: Callable[[Surroundings], Result | None], options: TrainOptions, threads: int | None, model: str = ""
) -> None:
    """Runs `job` in the processes that torchrun has started, or in this one; only the first one shows anything."""
    with surroundings(options, threads) as around:
        result = job(around)
    if result is not None:
        click.echo(_end(result, options.out, model))


@contextmanager
def surroundings(options: TrainOptions, threads: int | None) -> Iterator[Surroundings]:
    """What a job is given; while it is open, what the job tells is shown."""
    # A thread that waits for its sibling must leave the core to others; read by OpenMP when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from benchctl.cli.train.progress import TrainingDisplay
    from benchctl.measuring.clock import Clock
    from benchctl.measuring.machine.facts import commit, versions
    from benchctl.training.distributed import joined
    from benchctl.training.jobs import Surroundings, check_device
    from benchctl.training.options import Provenance
    from benchctl.training.trainer import use_threads

    use_threads(threads)
    check_device(options.device)
    provenance = Provenance(command_line(click.get_current_context()), commit(), versions())
    with (
        joined(options.device.partition(":")[0]) as world,
        TrainingDisplay(Clock(options.device), world.leads) as shown,
        ExitStack() as held,
    ):
        yield Surroundings(shown.clock, provenance, shown.progress, shown.answered, shown.notify, world, held)


def command_line(context: click.Context) -> str:
    """The command as it was typed, with the names of files and folders in place of their paths."""
    words = ["benchctl", *map(_label, context.command_path.split(" ")[1:])]
    for parameter in context.command.params:
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE:
            words += _typed(parameter, context.params[str(parameter.name)])
    return " ".join(words)


def _typed(parameter: click.Parameter, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [] if parameter.name == "resume" else [(parameter.opts if value else parameter.secondary_opts)[0]]
    values = value if isinstance(value, tuple) else (value,)
    return [f"{parameter.opts[0]} {_name(each)}" for each in values]


def _label(word: str) -> str:
    """A label with the name of its modules in place of their path; any other word as it is."""
    return parse_label(word).without_places.text if "[" in word else word


def _name(value: Any) -> str:
    """Nothing of where things lie on this machine."""
    return Path(value).resolve().name if isinstance(value, Path) or Path(str(value)).exists() else str(value)


def _end(result: Result, out: Path, model: str) -> str:
    lines = [f"Wrote {out}: {result.parameters:,} parameters."]
    for name, held in result.held_out.items():
        measures = ", ".join(f"{key} {tally.share:.3f}" for key, tally in held.items())
        lines.append(fill(f"{name}: {measures}", 80, initial_indent="  ", subsequent_indent="    "))
    return "\n".join([*lines, "Use it with:", f"  {result.use.format(folder=out, model=model)}"])
