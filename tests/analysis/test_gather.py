"""Rows that stay in their file give the same frames as rows that are held, and are checked as they are read."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
from fixtures_records import failed, usual_rows, write
from made_up import MadeUp

from benchctl.analysis.frame.build import to_frames
from benchctl.errors import InvalidData
from benchctl.records.schema import Mode, Row
from benchctl.records.writer import read, scan

MODES: tuple[Mode, ...] = ("free", "replay", "profile")


def all_kinds() -> list[Row]:
    """Of every mode, with warm-up, failures, counters and conditions that not every row has, and an invalid round whose
    rows stand far from each other."""
    rows = [*islice(MadeUp(MODES, tokens=9).rows(), 24)]
    rows[0] = replace(rows[0], repeat=-1)
    rows[3] = replace(rows[3], counters={"loads": 3.0}, conditions={"clock_mhz": 5.0})
    rows[20] = replace(rows[20], fidelity={"scored_tokens": 9.0}, counters={"stalls": 1.0, "loads": 2.0})
    rows[22] = replace(rows[22], invalid="throttled", repeat=rows[2].repeat, turn=1)
    rows[23] = replace(failed(rows[23]), mode=rows[23].mode)
    return rows


def test_streamed_rows_make_the_frames_of_held_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", all_kinds(), MadeUp(MODES, tokens=9).run)
    streamed, held = (to_frames([file], MODES) for file in (scan(path), read(path)))
    assert [len(streamed[mode]) for mode in MODES] == [7, 8, 8]
    for mode, frame in held.items():
        pd.testing.assert_frame_equal(streamed[mode], frame)


@pytest.mark.parametrize(("first", "second"), [(3, 20), (20, 29), (28, 30)])
def test_the_first_wrong_line_is_named(tmp_path: Path, first: int, second: int) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows(10))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[first] = lines[first].replace(b'"ttft_s":2.0', b'"ttft_s":-2.0')
    lines[second] = lines[1]
    path.write_bytes(b"".join(lines))
    with pytest.raises(InvalidData, match=f"run.jsonl:{first + 1}: ttft_s: "):
        to_frames([scan(path)], MODES)
