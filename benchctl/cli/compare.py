"""`benchctl compare`: tables of the figures in results files."""

from __future__ import annotations

from collections.abc import Mapping
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.analysis.gates import Requirement
    from benchctl.analysis.report import Format


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "--format",
    "format",
    type=click.Choice(["table", "md", "csv", "json"]),
    default="table",
    show_default=True,
    help="table for the terminal, md for Markdown; csv and json have every figure, with its interval, unrounded.",
)
@click.option(
    "--over",
    metavar="LABEL",
    help="Set times against this method, and acceptance rates too, as differences, and leave the baseline out; "
    "verdicts and token agreement stay those with the baseline.",
)
@click.option(
    "--overlap",
    is_flag=True,
    help="Also ROUGE-L and chrF of the answers to the baseline's, which takes milliseconds for each pair that differs.",
)
@click.option(
    "--acceptance",
    is_flag=True,
    help="Show instead what methods that draft accept, under all names: by position and how many tokens a step too.",
)
@click.option(
    "--floor",
    metavar="FILE",
    help="What `benchctl doctor --aa --out` wrote: no difference in speed is called one below its least detectable.",
)
@click.option(
    "--require",
    type=click.Choice(["identical", "tie", "numeric", "lossless"]),
    help="Exit with 1 unless all methods of the run answered all prompts, and all answers have this verdict or a "
    "stricter one; lossless also asks for the claim to be.",
)
@click.option(
    "--baseline",
    "earlier",
    multiple=True,
    metavar="FILE",
    help="Results of an earlier run, whose speed-ups --fail-below is about. May be repeated, for its sessions.",
)
@click.option(
    "--fail-below",
    type=click.FloatRange(0, min_open=True),
    metavar="RATIO",
    help="Exit with 1 if a method became slower than in --baseline beyond chance (the interval of the part of its "
    "speed-up that it keeps lies below 1) and the estimate of that part is below RATIO.",
)
@click.pass_context
def compare(
    context: click.Context,
    files: tuple[str, ...],
    format: Format,
    over: str | None,
    overlap: bool,
    acceptance: bool,
    floor: str | None,
    require: Requirement | None,
    earlier: tuple[str, ...],
    fail_below: float | None,
) -> None:
    """Compare the methods in results files, each with the baseline measured beside it.

    Runs of the same target, prompts, settings and machine are taken together, a file counting as a session. Others
    are shown as groups of their own, with the setting that differs.

    Exit code: 0, 1 where --require or --fail-below is broken, 2 where runs cannot be compared (or for wrong usage), 3
    for files that hold what cannot be true.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare 'results/*.jsonl' --format md > table.md
      benchctl compare results/first.jsonl --over 'two_model[draft_tokens=5]'
      benchctl compare results/lossy.jsonl --overlap
      benchctl compare results/first.jsonl --acceptance
      benchctl compare results/new.jsonl --require lossless --baseline results/old.jsonl --fail-below 0.95
    """
    from benchctl.analysis.aa import read_floor
    from benchctl.analysis.acceptance_table import render_acceptance
    from benchctl.analysis.comparison import compare as compare_runs
    from benchctl.analysis.comparison import over as set_over
    from benchctl.analysis.report import render
    from benchctl.analysis.text_overlap import with_overlap
    from benchctl.cli.gates import FAILED, check_comparable, missed, regressions
    from benchctl.cli.inputs import read_files, tell_cautions, tell_floor

    _check_together(context.params)
    least = read_floor(floor) if floor else None
    effect = least.effect if least else 0.0
    before, groups = (
        compare_runs([set_over(file, over) if over else file for file in read_files(names)]) if names else ()
        for names in (earlier, files)
    )
    groups = with_overlap(groups) if overlap else groups
    if acceptance:
        click.echo(render_acceptance(groups, format))
    else:
        click.echo(render(groups, format, get_terminal_size().columns, effect))
    if format == "csv":
        tell_cautions(groups)
    if least:
        tell_floor(groups, least)
    check_comparable(groups)
    failures = [*missed(groups[0], require), *regressions(groups[0], before, fail_below, effect)]
    context.exit(FAILED if failures else 0)


def _check_together(options: Mapping[str, object]) -> None:
    """Refuses options that need others, or that would be ignored beside them."""
    gated = options["fail_below"] is not None
    if bool(options["earlier"]) != gated:
        raise click.UsageError("--baseline FILE and --fail-below RATIO need each other.")
    if options["acceptance"] and options["overlap"]:
        raise click.UsageError("--acceptance shows no overlap: leave one of the two out.")
    if options["floor"] and not gated and (options["acceptance"] or options["format"] == "csv"):
        raise click.UsageError("--acceptance and csv call no difference in speed one: leave --floor out.")
    if options["over"] and options["require"]:
        raise click.UsageError("--require is about the answers beside the baseline's: leave --over out.")
