"""`benchctl run`: measures methods against the baseline on prompts, into one results file, and ends with a table."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from benchctl.cli import OUT
from benchctl.cli.options import given, options_from, typed
from benchctl.measuring.settings import RunSettings
from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary
    from benchctl.records.writer import RunFile

_CHILD = "from benchctl.cli.run import session; session()"
_ORPHANED = 1  # exit code


@dataclass(frozen=True)
class _OfAll:
    """Options of all sessions together, which a single session does not get."""

    sessions: int = setting(
        1,
        "Run N times, each in a new process with its own results file: FILE-1.jsonl, FILE-2.jsonl ... The table "
        "combines them.",
        metavar="N",
        least=1,
    )
    as_json: bool = setting(False, "Print the figures as JSON instead of the table.", flags=("--json",))
    estimate: bool = setting(False, "Only print the expected memory and time, before any weights are read.")


@click.command()
@options_from(RunSettings, "settings")
@options_from(_OfAll, "options")
def run(settings: RunSettings, options: _OfAll) -> None:
    """Measure methods against the baseline, interleaved on the same prompts, and print the final table.

    Each generation is written immediately as a line of the results file. --resume continues an interrupted run.

    Exit code: 0; 1 if every generation of a label failed, memory was short or an engine ended; 2 for wrong usage; 3 for
    --resume of an invalid results file.

    \b
    Examples:
      benchctl run --limit 10
      benchctl run --model my_models/target --limit 10 --estimate
      benchctl run --method two_model --method 'early_exit[threshold=0.8]' --suite mt-bench
      benchctl run --sweep 'm2r2[exit=2|4,draft_tokens=3|5,width=1|2|4]' --limit 20
      benchctl run --suite my_prompts.jsonl --model my_models/target --draft-model my_models/draft
      benchctl run --method skip_decode --batch-size 8 --limit 32
      benchctl run --method early_exit --replay --profile --limit 20
      benchctl run --method two_model --sessions 3
      benchctl run --method prompt_lookup --out results/first.jsonl --resume
    """
    settings = replace(settings, command=("benchctl", *click.get_current_context().obj))
    if options.estimate:
        _print_estimate(settings, options)
        return
    from benchctl.records.writer import read

    paths = run_sessions(settings, options.sessions) if options.sessions > 1 else (measure(settings)[0].out,)
    files = [read(path) for path in paths]
    _show(files, options.as_json)
    if any(map(_is_incomplete, files)):
        raise click.exceptions.Exit(1)


def _print_estimate(settings: RunSettings, options: _OfAll) -> None:
    """What `measure` would need. Raises UserError as `check` does."""
    from benchctl.analysis.tables import text  # noqa: F401  # what a run imports takes memory too
    from benchctl.cli.display import describe_seconds, describe_target, memory_table
    from benchctl.measuring.check import check
    from benchctl.measuring.duration import FASTER, SLOWER, duration
    from benchctl.measuring.memory import memory_needs

    checked = check(settings, lambda notice: click.echo(notice, err=True))
    needs = memory_needs(checked)
    took = duration(checked)
    seconds = None if took.seconds is None else took.seconds * options.sessions
    engines = [choice.label for choice in checked.choices] if checked.is_of_engines else []
    if options.as_json:
        memory = {need.device: {"parts": need.parts, "sum": need.bytes, "free": need.free_bytes} for need in needs}
        times = None if seconds is None else {"least": seconds / FASTER, "most": seconds * SLOWER}
        click.echo(json.dumps({"memory_bytes": memory, "seconds": times, "engines_not_counted": engines}, indent=2))
        return
    labels = ", ".join(choice.label for choice in checked.choices if not choice.unsupported)
    click.echo(f"{labels} on {describe_target(checked)}: memory by formula, not measured.")
    for need in needs:
        click.echo(memory_table(need.parts, need.free_bytes, need.device if len(needs) > 1 else ""))
    click.echo(f"tokens: {took.new_tokens * options.sessions:,} in {took.generations * options.sessions:,} generations")
    if engines:
        click.echo(
            f"Not counted: memory and time of the {len(engines)} engines. Each label holds the weights once more."
        )
    if seconds is None or took.step_s is None:
        if not engines:
            click.echo("time: unknown, since transformers runs the layers")
        return
    click.echo(
        f"time: {describe_seconds(seconds / FASTER)} to {describe_seconds(seconds * SLOWER)}, with warm-up, without "
        f"loading\nAssumed: full answers, every method as fast as the baseline, {took.step_s * 1e3:.3g} ms for a token "
        f"(calibrated now). The range is {FASTER:g} times faster to {SLOWER:g} times slower."
    )


def measure(settings: RunSettings) -> tuple[CheckedRun, RunSummary]:
    """Check a run and measure it, with progress on stderr. Raises UserError as both do."""
    from benchctl.cli.display import RunDisplay
    from benchctl.measuring.check import check
    from benchctl.measuring.run import run as run_checked

    with RunDisplay() as display:
        checked = check(settings, display.notice)
        click.get_current_context().meta[OUT] = checked.out
        display.begin(checked)
        summary = run_checked(checked, display)
        display.end(summary)
    return checked, summary


def _is_incomplete(file: RunFile) -> bool:
    """Whether every generation of a label failed, memory was short, or an engine ended; by all that the file has."""
    from benchctl.errors import ENGINE_ENDED, OUT_OF_MEMORY
    from benchctl.measuring.memory import NO_ROOM
    from benchctl.records.progress import unanswered

    failed, answered = unanswered(file.run, file.rows)
    lacking = any(error.startswith((OUT_OF_MEMORY, *ENGINE_ENDED)) for error in failed.values())
    lacking |= any(method.unsupported == NO_ROOM for method in file.run.methods)
    return lacking or not {key.label for key in failed} <= answered


def _show(files: Sequence[RunFile], as_json: bool) -> None:
    """Print the table."""
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.tables.text import View, render

    groups, paths = compare(files, ()), [file.path for file in files]
    click.echo(render(groups, "json" if as_json else "table", View(width=get_terminal_size().columns)))
    click.echo(f"more: benchctl compare {shlex.join(map(str, paths))} --full", err=as_json)
    for path in paths:
        click.echo(f"Results: {path}", err=as_json)


def run_sessions(settings: RunSettings, sessions: int) -> tuple[Path, ...]:
    """Measure the sessions of this command line one after another; their files, results/a-1.jsonl, results/a-2.jsonl.

    With `settings.resume` each session measures what its file lacks. Without `settings.out` the files have the name
    that a single run would make. Exits with the code of a session that failed. Raises UserError for a file that cannot
    be written, and as `check` does.
    """
    from benchctl.measuring.check import check
    from benchctl.records.writer import check_output

    out = settings.out or check(settings, lambda notice: None).out  # each session prints its notices
    click.get_current_context().meta[OUT] = out
    files = tuple(out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, sessions + 1))
    for file in files:
        check_output(file, resume=settings.resume)
    arguments = tuple(session_arguments(click.get_current_context()))
    for number, file in enumerate(files, 1):
        click.echo(f"Session {number} of {sessions}", err=True)
        _run_session(arguments, file)
    return files


def session_arguments(context: click.Context) -> Iterator[str]:
    """The arguments of one session: those of this command line that do not concern all sessions."""
    of_all = {"out", *(option.name for option in fields(_OfAll))}
    for option in given(context):
        if option.name not in of_all:
            yield from typed(option, context.params[str(option.name)], "=")


def _run_session(arguments: tuple[str, ...], file: Path) -> None:
    """Measure one session in a fresh process, without anything that an earlier one allocated, cached or compiled."""
    command = (sys.executable, "-c", _CHILD, "run", *arguments, f"--out={file}")
    lifeline, held = os.pipe()
    try:
        code = subprocess.run(command, stdin=lifeline, stdout=subprocess.DEVNULL).returncode
    finally:
        os.close(lifeline)
        os.close(held)
    lacked_memory = code == 1 and file.exists() and _is_done(file)
    if code and not lacked_memory:
        if file.exists():
            out = shlex.quote(str(click.get_current_context().meta[OUT]))
            click.echo(
                f"{file}: this session ended with exit code {code}, so the run stopped. Repeat the command with --out "
                f"{out} --resume to continue.",
                err=True,
            )
        raise click.exceptions.Exit(code)


def _is_done(file: Path) -> bool:
    """Whether every generation was tried, and one did not fail."""
    from benchctl.records.progress import tried_prompts
    from benchctl.records.writer import read

    found = read(file)
    rows = [row for row in found.rows if row.repeat >= 0]
    tried, prompts = tried_prompts(found.run, rows)
    return tried == prompts and any(row.error is None for row in rows)


def session() -> None:
    """`benchctl` with this process's arguments, ended as soon as the parent process ends.

    Standard input is a pipe whose other end the parent holds. However the parent ends, the system closes the pipe.
    A session that outlived it would disturb the next measurement and keep its file locked against --resume.
    """
    from benchctl.cli import main

    def end_with_the_parent() -> None:
        while os.read(0, 1):  # blocks in the system, so it takes no time from the measurement
            pass
        os._exit(_ORPHANED)

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent prints how to continue
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    main(prog_name="benchctl")
