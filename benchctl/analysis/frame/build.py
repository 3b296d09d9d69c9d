"""Records as a table: one line per generation, with sums of the per-step lists and the unit in each column's name."""

from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pandas as pd

from benchctl.analysis.frame.fidelity import Round, round_of
from benchctl.analysis.frame.rows import Line, line_of, named_amounts
from benchctl.records.schema import Mode, Row
from benchctl.records.writer import RunFile, read

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
    """A Line per generation of `files`, in the order of files and rows, without warm-up unless asked for.

    There is a frame for each mode, since forced and profiled generations take other times than free ones. One pass over
    the rows fills all frames. Rows of methods that their run does not list are left out, see comparison.over. Answers'
    texts are as large as everything else together, so they are left out unless asked for.

    In addition to the fields of Line there is a column `counter_...` for every counter, `fidelity_...` for every sum
    about fidelity, `condition_...` for every condition, `position_...` for every count of a draft's positions (see
    acceptance.py) and `phase_...` for the seconds of every phase that any row has, empty for the others.

    Raises UserError for a file that cannot be read.
    """
    columns = {mode: Columns() for mode in modes}
    invalid: set[Round] = set()
    for number, file in enumerate(files):
        suites = {suite.name: suite for suite in file.run.suites}
        labels = {method.label for method in file.run.methods}
        for batch in _batches(file.rows):
            batch_decode_s = max(sum(row.step_s) for row in batch)
            if any(row.invalid for row in batch):
                invalid.add(round_of(number, batch[0]))
            for row in batch:
                if row.mode in columns and row.label in labels and (warm_up or row.repeat >= 0):
                    text = row.text if texts else None
                    line = line_of(number, row, text, file.run, suites[row.suite], batch_decode_s)
                    columns[row.mode].add(line, row)
    return {mode: each.frame(invalid) for mode, each in columns.items()}


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows that were decoded together: rows of a batch stand together, see Row."""
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) >= len(row.batch):
            yield waiting
            waiting = []


def pair(frame: pd.DataFrame, label: str, baseline: str) -> pd.DataFrame:
    """The valid generations of `label`, each with the baseline's answer to the same turn, if that is valid too.

    The baseline's columns end in `_baseline`. Every figure is taken over these pairs, so that all figures of a method,
    and the baseline's times, are of the same prompts. A generation that failed is not valid, nor is one of an invalid
    round, see rounds.py. Where the two never shared a session, as in files of other programs, each generation is paired
    with every one of the baseline's for that turn; see stats/estimates.py, `measured_apart`.
    """
    whole = frame[frame["error"].isna() & ~frame["round_invalid"]]
    answers, baselines = whole[whole["label"] == label], whole[whole["label"] == baseline]
    if _share_a_session(frame, label, baseline):
        pairs = answers.merge(baselines, on=_PAIRED, suffixes=("", "_baseline"))
        return pairs.assign(file_baseline=pairs["file"], session_baseline=pairs["session"])
    return answers.merge(baselines, on=_ANSWERED, suffixes=("", "_baseline"))


def _share_a_session(frame: pd.DataFrame, label: str, baseline: str) -> bool:
    """Whether the two were measured in one session, failed generations included."""
    measured = frame[["label", "file", "session"]].drop_duplicates()
    sessions = [set(zip(rows["file"], rows["session"], strict=True)) for rows in
                (measured[measured["label"] == label], measured[measured["label"] == baseline])]  # fmt: skip
    return bool(sessions[0] & sessions[1]) or not all(sessions)


class Columns:
    """The columns of a frame while its lines are added."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._named: dict[str, list[float | None]] = {}

    def add(self, line: Line, row: Row) -> None:
        """A line, with the amounts that its row holds by name: each name that occurs in any row gets a column."""
        before = len(self._lines)
        self._lines.append(line)
        for name, amount in named_amounts(row):
            column = self._named.setdefault(name, [])
            column += [None] * (before - len(column))  # for the lines since the last one with this name
            column.append(amount)

    def frame(self, invalid: Set[Round]) -> pd.DataFrame:
        """The columns, each at full length, and whether a line is of an invalid round."""
        columns: dict[str, list[Any]] = {
            name: [line[field] for line in self._lines] for field, name in enumerate(Line._fields)
        }
        lines = len(self._lines)
        columns |= {name: values + [None] * (lines - len(values)) for name, values in self._named.items()}
        rounds = zip(*(columns[name] for name in Round._fields), strict=True)
        return pd.DataFrame(columns).assign(round_invalid=pd.Series([each in invalid for each in rounds], dtype=bool))
