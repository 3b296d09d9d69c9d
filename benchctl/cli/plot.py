"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.recordfile import RunFile


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...")
@click.option(
    "--pareto", is_flag=True, help="Speed-up against token agreement, with the methods no other beats in both."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("results/pareto.png"),
    show_default=True,
    help="Picture to write: .png, .svg or .pdf.",
)
def plot(files: tuple[str, ...], pareto: bool, out: Path) -> None:
    """Plot the methods in results files (by default results/*.jsonl), all suites together.

    Runs that may not be compared, because a setting differs, get a panel each. Sampled runs are left out: their answers
    cannot be compared token by token.

    \b
    Examples:
      benchctl plot --pareto
      benchctl plot --pareto results/first.jsonl --out first.svg
    """
    if not pareto:
        raise click.UsageError("say what to plot: --pareto.")
    from benchctl.analysis import plots
    from benchctl.analysis.comparison import compare
    from benchctl.cli.inputs import read_files, tell_cautions

    plots.check_image(out)
    groups = compare(_greedy(read_files(files or ("results/*.jsonl",))))
    plots.pareto(groups, out)
    tell_cautions(groups)
    click.echo(f"Plot: {out}")


def _greedy(files: list[RunFile]) -> list[RunFile]:
    """The runs without sampling; all where there is none, for the plot to refuse with its reason."""
    greedy = [file for file in files if file.run.temperature == 0]
    if not greedy:
        return files
    for file in files:
        if file.run.temperature > 0:
            click.echo(f"Note: {file.path}: was sampled, so it has no token agreement and is left out.", err=True)
    return greedy
