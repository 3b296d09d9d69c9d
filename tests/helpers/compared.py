"""Rows compared as if they stood in a results file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from fixtures_records import BASELINE, DRAFTED, RUN

from benchctl.analysis.comparison import Group, MethodFigures, compare
from benchctl.analysis.frame.build import pair, to_frames
from benchctl.analysis.metrics.metric import Metric
from benchctl.records.schema import Mode, Row, Run
from benchctl.records.writer import RunFile


def file_of(rows: Iterable[Row], run: Run = RUN, name: str = "a.jsonl") -> RunFile:
    return RunFile(Path(name), run, tuple(rows))


def group_of(rows: Iterable[Row], run: Run = RUN) -> Group:
    (group,) = compare([file_of(rows, run)])
    return group


def figures_of(group: Group, label: str = DRAFTED) -> MethodFigures:
    return next(method for method in group.pooled.methods if method.label == label)


def value_of(group: Group, metric: Metric, label: str = DRAFTED) -> float | None:
    return figures_of(group, label).estimate(metric).value


def to_frame(files: Sequence[RunFile], mode: Mode = "free") -> pd.DataFrame:
    return to_frames(files, [mode])[mode]


def frame_of(rows: Iterable[Row], run: Run = RUN, mode: Mode = "free") -> pd.DataFrame:
    return to_frame([file_of(rows, run)], mode)


def pairs_of(rows: Iterable[Row], label: str = DRAFTED, mode: Mode = "free") -> pd.DataFrame:
    """The free answers of a method with the baseline's."""
    return pair(frame_of(rows, mode=mode), label, BASELINE)
