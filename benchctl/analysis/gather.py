"""Gathers the lines of generations from results files; where these are large, two processes read a part each.

Nothing that is found depends on that: where the other process is lost, its part is read here.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchctl.analysis.aside import Aside
from benchctl.analysis.lines import Columns, line_of
from benchctl.analysis.rounds import Round, round_of
from benchctl.errors import UserError
from benchctl.recordfile import RunFile
from benchctl.records import Mode, Row, Run
from benchctl.rowstream import Lines, StoredRows, doubled

_LARGE_BYTES = 100_000_000  # from which on another process is worth its start
_AHEAD_BYTES = 40_000_000  # about what is read here until it has started


@dataclass(frozen=True)
class Wanted:
    """Generations of which modes, whether with warm-up, and whether with the answers' texts."""

    modes: tuple[Mode, ...]
    warm_up: bool = False
    texts: bool = False


@dataclass
class Gathered:
    """Columns by mode, and the rounds in which any generation was measured out of bounds; or what `problem` ended it.

    `lines` has where the generations stand of the file that two processes share, as far as it was gone through.
    """

    columns: dict[Mode, Columns]
    doubted: set[Round] = field(default_factory=set)
    lines: Lines = field(default_factory=dict)
    problem: UserError | None = None


@dataclass(frozen=True)
class _Part:
    """Files to go through, or rows of them, with their numbers."""

    files: tuple[tuple[int, RunFile], ...]
    shared: int = -1  # the number of the file that another process reads a part of


def gather(files: Sequence[RunFile], wanted: Wanted) -> Gathered:
    """All that is wanted, in the order of files and rows. Raises UserError where going through the rows does."""
    part, other = _parts(files)
    if other is None:
        found = _gathered(part, wanted)
    else:
        with Aside(_gathered, other, wanted) as aside:
            found = _gathered(part, wanted)
            if found.problem is None:
                _append(found, aside.answer() or _gathered(other, wanted), files[other.shared])
    if found.problem is not None:
        raise found.problem
    return found


def _gathered(part: _Part, wanted: Wanted) -> Gathered:
    found = Gathered({mode: Columns() for mode in wanted.modes})
    try:
        for number, file in part.files:
            rows: Iterable[Row] = file.rows
            if number == part.shared and isinstance(rows, StoredRows):
                rows = rows.checked(found.lines)
            _take(found, number, file.run, rows, wanted)
    except UserError as problem:
        found.problem = problem
    return found


def _take(found: Gathered, number: int, run: Run, rows: Iterable[Row], wanted: Wanted) -> None:
    suites = {suite.name: suite for suite in run.suites}
    labels = {method.label for method in run.methods}
    for batch in _batches(rows):
        batch_decode_s = max(sum(row.step_s) for row in batch)
        if any(row.invalid for row in batch):
            found.doubted.add(round_of(number, batch[0]))
        for row in batch:
            columns = found.columns.get(row.mode)
            if columns is not None and row.label in labels and (wanted.warm_up or row.repeat >= 0):
                text = row.text if wanted.texts else None
                columns.add(line_of(number, row, text, run, suites[row.suite], batch_decode_s), row)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """What was decoded together: rows of a batch stand together, see Row."""
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) >= len(row.batch):
            yield waiting
            waiting = []


def _append(found: Gathered, others: Gathered, shared: RunFile) -> None:
    """What the other process found, after this one's, with the problem that comes first in the file."""
    found.problem = doubled(shared.path, found.lines, others.lines) or others.problem
    if found.problem is None:
        found.doubted |= others.doubted
        for mode, columns in found.columns.items():
            columns.extend(others.columns[mode])


def _parts(files: Sequence[RunFile]) -> tuple[_Part, _Part | None]:
    """What is read here, and what by another process, if that is worth it: where rows are still in their files, and
    many. The other part takes as long, less what it takes to start."""
    numbered = tuple(enumerate(files))
    stored = [file.rows for file in files if isinstance(file.rows, StoredRows)]
    total = sum(rows.size_bytes for rows in stored)
    if len(stored) < len(files) or total < _LARGE_BYTES or _cores() < 2:
        return _Part(numbered), None
    mark = (total + _AHEAD_BYTES) // 2
    for (number, file), rows in zip(numbered, stored, strict=True):
        if mark < rows.size_bytes:
            here, there = ((number, replace(file, rows=part)) for part in rows.parted(mark))
            return _Part((*numbered[:number], here), number), _Part((there, *numbered[number + 1 :]), number)
        mark -= rows.size_bytes
    return _Part(numbered), None


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
