"""`benchctl judge`: scores the answers in results files, beside the baseline's, into a file of scores next to each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.cli.judge.options import JudgeOptions, asks_for_a_judge
from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.cli.judge.display import JudgeDisplay
    from benchctl.judging.judge_settings import JudgeSettings, Summary
    from benchctl.judging.scoring import Judging
    from benchctl.records.writer import RunFile

UNFINISHED = 1


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...", shell_complete=completing.files)
@asks_for_a_judge
@click.option("--dry-run", is_flag=True, help="Say what would be asked and what it would cost; ask nothing.")
@click.option(
    "--source",
    type=click.Choice(["auto", "published", "embedded"]),
    default="auto",
    show_default=True,
    help="Where to take prompts from; auto: from where those of the run came.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done, or would be, as JSON on stdout.")
@click.pass_context
def judge(
    context: click.Context,
    options: JudgeOptions,
    files: tuple[str, ...],
    dry_run: bool,
    source: str,
    as_json: bool,
) -> None:
    """Let a judge score the answers in results files against the baseline's, in both orders.

    Scores go beside each file: first.scores.jsonl beside first.jsonl. What is there is not judged again, every reply is
    kept before it is used, and equal answers are never asked about. An interrupted judging goes on when called again.

    Exit code: 0, 1 where --max-usd left judgements undone, 2 where it cannot be done, 3 for files that hold what cannot
    be true.

    \b
    Examples:
      benchctl judge results/first.jsonl
      benchctl judge results/*.jsonl --judge gpt --model gpt-4o-mini --dry-run
      benchctl judge results/*.jsonl --judge gpt --model gpt-4o-mini --max-usd 2
      benchctl judge results/first.jsonl --judge 'gpt[protocol=single]' --model gpt-4o
      benchctl judge results/first.jsonl --judge gpt --model my-model --base-url http://localhost:8000/v1
      benchctl judge results/first.jsonl --judge 'local[model=my_models/judge]'
    """
    from benchctl.cli.inputs import read_files

    results = [file for file in read_files(files) if file.rows]
    if not results:
        raise UserError("there are no answers to judge. Name results files that `benchctl run` wrote.")
    if dry_run:
        _forecast(results, options, source, as_json)
        return
    summary = judge_files(results, options, source, quiet=as_json)
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=2))
    context.exit(UNFINISHED if summary.unasked else 0)


def judge_files(files: Sequence[RunFile], options: JudgeOptions, source: str, *, quiet: bool) -> Summary:
    """Judge results files and tell what was done; `quiet` leaves stdout alone."""
    from benchctl.cli.judge.display import JudgeDisplay, describe_summary
    from benchctl.records.scores import scores_path

    with JudgeDisplay() as display:
        judging, settings = _judging(files, options, source, display)
        summary = judging.run()
    click.echo(describe_summary(summary, settings.judge.label), err=True)
    for file in files:
        click.echo(f"Scores: {scores_path(file.path)}", err=quiet)
    return summary


def _forecast(files: Sequence[RunFile], options: JudgeOptions, source: str, as_json: bool) -> None:
    from benchctl.cli.judge.display import JudgeDisplay, describe_forecast
    from benchctl.judging.budget import is_paid, price_table

    judging, settings = _judging(files, options, source, JudgeDisplay())
    forecast = judging.forecast()
    by_hand = options.price_in is not None or options.price_out is not None
    source_of_price = "at the prices given" if by_hand else f"at the prices noted on {price_table().date}"
    if as_json:
        click.echo(json.dumps(asdict(forecast), indent=2))
    else:
        paid = is_paid(settings.judge.judge)
        click.echo(describe_forecast(forecast, settings.judge.label, source_of_price if paid else ""))


def _judging(
    files: Sequence[RunFile], options: JudgeOptions, source: str, display: JudgeDisplay
) -> tuple[Judging, JudgeSettings]:
    from benchctl.cli.judge.setup import prompts_of, settings_of
    from benchctl.judging.items import check_baseline
    from benchctl.judging.judge_settings import World
    from benchctl.judging.scoring import Judging
    from benchctl.measuring.clock import utc_now

    check_baseline(files, options.baseline_label)
    prompts = prompts_of(files, source, display.notice)
    settings = settings_of(options, files)
    world = World(
        now=lambda: utc_now().isoformat(timespec="seconds"),
        notify=display.notice,
        progress=display,
    )
    return Judging(files, prompts, settings, world), settings
