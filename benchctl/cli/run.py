"""`benchctl run`: measures methods against the baseline on prompts, into one results file, and ends with a table."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchctl.cli.judge import JudgeOptions, asks_for_judging, beside_run, check_judge
from benchctl.cli.options import options_from
from benchctl.measuring.settings import RunSettings

if TYPE_CHECKING:
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary


# Options of the sessions together, which a single session does not get.
_OF_ALL = ("sessions", "out", "as_json", "judge", "base_url", "max_usd")
_CHILD = "from benchctl.cli.run import session; session()"
_ORPHANED = 1  # exit code


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

    Exit code: 0; 1 if every generation failed or judgements were left undone; 2 for wrong usage; 3 for --resume
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
        judging = beside_run(judging, settings.models.target)
        check_judge(judging, settings)
    if sessions > 1:
        left = _show(run_sessions(settings, sessions), judging, settings, as_json)
        raise click.exceptions.Exit(int(left > 0))
    checked, summary = measure(settings)
    failed = summary.measured and summary.failed == summary.measured
    left = _show([checked.out], None if failed else judging, settings, as_json)
    if failed or left:
        raise click.exceptions.Exit(1)


def measure(settings: RunSettings) -> tuple[CheckedRun, RunSummary]:
    """Check a run and measure it, with progress on stderr. Raises UserError as both do."""
    from benchctl.cli.display import RunDisplay
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

    Returns how many judgements are still to be made.
    """
    try:
        return _judge(paths, judging, settings, as_json) if judging else 0
    finally:
        _print_table(paths, as_json)


def _judge(paths: Sequence[Path], judging: JudgeOptions, settings: RunSettings, as_json: bool) -> int:
    from benchctl.cli.inputs import read_files
    from benchctl.cli.judge import judge_files

    files = read_files(list(map(str, paths)))
    return judge_files(files, judging, settings.prompts.source, quiet=as_json).unfinished


def _print_table(paths: Sequence[Path], as_json: bool) -> None:
    from benchctl.analysis.tables.text import summary

    click.echo(summary(paths, "json" if as_json else "table"))
    for path in paths:
        click.echo(f"Results: {path}", err=as_json)


def run_sessions(settings: RunSettings, sessions: int) -> tuple[Path, ...]:
    """Measure the sessions of this command line one after another; their files.

    With `settings.resume` each session measures what its file lacks. Without `settings.out` the files have the name
    that a single run would make. Exits with the code of a session that failed. Raises UserError for a file that cannot
    be written, and as `check` does.
    """
    from benchctl.measuring.check import check
    from benchctl.records.writer import check_output

    out = settings.out or check(settings, lambda notice: None).out  # each session prints its notices
    files = session_files(out, sessions)
    for file in files:
        check_output(file, resume=settings.resume)
    arguments = tuple(given(click.get_current_context()))
    for number, file in enumerate(files, 1):
        click.echo(f"Session {number} of {sessions}", err=True)
        _run_session(arguments, file)
    return files


def session_files(out: Path, sessions: int) -> tuple[Path, ...]:
    """results/a.jsonl becomes results/a-1.jsonl, results/a-2.jsonl ..."""
    return tuple(out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, sessions + 1))


def given(context: click.Context) -> Iterator[str]:
    """The arguments of one session: those of this command line without _OF_ALL."""
    for option in context.command.params:
        name = option.name or ""
        if name not in _OF_ALL and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            yield from _spelt(option, context.params[name])


def _spelt(option: click.Parameter, value: Any) -> Iterator[str]:
    """`--limit=3` for an option with a value, once for each of several values; `--watch` or `--no-watch` for a flag."""
    if isinstance(value, bool):
        yield option.opts[0] if value else option.secondary_opts[0]
        return
    for each in value if isinstance(value, tuple) else (value,):
        yield f"{option.opts[0]}={each}"


def _run_session(arguments: tuple[str, ...], file: Path) -> None:
    """Measure one session in a fresh process, without anything that an earlier one allocated, cached or compiled."""
    command = (sys.executable, "-c", _CHILD, "run", *arguments, f"--out={file}")
    lifeline, held = os.pipe()
    try:
        code = subprocess.run(command, stdin=lifeline, stdout=subprocess.DEVNULL).returncode
    finally:
        os.close(lifeline)
        os.close(held)
    if code:
        click.echo(
            f"{file}: this session ended with exit code {code}. Repeat the command with --resume to continue.", err=True
        )
        raise click.exceptions.Exit(code)


def session() -> None:
    """`benchctl` with this process's arguments, ended as soon as the parent process ends.

    Standard input is a pipe whose other end the parent holds. However the parent ends, the system closes the pipe.
    A session that outlived it would disturb the next measurement and keep its file locked against --resume.
    """
    from benchctl.cli import main

    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    main(prog_name="benchctl")


def _end_with_the_parent() -> None:
    """Blocks in the system, so it takes no time from the measurement."""
    while os.read(0, 1):
        pass
    os._exit(_ORPHANED)
