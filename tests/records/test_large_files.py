"""Files of a hundred thousand generations are compared in seconds, and without holding their rows.

The goal for a file of that size is 20 s and 1 GB, 10 kB a row."""

import tracemalloc
from pathlib import Path

import pytest
from made_up import MadeUp

from benchctl.analysis.comparison import compare
from benchctl.records import reader
from benchctl.records.schema import Row, from_line
from benchctl.records.writer import read, scan


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "run.jsonl"
    MadeUp().write(path, 1200)
    return path


@pytest.mark.slow
def test_rows_are_not_held_while_they_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    MadeUp(tokens=1601).write(path, 120)
    compare([scan(path)])  # whatever is loaded or cached on the way
    tracemalloc.start()
    compare([scan(path)])
    streamed = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    compare([read(path)])
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert streamed < held / 4 and streamed < path.stat().st_size


def test_a_file_is_read_once_however_many_modes_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of three modes took three times as long as one of as many rows."""
    parsed: list[bytes] = []

    def parse(kind: type[Row], line: bytes) -> Row:
        parsed.append(line)
        return from_line(kind, line)

    monkeypatch.setattr(reader, "from_line", parse)
    MadeUp(("free", "replay", "profile"), tokens=9).write(tmp_path / "run.jsonl", 90)
    file = scan(tmp_path / "run.jsonl")
    groups = compare([file])
    assert list(groups[0].others) == ["replay", "profile"]
    assert len(parsed) <= len(file.rows) + 2  # the run, and the first row, to see whether there is one


def test_rows_that_stay_in_their_file_can_be_had_like_any_others(path: Path) -> None:
    rows, held = scan(path).rows, read(path).rows
    assert (len(rows), rows[0], rows[-1]) == (len(held), held[0], held[-1])
    assert rows[3:5] == held[3:5]
    with pytest.raises(IndexError):
        rows[len(held)]
