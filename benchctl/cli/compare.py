"""`benchctl compare`: tables of the figures in results files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Literal

import click

from benchctl.cli import completion as completing
from benchctl.cli.options import options_from
from benchctl.errors import UserError
from benchctl.options import setting


@dataclass(frozen=True)
class _Options:
    """The options of `benchctl compare`."""

    format: Literal["table", "brief", "md", "csv", "json"] = setting(
        "table",
        "table: all tables for the terminal. brief: one table over all suites. md: Markdown. csv, json: every figure "
        "with its interval, unrounded.",
    )
    over: str | None = setting(
        None,
        "Use this method as the baseline for speed, exact match, acceptance and degeneration. Verdicts, token "
        "agreement and the target's opinion of answers do not change.",
        metavar="LABEL",
        completion="labels",
    )
    acceptance: bool = setting(
        False, "Show only acceptance: of methods that draft, under all its names, by position and by tokens per step."
    )
    scores: tuple[str, ...] = setting(
        (),
        "Further scores of these answers; those next to each of FILES are read anyway. May be repeated. Without "
        "FILES: how far the judges of these scores agree.",
        metavar="FILE",
        completion="files",
    )


@click.command()
@click.argument("files", nargs=-1, metavar="FILES...", shell_complete=completing.files)
@options_from(_Options, "options")
def compare(options: _Options, files: tuple[str, ...]) -> None:
    """Compare the methods in results files, each with the baseline of the same file.

    Runs of the same target, prompts, settings and machine are pooled, each file being a session. Other runs are shown
    as separate groups, with the setting that differs. Scores that `benchctl judge` wrote next to a file are included.

    Exit code: 0; 2 where runs cannot be compared, or for wrong usage; 3 for an invalid data file. `benchctl gate` holds
    results to conditions.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare results/first.jsonl --format brief
      benchctl compare 'results/*.jsonl' --format md > table.md
      benchctl compare results/first.jsonl --over 'two_model[draft_tokens=5]'
      benchctl compare results/first.jsonl --acceptance
      benchctl compare --scores results/first.scores.jsonl
    """
    _check_usage(files, options)
    if not files:
        _print_agreement(options)
        return
    from benchctl.analysis.comparison import compare as compare_runs
    from benchctl.analysis.comparison import over
    from benchctl.analysis.tables.acceptance import render_acceptance
    from benchctl.analysis.tables.text import render
    from benchctl.cli.options import check_comparable, print_warnings, read_files, read_scores

    scores, measured = read_scores(options.scores), read_files(files)
    groups = compare_runs([over(file, options.over) if options.over else file for file in measured], scores)
    if options.acceptance:
        click.echo(render_acceptance(groups, options.format))
    else:
        click.echo(render(groups, options.format, get_terminal_size().columns))
    if options.format == "csv":
        print_warnings(groups)
    check_comparable(groups)  # after the tables, which show what differs


def _check_usage(files: Sequence[str], options: _Options) -> None:
    """Refuses options that need others, or that would have no effect with them."""
    if not files:
        if not options.scores:
            raise click.UsageError("Name results files, or --scores alone.")
        given = {name for name, value in vars(options).items() if value or (value == 0.0 and value is not False)}
        if given - {"scores", "format"} or options.format in ("brief", "csv", "md"):
            raise click.UsageError("--scores without FILES shows how judges agree, as text or json: name FILES.")
    if options.acceptance and options.format == "brief":
        raise click.UsageError("--acceptance has no brief form: leave one of the two out.")


def _print_agreement(options: _Options) -> None:
    """How far judges agree, from their scores only."""
    from benchctl.analysis.judges.figures import agreements
    from benchctl.analysis.judges.judgements import from_scores
    from benchctl.analysis.tables.columns import agreement_sentence
    from benchctl.analysis.tables.export import agreement_document
    from benchctl.cli.options import read_scores

    measured = agreements(from_scores(read_scores(options.scores)))
    if not measured:
        raise UserError(
            "no_common_judgements",
            f"{', '.join(options.scores)}: no two judges judged the same pairs. Name the scores of several judges.",
        )
    if options.format == "json":
        click.echo(json.dumps({"agreement_of_judges": [agreement_document(each) for each in measured]}, indent=2))
        return
    for each in measured:
        click.echo(agreement_sentence(each))
