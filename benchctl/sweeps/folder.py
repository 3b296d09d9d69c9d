"""The folder of a sweep: commands.txt, one line for each run, with results and logs next to it; and what is in it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from benchctl.errors import UserError
from benchctl.records.progress import tried_prompts
from benchctl.records.writer import scan
from benchctl.sweeps.spec import Unit

COMMANDS = "commands.txt"


class Status(NamedTuple):
    """How far a run is; ``message`` is the last line that it printed, if it is not done."""

    unit: Unit
    state: Literal["done", "started", "failed", "missing", "unreadable"]
    prompts: int
    of: int | None
    message: str


def write_commands(folder: Path, units: Sequence[Unit]) -> Path:
    """Raises UserError if the folder has other commands, which runs of it may follow, or cannot be written."""
    path = folder / COMMANDS
    text = "".join(f"{shlex.join(unit.command)}\n" for unit in units)
    try:
        for name in ("results", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text() != text:
            raise UserError("other_sweep", f"{path}: is of another sweep. Name another folder with --out.")
        path.write_text(text)
    except OSError as error:
        raise UserError("cannot_write", f"{path}: cannot be written: {error.strerror}.") from error
    return path


def read_commands(folder: Path) -> tuple[Unit, ...]:
    """Raises UserError for a folder that `sweep plan` did not write."""
    path = folder / COMMANDS
    try:
        units = tuple(Unit(tuple(shlex.split(line))) for line in path.read_text().split("\n") if line.strip())
    except (OSError, ValueError) as error:
        raise UserError(
            "no_sweep_folder", f"{folder}: has no readable {COMMANDS}. Write it with `sweep plan`."
        ) from error
    if any(unit.command[:2] != ("benchctl", "run") or not unit.name for unit in units):
        raise UserError("no_sweep_folder", f"{path}: has a line that is not `benchctl run ... --out=FILE`.")
    return units


def log_of(folder: Path, unit: Unit) -> Path:
    return folder / "logs" / f"{unit.name}.log"


def finished_of(folder: Path, unit: Unit) -> Path:
    """Exists if the run ended under `sweep run`, with all generations tried."""
    return folder / "logs" / f"{unit.name}.done"


def status(folder: Path, unit: Unit) -> Status:
    """The state of a run by its results file, which any program may have written."""
    said = _last_line(log_of(folder, unit))
    if not unit.out.exists() or not unit.out.stat().st_size:
        return Status(unit, "missing", 0, None, said)
    try:
        file = scan(unit.out)
        rows = [row for row in file.rows if row.repeat >= 0]
        done, prompts = tried_prompts(file.run, rows)
    except UserError as error:
        return Status(unit, "unreadable", 0, None, str(error))
    if rows and all(row.error for row in rows):
        return Status(unit, "failed", done, prompts, rows[-1].error or "")
    finished = done == prompts
    return Status(unit, "done" if finished else "started", done, prompts, "" if finished else said)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
