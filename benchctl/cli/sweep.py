"""`benchctl sweep`: plan many runs, execute them on one or many machines, and say what is missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.sweeps.folder import Status
    from benchctl.sweeps.spec import Unit

_FOLDER = click.Path(path_type=Path)


@click.group()
def sweep() -> None:
    """Plan many runs, and execute them on many machines: this one, a Ray cluster, or Slurm.

    \b
    Examples:
      benchctl sweep plan sweep.yaml --out jobs
      benchctl sweep run jobs
      benchctl sweep status jobs
      benchctl compare 'jobs/results/*.jsonl'
    """


@sweep.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the sweep.")
def plan(spec: Path, out: Path) -> None:
    """Write one command line for each run: a model, device, family of methods and session.

    \b
    Example of SPEC, where `models` and `run` take the options of `benchctl run`:
      models:
        - {model: smollm2, weights: float16}
        - {model: ref-dense}
      families:
        drafting: [two_model, "suffix[draft_tokens=4]"]
        leaving: [early_exit, deed]
      devices: [cpu]
      sessions: 3
      run: {suite: [koala, mt-bench], limit: 20}

    \b
    Examples:
      benchctl sweep plan sweep.yaml --out jobs
      xargs -P 1 -d '\\n' -n 1 bash -c < jobs/commands.txt
    """
    from benchctl.sweeps.folder import write_commands
    from benchctl.sweeps.spec import read_spec, units

    planned = units(read_spec(spec), out.absolute())
    for unit in planned:
        _check(unit)
    path = write_commands(out.absolute(), planned)
    click.echo(f"{len(planned)} runs: {path}\nNext: benchctl sweep run {out}")


def _check(unit: Unit) -> None:
    """Raises UserError unless `benchctl run` takes the command, before any model is loaded."""
    from benchctl.cli.run import run
    from benchctl.registry import ENGINES, build, build_engine, names, parse_label

    try:
        context = run.make_context("run", list(unit.command[2:]))
    except click.ClickException as error:
        raise UserError("bad_run_option", f"{unit.name}: {error.format_message()}") from error
    for label in context.params["methods"]:
        if (parsed := parse_label(label)).name in names(ENGINES):
            build_engine(parsed)
        elif parsed.name != "all":
            build(label)


@sweep.command("run")
@click.argument("folder", type=_FOLDER)
@click.option(
    "--on",
    type=click.Choice(["local", "ray", "slurm"]),
    default="local",
    show_default=True,
    help="local: this machine. ray: the cluster at RAY_ADDRESS. slurm: an array of jobs. Other hosts must see FOLDER.",
)
@click.option(
    "--per-host",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="CPU runs at the same time on one host, each with cores of its own. They share the memory's bandwidth.",
)
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Start a run at most N times if its process or host is lost. It continues where it stopped.",
)
@click.option(
    "--slurm",
    "scheduler",
    metavar="KEY=VALUE",
    multiple=True,
    help="A parameter of Slurm, such as slurm_partition=gpu or timeout_min=240. May be repeated.",
)
def run_(folder: Path, on: str, per_host: int, attempts: int, scheduler: Sequence[str]) -> None:
    """Execute the runs that are not done. A GPU, or a host's CPU, is used by one run at a time.

    Relative paths of the plan start from the current folder.

    Exit code: 0 if all runs are done; 1 if some are missing.

    \b
    Examples:
      benchctl sweep run jobs
      benchctl sweep run jobs --on ray
      benchctl sweep run jobs --on slurm --slurm slurm_partition=gpu --slurm timeout_min=240
    """
    from benchctl.sweeps.folder import finished_of, log_of, read_commands, status
    from benchctl.sweeps.on import EXECUTORS, LOST
    from benchctl.sweeps.work import Settings

    folder = folder.absolute()
    units = read_commands(folder)
    if wrong := next((text for text in scheduler if "=" not in text), None):
        raise click.BadParameter(f"{wrong} is not KEY=VALUE.", param_hint="--slurm")
    pairs = (text.partition("=") for text in scheduler)
    parameters = {key: int(value) if value.isdecimal() else value for key, _, value in pairs}
    # A run that another program executed is run again, which measures what it may lack.
    todo = [unit for unit in units if not (finished_of(folder, unit).exists() and status(folder, unit).state == "done")]
    if len(todo) < len(units):
        click.echo(f"{len(units) - len(todo)} of {len(units)} runs are done already.", err=True)
    settings = Settings(folder, Path.cwd(), attempts, per_host, parameters)
    for number, ended in enumerate(EXECUTORS[on](todo, settings), 1):
        reached = status(folder, ended.unit)
        how = f"lost ({ended.reason})" if ended.code == LOST else f"exit code {ended.code}"
        done = f"done, exit code 1: see {log_of(folder, ended.unit)}" if ended.code == 1 else "done"
        is_done = reached.state == "done" and ended.code in (0, 1)
        said = done if is_done else f"{reached.state}, {how}: {reached.message}"
        click.echo(f"{number} of {len(todo)}  {ended.unit.name}  {said}", err=True)
    _show([status(folder, unit) for unit in units], folder, as_json=False)


@sweep.command("status")
@click.argument("folder", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print all runs as JSON.")
def status_(folder: Path, as_json: bool) -> None:
    """Say which runs are done, and why others are not.

    Exit code: 0 if all runs are done; 1 if some are missing.

    \b
    Examples:
      benchctl sweep status jobs
      benchctl sweep status jobs --json
    """
    from benchctl.sweeps.folder import read_commands, status

    folder = folder.absolute()
    _show([status(folder, unit) for unit in read_commands(folder)], folder, as_json)


def _show(all_runs: Sequence[Status], folder: Path, as_json: bool) -> None:
    counts = Counter(each.state for each in all_runs)
    if as_json:
        runs = [
            {"name": each.unit.name} | {key: value for key, value in each._asdict().items() if key != "unit"}
            for each in all_runs
        ]
        click.echo(json.dumps({"runs": runs, **counts}, indent=2))
    else:
        for each in all_runs:
            if each.state != "done":
                share = "" if each.of is None else f"  {each.prompts} of {each.of} prompts"
                click.echo(f"{each.state:<10}  {each.unit.name}{share}  {each.message}".rstrip())
        click.echo(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
        if counts["done"]:
            click.echo(f"Next: benchctl compare '{folder}/results/*.jsonl'")
    if counts["done"] < len(all_runs):
        raise click.exceptions.Exit(1)
