"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.recordfile import RunFile


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...")
@click.option("--pareto", is_flag=True, help="Speed-up against fidelity, with the methods no other beats in both.")
@click.option("--alignment", is_flag=True, help="How early m2r2's two streams align; FILES are folders of its modules.")
@click.option(
    "--fidelity",
    type=click.Choice(["token-agreement", "exact-match"]),
    default="token-agreement",
    show_default=True,
    help="What --pareto takes for fidelity; exact-match needs answers that can be checked, as in --bench tasks.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Picture to write: .png, .svg or .pdf.  [default: results/pareto.png or results/alignment.png]",
)
def plot(files: tuple[str, ...], pareto: bool, alignment: bool, fidelity: str, out: Path | None) -> None:
    """Plot the methods in results files (by default results/*.jsonl), all suites together.

    Runs that may not be compared, because a setting differs, get a panel each. Sampled runs have no token agreement,
    and are left out of its plot.

    \b
    Examples:
      benchctl plot --pareto
      benchctl plot --pareto results/first.jsonl --out first.svg
      benchctl plot --pareto --fidelity exact-match results/tasks.jsonl
      benchctl plot --alignment my-m2r2 --out alignment.png
    """
    if pareto == alignment:
        raise click.UsageError("say what to plot: --pareto or --alignment.")
    if alignment:
        _plot_alignment(files, out or Path("results/alignment.png"))
    else:
        _plot_pareto(files, fidelity == "token-agreement", out or Path("results/pareto.png"))


def _plot_alignment(folders: tuple[str, ...], out: Path) -> None:
    from benchctl.analysis.alignment import read_alignment
    from benchctl.analysis.plot_alignment import plot_alignment

    if not folders:
        raise click.UsageError("name the folders of trained modules to plot, as benchctl train m2r2 wrote them.")
    plot_alignment([read_alignment(Path(folder)) for folder in folders], out)
    click.echo(f"Plot: {out}")


def _plot_pareto(files: tuple[str, ...], by_tokens: bool, out: Path) -> None:
    from benchctl.analysis import plots
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.metrics import EXACT_MATCH, TOKEN_AGREEMENT
    from benchctl.cli.inputs import read_files, tell_cautions

    plots.check_image(out)
    found = read_files(files or ("results/*.jsonl",))
    groups = compare(_greedy(found) if by_tokens else found)
    plots.pareto(groups, out, TOKEN_AGREEMENT if by_tokens else EXACT_MATCH)
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
