"""`benchctl run --sessions N`: the same run in fresh processes one after another, each with a file of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.measuring.settings import RunSettings

_OF_ALL = ("sessions", "out", "as_json")  # what is of the sessions together, and not of one


def run_sessions(settings: RunSettings, sessions: int) -> tuple[Path, ...]:
    """Measure the sessions that this command line asks for; their files.

    With `settings.resume` each goes on with what is missing in its file. Ends with the exit code of a session that
    failed. Raises UserError where the files have no name, or one of them cannot be written.
    """
    from benchctl import recordfile

    if settings.out is None:
        raise UserError(
            "--sessions needs a name for its files: add --out FILE.jsonl, and session 2 writes FILE-2.jsonl."
        )
    files = session_files(settings.out, sessions)
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
    command = (sys.executable, "-m", "benchctl", "run", *arguments, f"--out={file}")
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code:
        click.echo(
            f"{file}: this session ended with exit code {code}; go on with the same command and --resume.", err=True
        )
        raise click.exceptions.Exit(code)
