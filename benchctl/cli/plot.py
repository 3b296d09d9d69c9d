"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

from pathlib import Path

import click


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

    Runs that may not be compared, because a setting differs, get a panel each.

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
    groups = compare(read_files(files or ("results/*.jsonl",)))
    plots.pareto(groups, out)
    tell_cautions(groups)
    click.echo(f"Plot: {out}")
