"""`benchctl compare`: the figures in results files, the answer first, and whether files are valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Literal

import click

from benchctl.cli import INVALID_DATA, WRONG_USAGE
from benchctl.cli.options import options_from
from benchctl.errors import InvalidData, UserError
from benchctl.options import setting

if TYPE_CHECKING:
    from pathlib import Path

_OF_TABLES = ("full", "by_suite", "columns", "names")


@dataclass(frozen=True)
class _Options:
    """The options of `benchctl compare`."""

    format: Literal["table", "md", "csv", "json", "tex"] = setting(
        "table",
        "table: for the terminal. md: Markdown. tex: LaTeX with booktabs. csv, json: every figure with its interval, "
        "unrounded.",
    )
    full: bool = setting(False, "Print all tables, a list of full labels, and all warnings with their advice.")
    by_suite: bool = setting(False, "Print figures for each suite, in addition to all suites together.")
    by_category: bool = setting(
        False, "Print speed-up and tokens per step for each category of suites that have some, such as spec-bench."
    )
    columns: str = setting(
        "", "Columns of the table, by their names in csv: speedup,block_efficiency,lossless.", metavar="NAME,NAME"
    )
    names: tuple[str, ...] = setting(
        (),
        "Print this name instead of a label. May be repeated.",
        flags=("--name",),
        metavar="LABEL=NAME",
    )
    over: str | None = setting(
        None,
        "Use this method as the baseline for speed, exact match, acceptance and degeneration. Verdicts and "
        "target agreement do not change; do not quote token agreement, which mixes both baselines.",
        metavar="LABEL",
    )
    acceptance: bool = setting(
        False, "Print only acceptance: under all its names, by position and by tokens per step, of methods that draft."
    )
    scores: tuple[str, ...] = setting(
        (),
        "More scores of these answers. Scores next to FILES are always read. May be repeated.",
        metavar="FILE",
    )
    check: bool = setting(False, "Only check that every line of FILES, or of scores files, is valid.")
    schema: Literal["results", "scores"] | None = setting(
        None, "Print the JSON Schema of a line of a results file or of a scores file instead."
    )


@click.command()
@click.argument("files", nargs=-1, metavar="FILES...")
@options_from(_Options, "options")
@click.pass_context
def compare(context: click.Context, options: _Options, files: tuple[str, ...]) -> None:
    """Compare the methods in results files with the baseline of the same file.

    Runs of the same target, prompts, settings and machine are pooled; each file is a session. Other runs become groups
    of their own, with the setting that differs.

    Exit code: 0; 2 if runs cannot be compared, or for wrong usage; 3 for an invalid file. `benchctl gate` checks
    results against conditions.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare results/first.jsonl --full --by-suite
      benchctl compare results/spec-bench.jsonl --by-category
      benchctl compare 'results/*.jsonl' --format tex --columns speedup,target_agreement,lossless > table.tex
      benchctl compare results/first.jsonl --name two_model='Draft model' --format md
      benchctl compare results/first.jsonl --over 'two_model[draft_tokens=5]'
      benchctl compare results/first.jsonl --acceptance
      benchctl compare --check 'results/*.jsonl'
      benchctl compare --schema results > results.schema.json
    """
    _check_usage(files, options)
    if options.schema:
        _print_schema(options.schema)
    elif options.check:
        context.exit(_check(files))
    else:
        _print_comparison(files, options)


def _check_usage(files: Sequence[str], options: _Options) -> None:
    """Refuses options that need others, or that would have no effect with them."""
    given = {name for name, value in vars(options).items() if value != getattr(_Options, name)}
    for alone in {"check", "schema"} & given:
        if given - {alone} or (alone == "schema" and files):
            raise click.UsageError(f"--{alone} does not compare: leave the other options out.")
    if options.schema:
        return
    if not files:
        raise click.UsageError("No files are named. Name results files.")
    unused = {*_OF_TABLES} if options.format in ("csv", "json") else set()
    unused |= {"full", "columns", "by_category"} if options.acceptance else set()
    for name in given & unused:
        flag = {"names": "--name"}.get(name, f"--{name.replace('_', '-')}")
        raise click.UsageError(f"{flag} does not change this output, leave it out.")


def _print_comparison(files: Sequence[str], options: _Options) -> None:
    from benchctl.analysis.comparison import compare as compare_runs
    from benchctl.analysis.comparison import over, with_categories
    from benchctl.analysis.machines import by_machine
    from benchctl.analysis.tables.text import View, render, render_acceptance
    from benchctl.cli.options import check_comparable, print_warnings, read_files, read_scores
    from benchctl.records.labels import split_options

    scores, measured = read_scores(options.scores), read_files(files)
    groups = compare_runs([over(file, options.over) if options.over else file for file in measured], scores)
    groups = with_categories(groups) if options.by_category else groups
    columns = tuple(filter(None, (name.strip() for name in split_options(options.columns))))
    view = View(options.full, options.by_suite, columns, _names(options.names), get_terminal_size().columns)
    click.echo((render_acceptance if options.acceptance else render)(groups, options.format, view))
    if options.format == "table" and not options.full:
        more = [] if options.acceptance else ["--full"]
        several = any(len(group.suites) > 1 for group in groups)
        more += ["--by-suite"] if several and not options.by_suite else []
        unbatched = [group for group in groups if group.run.batch_size == 1]
        has_categories = any(group.categories_of(suite.name) for group in unbatched for suite in group.run.suites)
        more += ["--by-category"] if has_categories and not (options.by_category or options.acceptance) else []
        click.echo(f"more: {', '.join([*more, '--format json'])}")
    if options.format == "csv":
        print_warnings(groups)
    check_comparable([alike[0] for alike in by_machine(groups)])  # after the tables, which show what differs


def _names(given: Sequence[str]) -> Mapping[str, str]:
    """`LABEL=Name` by label, which may contain `=` too."""
    names = {}
    for text in given:
        label, equals, name = text.rpartition("=")
        if not (equals and label and name):
            raise click.BadParameter(f"'{text}' is not LABEL=NAME.", param_hint="--name")
        names[label] = name
    return names


def _check(files: Sequence[str]) -> int:
    """Print what valid files contain, and the first wrong line of each other one; the exit code."""
    from benchctl.cli.options import paths_of

    codes = {0}
    for path in paths_of(files):
        try:
            click.echo(_contents(path))
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            codes.add(INVALID_DATA if isinstance(error, InvalidData) else WRONG_USAGE)
    return max(codes)


def _contents(path: Path) -> str:
    """What a valid file contains. Raises UserError for any other."""
    from benchctl.records.scores import is_scores, read_scores
    from benchctl.records.writer import scan

    if is_scores(path):
        scores = read_scores(path)
        judges = len({(score.judge, score.model) for score in scores.scores})
        unreadable = sum(bool(score.unreadable) for score in scores.scores)
        contents, notices = f"{len(scores.scores)} scores of {judges} judges, {unreadable} unreadable", scores.notices
    else:
        file = scan(path)
        rows, labels, schema = sum(1 for _ in file.rows), len(file.run.methods), file.run.schema_version
        contents, notices = f"{rows} generations, {labels} labels, schema {schema}", file.notices
    return f"{path}: valid, {contents}." + "".join(f"\nNote: {notice}" for notice in notices)


def _print_schema(kind: Literal["results", "scores"]) -> None:
    from benchctl.records.schema import Row, Run, json_schema
    from benchctl.records.scores import Score

    click.echo(json_schema(*([Score] if kind == "scores" else [Run, Row])))
