"""Records as a table: one line per generation, with sums of the per-step lists and the unit in each column's name."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from benchctl.analysis.aside import Aside
from benchctl.analysis.frame.fidelity import Round, round_of
from benchctl.analysis.frame.rows import Columns, line_of
from benchctl.errors import UserError
from benchctl.records.reader import Lines, StoredRows, doubled
from benchctl.records.schema import Mode, Row, Run
from benchctl.records.writer import RunFile, read

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


# Answers to the same turn, measured in turns by the same process: only these are compared with each other.
_PAIRED = ["file", "suite", "prompt_id", "turn", "repeat", "session"]
_ANSWERED = ["suite", "prompt_id", "turn"]


def load(paths: Sequence[Path | str], *, warm_up: bool = False, mode: Mode = "free") -> pd.DataFrame:
    """The generations of results files, see `to_frame`. Raises UserError for a file that cannot be read."""
    return to_frame([read(path) for path in paths], warm_up=warm_up, mode=mode)


def to_frame(files: Sequence[RunFile], *, warm_up: bool = False, mode: Mode = "free") -> pd.DataFrame:
    """The generations of one mode: see `to_frames`."""
    return to_frames(files, [mode], warm_up=warm_up)[mode]


def to_frames(
    files: Sequence[RunFile], modes: Iterable[Mode], *, warm_up: bool = False, texts: bool = False
) -> dict[Mode, pd.DataFrame]:
    """A Line per generation of `files`, in the order of files and rows, warm-up left out unless asked for.

    A frame for each mode, for what is forced or profiled takes other times than what runs freely: a figure that mixed
    them would be of neither. All are made as the rows are gone through once, which is what takes time. Nothing is of
    methods that are not among its run's: see comparison.over. Answers' texts are as large as all else together, so they
    are left out unless asked for.

    Beside its fields there is a column `counter_...` for every counter, `fidelity_...` for every sum about fidelity,
    `condition_...` for every condition, `position_...` for every count of a draft's positions (see acceptance.py) and
    `phase_...` for the seconds of every phase of its steps that any of the rows has, empty for the others.
    """
    found = gather(files, Wanted(tuple(modes), warm_up, texts))
    return {mode: columns.frame(found.doubted) for mode, columns in found.columns.items()}


def pair(frame: pd.DataFrame, label: str, baseline: str) -> pd.DataFrame:
    """The valid generations of `label`, each with the baseline's answer to the same turn, if that is valid too.

    The baseline's columns end in `_baseline`. Every figure is taken over these pairs, so that all figures of a method,
    and the baseline's times, speak of the same prompts. A generation that failed is not valid, nor is any of a round
    that was measured out of bounds, see rounds.py. Where the two never shared a session, as in files of other programs,
    each generation stands beside every one of the baseline's for that turn; see measured_apart.
    """
    whole = frame[frame["error"].isna() & ~frame["round_invalid"]]
    answers, baselines = whole[whole["label"] == label], whole[whole["label"] == baseline]
    if _share_a_session(frame, label, baseline):
        pairs = answers.merge(baselines, on=_PAIRED, suffixes=("", "_baseline"))
        return pairs.assign(file_baseline=pairs["file"], session_baseline=pairs["session"])
    return answers.merge(baselines, on=_ANSWERED, suffixes=("", "_baseline"))


def measured_apart(pairs: pd.DataFrame) -> bool:
    """Whether these pairs set a session against another one, so that the difference between them is in every ratio."""
    same = (pairs["file"] == pairs["file_baseline"]) & (pairs["session"] == pairs["session_baseline"])
    return not bool(same.all())


def _share_a_session(frame: pd.DataFrame, label: str, baseline: str) -> bool:
    """Also where nothing of it came out well: a session whose baseline failed is not made up for by another's."""
    measured = frame[["label", "file", "session"]].drop_duplicates()
    sessions = [set(zip(rows["file"], rows["session"], strict=True)) for rows in
                (measured[measured["label"] == label], measured[measured["label"] == baseline])]  # fmt: skip
    return bool(sessions[0] & sessions[1]) or not all(sessions)
