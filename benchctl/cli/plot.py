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
@click.option("--crossover", is_flag=True, help="Speed-up against batch size, from runs of several --batch-size.")
@click.option("--alignment", is_flag=True, help="How early m2r2's two streams align; FILES are folders of its modules.")
@click.option(
    "--y",
    "height",
    type=click.Choice(["agreement", "verdict", "quality", "exact", "target-agreement", "rouge-l", "chrf"]),
    default="agreement",
    show_default=True,
    help="What --pareto sets speed against: token agreement, the share of answers that are the target's own, a judge's "
    "score, exact match (as in --bench tasks), the target's own agreement after the first divergence too, or overlap "
    "of the texts.",
)
@click.option("--judge", default="", metavar="NAME", help="Whose score: the name that compare shows, or a part of it.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Picture to write: .png, .svg or .pdf.  [default: results/ and the name of the plot, .png]",
)
def plot(
    files: tuple[str, ...],
    pareto: bool,
    crossover: bool,
    alignment: bool,
    height: str,
    judge: str,
    out: Path | None,
) -> None:
    """Plot the methods in results files (by default results/*.jsonl), all suites together.

    Runs that may not be compared, because a setting differs, get a panel each. Sampled runs have no token agreement,
    and are left out of its plot.

    \b
    Examples:
      benchctl plot --pareto
      benchctl plot --pareto results/first.jsonl --out first.svg
      benchctl plot --pareto --y exact results/tasks.jsonl
      benchctl plot --pareto --y quality --judge gpt results/first.jsonl
      benchctl plot --crossover results/batches-*.jsonl --out crossover.png
      benchctl plot --alignment my-m2r2 --out alignment.png
    """
    if pareto + crossover + alignment != 1:
        raise click.UsageError("say what to plot: --pareto, --crossover or --alignment.")
    if judge and height != "quality":
        raise click.UsageError("--judge needs --y quality.")
    if alignment:
        _plot_alignment(files, out or Path("results/alignment.png"))
    elif crossover:
        _plot_crossover(files, out or Path("results/crossover.png"))
    else:
        _plot_pareto(files, height, judge, out or Path("results/pareto.png"))


def _plot_alignment(folders: tuple[str, ...], out: Path) -> None:
    from benchctl.analysis.alignment import read_alignment
    from benchctl.analysis.plot_alignment import plot_alignment

    if not folders:
        raise click.UsageError("name the folders of trained modules to plot, as benchctl train m2r2 wrote them.")
    plot_alignment([read_alignment(Path(folder)) for folder in folders], out)
    click.echo(f"Plot: {out}")


def _plot_crossover(files: tuple[str, ...], out: Path) -> None:
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.plot_crossover import plot_crossover
    from benchctl.analysis.plots import check_image
    from benchctl.cli.inputs import read_files, tell_cautions

    check_image(out)
    groups = compare(read_files(files or ("results/*.jsonl",)))
    plot_crossover(groups, out)
    tell_cautions(groups)
    click.echo(f"Plot: {out}")


def _plot_pareto(files: tuple[str, ...], name: str, judge: str, out: Path) -> None:
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.faithfulness import OVERLAP_METRICS
    from benchctl.analysis.heights import HEIGHTS, OF_BASELINE_TEXT, height
    from benchctl.analysis.judged import with_judgements
    from benchctl.analysis.plot_pareto import pareto
    from benchctl.analysis.plots import check_image
    from benchctl.analysis.text_overlap import with_overlap
    from benchctl.cli.inputs import read_files, tell_cautions

    check_image(out)
    found, overlap = read_files(files or ("results/*.jsonl",)), HEIGHTS[name] in OVERLAP_METRICS
    groups = compare(_greedy(found) if HEIGHTS[name] in OF_BASELINE_TEXT else found, texts=overlap)
    groups = with_overlap(groups) if overlap else with_judgements(groups)
    pareto(groups, out, height(name, groups, judge))
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
