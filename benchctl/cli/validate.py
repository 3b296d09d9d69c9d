"""`benchctl validate`: whether files of results and of scores hold what can be true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.errors import InvalidData, UserError

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("files", nargs=-1, metavar="FILES...", shell_complete=completing.files)
@click.option(
    "--schema",
    is_flag=False,
    flag_value="results",
    type=click.Choice(["results", "scores"]),
    help="Print the JSON Schema of a line of a results file instead, or of a scores file.",
)
@click.pass_context
def validate(context: click.Context, files: tuple[str, ...], schema: str | None) -> None:
    """Check every line of results files: fields, times, counts that add up, no generation twice, batches together.

    Files named *.scores.jsonl are checked as the scores that they hold: each once, and each as it can be.

    Of each file that is invalid the first line that is wrong is named. Exit code: 0 where all are valid, 2 where a file
    cannot be read, 3 where one is invalid.

    \b
    Examples:
      benchctl validate 'results/*.jsonl'
      benchctl validate --schema > results.schema.json
      benchctl validate --schema scores > scores.schema.json
    """
    from benchctl.cli import INVALID_DATA, WRONG_USAGE
    from benchctl.cli.options import paths_of

    if schema:
        from benchctl.records.schema import Row, Run, json_schema
        from benchctl.records.scores import Score

        click.echo(json_schema(*([Score] if schema == "scores" else [Run, Row])))
        return
    if not files:
        raise click.UsageError("Name the results files to check, or use --schema.")
    codes = set()
    for path in paths_of(files):
        try:
            click.echo(_account(path))
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            codes.add(INVALID_DATA if isinstance(error, InvalidData) else WRONG_USAGE)
    context.exit(max(codes, default=0))


def _account(path: Path) -> str:
    """What a valid file holds. Raises UserError for any other."""
    from benchctl.records.scores import is_scores, read_scores
    from benchctl.records.writer import scan

    if is_scores(path):
        held = read_scores(path)
        judges = len({(score.judge, score.model) for score in held.scores})
        unreadable = sum(bool(score.unreadable) for score in held.scores)
        contents, notices = f"{len(held.scores)} scores of {judges} judges, {unreadable} unreadable", held.notices
    else:
        file = scan(path)
        rows, labels, schema = sum(1 for _ in file.rows), len(file.run.methods), file.run.schema_version
        contents, notices = f"{rows} generations, {labels} labels, schema {schema}", file.notices
    return f"{path}: valid, {contents}." + "".join(f"\nNote: {notice}" for notice in notices)
