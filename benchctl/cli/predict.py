"""`benchctl predict`: the speed-up that acceptance and costs predict beside the measured one, and on other hardware."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.analysis.predict.hardware import Extrapolation, Hardware
    from benchctl.analysis.predict.speedup import Accounts
    from benchctl.records.writer import RunFile

_MOST_SEQUENCES = 4096


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...", shell_complete=completing.files)
@click.option(
    "--hardware",
    "hardware",
    multiple=True,
    metavar="NAME|FILE.json",
    help="Also predict for this machine, by a model, from its bandwidth and FLOP rate: h100, a100, l4 ..; or a .json "
    "file with bandwidth_gb_s and tflops by dtype. May be repeated.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
    help="What --hardware computes in.  [default: as in the file]",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1, max=_MOST_SEQUENCES),
    multiple=True,
    metavar="N",
    help="How many answers --hardware decodes together, each accepting for itself. May be repeated.  [default: 1]",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, unrounded.")
def predict(
    files: tuple[str, ...], hardware: tuple[str, ...], dtype: str | None, batch_sizes: tuple[int, ...], as_json: bool
) -> None:
    """Say what speed-up a method ought to have by its acceptance and its costs, and where the measured one differs.

    Costs come from profile rows (benchctl run --profile), or else from how step times follow the length of drafts.
    All figures are of decoding, prefill left out, and per token. What --hardware adds is a model, and no measurement.

    \b
    Examples:
      benchctl predict results/profiled.jsonl
      benchctl predict results/profiled.jsonl --hardware h100 --dtype bfloat16
      benchctl predict results/profiled.jsonl --hardware a100 --batch-size 1 --batch-size 32
    """
    from benchctl.analysis.predict.hardware import hardware_of
    from benchctl.analysis.predict.speedup import predict as predict_files
    from benchctl.cli.inputs import read_files
    from benchctl.cli.predict_tables import to_json, to_tables

    if dtype and not hardware:
        raise click.UsageError("--dtype says what other hardware computes in: name it with --hardware.")
    if batch_sizes and not hardware:
        raise click.UsageError("--batch-size says what other hardware decodes together: name it with --hardware.")
    machines = [hardware_of(name) for name in dict.fromkeys(hardware)]
    found = [file for file in read_files(files) if file.rows]
    accounts = predict_files(found)
    models, problems = _extrapolate(found[0], accounts, machines, dtype or "", list(dict.fromkeys(batch_sizes or (1,))))
    click.echo(to_json(found, accounts, models) if as_json else to_tables(found, accounts, machines, models))
    if problems and not models:
        raise problems[0]
    for text in dict.fromkeys(map(str, problems)):
        click.echo(f"Note: {text}", err=True)


def _extrapolate(
    file: RunFile, accounts: Accounts, machines: Sequence[Hardware], dtype: str, batch_sizes: Sequence[int]
) -> tuple[list[Extrapolation], list[UserError]]:
    """Of every method with an account; and why it cannot be said of others."""
    from benchctl.analysis.predict.hardware import extrapolate
    from benchctl.analysis.predict.speedup import Prediction

    found: list[Extrapolation] = []
    problems: list[UserError] = []
    for machine, size, account in product(machines, batch_sizes, accounts):
        if isinstance(account, Prediction):
            try:
                found.append(extrapolate(account, file.run, machine, dtype, size))
            except UserError as problem:
                problems.append(problem)
    return found, problems
