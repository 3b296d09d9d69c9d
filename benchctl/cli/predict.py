"""`benchctl predict`: the speed-up that acceptance and costs predict, next to the measured one."""

from __future__ import annotations

import click

from benchctl.cli import completion as completing


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...", shell_complete=completing.files)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, unrounded.")
def predict(files: tuple[str, ...], as_json: bool) -> None:
    """Predict each method's speed-up from its acceptance and its costs, and show where the measured one differs.

    Costs come from profile rows (benchctl run --profile), or else from how step times follow the length of drafts.
    All figures are of decoding without prefill, per token.

    \b
    Examples:
      benchctl predict results/profiled.jsonl
      benchctl predict results/profiled.jsonl --json
    """
    from benchctl.analysis.predict.speedup import predict as predict_files
    from benchctl.cli.inputs import read_files
    from benchctl.cli.predict_tables import to_json, to_tables

    runs = [file for file in read_files(files) if file.rows]
    accounts = predict_files(runs)
    click.echo(to_json(runs, accounts) if as_json else to_tables(runs, accounts))
