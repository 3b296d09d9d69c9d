"""`benchctl run`: measures methods against the baseline on prompts, into one results file, and ends with a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli.judge.options import JudgeOptions, asks_for_judging
from benchctl.cli.options import options_from
from benchctl.measuring.settings import RunSettings

if TYPE_CHECKING:
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary


@click.command()
@options_from(RunSettings, "settings")
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Run N times, each in a fresh process with a results file of its own: FILE-1.jsonl, FILE-2.jsonl ... The "
    "table combines them.",
)
@asks_for_judging
@click.option("--json", "as_json", is_flag=True, help="Print the final table as JSON, and nothing else on stdout.")
def run(settings: RunSettings, sessions: int, judging: JudgeOptions | None, as_json: bool) -> None:
    """Measure methods against the baseline, interleaved on the same prompts, and print the final table.

    Every generation is written at once as a line of the results file. --resume continues an interrupted run.

    Exit code: 0; 1 if every generation failed or --max-usd left judgements undone; 2 for wrong usage; 3 for --resume
    of an invalid results file.

    \b
    Examples:
      benchctl run --limit 10
      benchctl run --method two_model --method 'early_exit[threshold=0.8]' --bench mt-bench
      benchctl run --sweep 'm2r2[exit=2|4,draft_tokens=3|5,width=1|2|4]' --limit 20
      benchctl run --bench my_prompts.jsonl --model my_models/target --draft-model my_models/draft
      benchctl run --method skip_decode --batch-size 8 --limit 32
      benchctl run --method early_exit --replay --profile --limit 20
      benchctl run --method two_model --sessions 3
      benchctl run --method prompt_lookup --out results/first.jsonl --resume
      benchctl run --method early_exit --judge 'gpt[model=gpt-4o-mini]' --max-usd 1
    """
    settings = replace(settings, command=("benchctl", *sys.argv[1:]))
    if judging:
        from benchctl.cli.judge.setup import beside_run, check_judge

        judging = beside_run(judging, settings.models.target)
        check_judge(judging, settings)
    if sessions > 1:
        from benchctl.cli.run.sessions import run_sessions

        left = _show(run_sessions(settings, sessions), judging, settings, as_json)
        raise click.exceptions.Exit(int(left > 0))
    checked, summary = measure(settings)
    failed = summary.measured and summary.failed == summary.measured
    left = _show([checked.out], None if failed else judging, settings, as_json)
    if failed or left:
        raise click.exceptions.Exit(1)


def measure(settings: RunSettings) -> tuple[CheckedRun, RunSummary]:
    """Check a run and measure it, with progress on stderr. Raises UserError as both do."""
    from benchctl.cli.run.display import RunDisplay
    from benchctl.measuring.check import check
    from benchctl.measuring.run import run as run_checked

    with RunDisplay() as display:
        checked = check(settings, display.notice)
        display.begin(checked)
        summary = run_checked(checked, display)
        display.end(summary)
    return checked, summary


def _show(paths: Sequence[Path], judging: JudgeOptions | None, settings: RunSettings, as_json: bool) -> int:
    """Judge the answers if asked to, and print the table even if judging fails.

    Returns how many judgements --max-usd left undone.
    """
    try:
        return _judge(paths, judging, settings, as_json) if judging else 0
    finally:
        _print_table(paths, as_json)


def _judge(paths: Sequence[Path], judging: JudgeOptions, settings: RunSettings, as_json: bool) -> int:
    from benchctl.cli.inputs import read_files
    from benchctl.cli.judge import judge_files

    files = read_files(list(map(str, paths)))
    return judge_files(files, judging, settings.prompts.source, quiet=as_json).unasked


def _print_table(paths: Sequence[Path], as_json: bool) -> None:
    from benchctl.analysis.tables.text import summary

    click.echo(summary(paths, "json" if as_json else "table"))
    for path in paths:
        click.echo(f"Results: {path}", err=as_json)
