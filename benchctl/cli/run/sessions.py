"""`benchctl run --sessions N`: the same run in fresh processes one after another, each with a file of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from benchctl.measuring.settings import RunSettings

# Options of the sessions together, which a single session does not get.
_OF_ALL = ("sessions", "out", "as_json", "judge", "base_url", "max_usd")
_CHILD = "from benchctl.cli.run.sessions import session; session()"
_ORPHANED = 1  # exit code


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
        _run(arguments, file)
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


def _run(arguments: tuple[str, ...], file: Path) -> None:
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
