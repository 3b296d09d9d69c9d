"""`benchctl compare`: tables of the figures in results files."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
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
def compare(files: tuple[str, ...], format: Format, over: str | None) -> None:
    """Compare the methods in results files, each with the baseline measured beside it.

    Runs of the same target, prompts, settings and machine are taken together, a file counting as a session. Others
    are shown as groups of their own, with the setting that differs.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare 'results/*.jsonl' --format md > table.md
      benchctl compare results/first.jsonl --over 'two_model[draft_tokens=5]'
    """
    from benchctl.analysis.comparison import compare as compare_runs
    from benchctl.analysis.comparison import over as set_over
    from benchctl.analysis.report import render
    from benchctl.cli.inputs import read_files, tell_cautions

    found = read_files(files)
    groups = compare_runs([set_over(file, over) for file in found] if over else found)
    click.echo(render(groups, format, get_terminal_size().columns))
    if format == "csv":
        tell_cautions(groups)
