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
def compare(files: tuple[str, ...], format: Format) -> None:
    """Compare the methods in results files, each with the baseline measured beside it.

    Runs of the same target, prompts, settings and machine are taken together, a file counting as a session. Others
    are shown as groups of their own, with the setting that differs.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare 'results/*.jsonl' --format md > table.md
    """
    from benchctl.analysis.comparison import compare as compare_runs
    from benchctl.analysis.report import render
    from benchctl.cli.inputs import read_files, tell_cautions

    groups = compare_runs(read_files(files))
    click.echo(render(groups, format, get_terminal_size().columns))
    if format == "csv":
        tell_cautions(groups)
