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

_OF_ALL = (
    "sessions",
    "out",
    "as_json",
    "judge",
    "base_url",
    "max_usd",
)  # what is of the sessions together, and not of one
_CHILD = "from benchctl.cli.run.sessions import session; session()"
_ORPHANED = 1  # exit code


def run_sessions(settings: RunSettings, sessions: int) -> tuple[Path, ...]:
    """Measure the sessions that this command line asks for; their files.

    With `settings.resume` each goes on with what is missing in its file. Ends with the exit code of a session that
    failed. Without a name for the files they have the one that a single run would make. Raises UserError where one of
    them cannot be written, or that run could not be made.
    """
    from benchctl.measuring.check import check
    from benchctl.records import writer as recordfile

    out = settings.out or check(settings, lambda notice: None).out  # each session says what there is to notice
    files = session_files(out, sessions)
    for file in files:
        recordfile.check_output(file, resume=settings.resume)
    arguments = tuple(given(click.get_current_context()))
    for number, file in enumerate(files, 1):
        click.echo(f"Session {number} of {sessions}", err=True)
        _run(arguments, file)
    return files


def session_files(out: Path, sessions: int) -> tuple[Path, ...]:
    """results/a.jsonl becomes results/a-1.jsonl, results/a-2.jsonl ..."""
    return tuple(out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, sessions + 1))


def given(context: click.Context) -> Iterator[str]:
    """The command line of one session: what was given on this one, but for what is of the sessions together."""
    for option in context.command.params:
        name = option.name or ""
        if name not in _OF_ALL and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            yield from _spelt(option, context.params[name])


def _spelt(option: click.Parameter, value: Any) -> Iterator[str]:
    """`--limit=3` for an option with a value, once for each where there are several; a flag by the name that it has."""
    if isinstance(value, bool):
        yield option.opts[0] if value else option.secondary_opts[0]
        return
    for one in value if isinstance(value, tuple) else (value,):
        yield f"{option.opts[0]}={one}"


def _run(arguments: tuple[str, ...], file: Path) -> None:
    """In a process that has nothing of the one before: what that allocated, cached or compiled is no part of it."""
    command = (sys.executable, "-c", _CHILD, "run", *arguments, f"--out={file}")
    lifeline, held = os.pipe()
    try:
        code = subprocess.run(command, stdin=lifeline, stdout=subprocess.DEVNULL).returncode
    finally:
        os.close(lifeline)
        os.close(held)
    if code:
        click.echo(
            f"{file}: this session ended with exit code {code}; go on with the same command and --resume.", err=True
        )
        raise click.exceptions.Exit(code)


def session() -> None:
    """One of the sessions: `benchctl` with this process's arguments, for as long as the process that began it lives.

    That one holds the other end of the pipe that is standard input here, and writes nothing to it: however it ends,
    the system closes the pipe. A session that went on by itself would disturb whatever is measured next, and hold its
    file against --resume. What it had written stays good, see recordfile.py.
    """
    from benchctl.cli import main

    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    main(prog_name="benchctl")


def _end_with_the_parent() -> None:
    """Waits in the system, which takes no time from what is measured."""
    while os.read(0, 1):
        pass
    os._exit(_ORPHANED)
