"""Large files are read by two processes, and nothing that is found or refused depends on that."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, batch, drafted_row, failed, usual_rows, write

from benchctl.analysis import aside
from benchctl.analysis.aside import Aside
from benchctl.analysis.frame import build as gather
from benchctl.analysis.frame.build import to_frames
from benchctl.errors import InvalidData
from benchctl.records.schema import Mode, Row, to_line
from benchctl.records.writer import read, scan
from benchmarks.made_up import MadeUp

MODES: tuple[Mode, ...] = ("free", "replay", "profile")


class Within:
    """Calls the function in this process, on copies of what the other one would be given, and gives back a copy."""

    parts: list[Any] = []  # what was handed over

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._work = pickle.dumps((function, arguments))
        self.parts.append(arguments[0])

    def __enter__(self) -> Within:
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self) -> object:
        function, arguments = pickle.loads(self._work)
        return pickle.loads(pickle.dumps(function(*arguments)))


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> type[Within]:
    """Every file counts as large, and its parts as equally long."""
    monkeypatch.setattr(gather, "_LARGE_BYTES", 1)
    monkeypatch.setattr(gather, "_AHEAD_BYTES", 0)
    monkeypatch.setattr(gather, "_cores", lambda: 2)
    monkeypatch.setattr(gather, "Aside", Within)
    monkeypatch.setattr(Within, "parts", [])
    return Within


def told_by_one(*paths: Path) -> dict[Any, pd.DataFrame]:
    """What is read as a whole, rows held."""
    return to_frames([read(path) for path in paths], MODES, warm_up=True, texts=True)


def told_by_two(*paths: Path) -> dict[Any, pd.DataFrame]:
    return to_frames([scan(path) for path in paths], MODES, warm_up=True, texts=True)


def assert_same(found: dict[Any, pd.DataFrame], usual: dict[Any, pd.DataFrame]) -> None:
    assert list(found) == list(usual)
    for mode, frame in usual.items():
        pd.testing.assert_frame_equal(found[mode], frame)


def all_kinds() -> list[Row]:
    """Of every mode, with warm-up, failures, counters and conditions that not every row has, and a doubted round whose
    rows stand far from each other."""
    rows = [*islice(MadeUp(MODES, tokens=9).rows(), 24)]
    rows[0] = replace(rows[0], repeat=-1)
    rows[3] = replace(rows[3], counters={"loads": 3.0}, conditions={"clock_mhz": 5.0})
    rows[20] = replace(rows[20], fidelity={"scored_tokens": 9.0}, counters={"stalls": 1.0, "loads": 2.0})
    rows[22] = replace(rows[22], invalid="throttled", repeat=rows[2].repeat, turn=1)
    rows[23] = replace(failed(rows[23]), mode=rows[23].mode)
    return rows


def test_two_processes_find_what_one_finds(tmp_path: Path, parted: type[Within]) -> None:
    path = write(tmp_path / "run.jsonl", all_kinds(), MadeUp(MODES, tokens=9).run)
    assert_same(told_by_two(path), told_by_one(path))
    (part,) = parted.parts
    ((number, file),) = part.files
    assert number == 0 and 6 < len(file.rows) < 18


def test_a_real_process_finds_it_too(tmp_path: Path, parted: type[Within], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Asked(Aside[Any]):
        def answer(self) -> Any:
            found = super().answer()
            asked.append(found is not None)
            return found

    monkeypatch.setattr(gather, "Aside", Asked)
    path = write(tmp_path / "run.jsonl", all_kinds(), MadeUp(MODES, tokens=9).run)
    assert_same(told_by_two(path), told_by_one(path))
    assert asked == [True]


@pytest.mark.parametrize("sizes", [(3, 3), (1, 9), (9, 1), (4, 1, 4), (0, 2)])
def test_files_are_dealt_out_whole_but_for_one(tmp_path: Path, parted: type[Within], sizes: Sequence[int]) -> None:
    """They are numbered in the order in which they were named, whoever reads them."""
    runs = [replace(RUN, name=f"run {number}") for number in range(len(sizes))]
    paths = [
        write(tmp_path / f"{number}.jsonl", usual_rows(size), run)
        for number, (size, run) in enumerate(zip(sizes, runs, strict=True))
    ]
    assert_same(told_by_two(*paths), told_by_one(*paths))
    (part,) = parted.parts
    handed = sum(len(file.rows) for _, file in part.files)
    assert 0.3 < handed / (3 * sum(sizes)) < 0.7


def spoilt(lines: list[bytes], at: int, how: str) -> None:
    """Breaks the row in place `at`, or makes it that of place 1."""
    if how == "times":
        assert b'"ttft_s":2.0' in lines[at]
        lines[at] = lines[at].replace(b'"ttft_s":2.0', b'"ttft_s":-2.0')
    elif how == "label":
        lines[at] = lines[at].replace(b'"label":"', b'"label":"other ')
    else:
        lines[at] = lines[1]


@pytest.mark.parametrize(("first", "second"), [(3, 20), (3, 5), (16, 20), (20, 29), (28, 30)])
@pytest.mark.parametrize("how", [("times", "twice"), ("twice", "times"), ("twice", "label"), ("label", "twice")])
def test_the_first_line_that_is_wrong_is_named_whoever_reads_it(
    tmp_path: Path, parted: type[Within], first: int, second: int, how: tuple[str, str]
) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows(10))
    lines = path.read_bytes().splitlines(keepends=True)
    spoilt(lines, first, how[0])
    spoilt(lines, second, how[1])
    path.write_bytes(b"".join(lines))
    with pytest.raises(InvalidData, match=f"run.jsonl:{first + 1}: ") as alone:
        told_by_one(path)
    with pytest.raises(InvalidData) as together:
        told_by_two(path)
    assert str(together.value) == str(alone.value)
    assert len(parted.parts) == 1


def test_a_row_of_the_other_part_that_is_there_twice_is_named_with_both_lines(
    tmp_path: Path, parted: type[Within]
) -> None:
    rows = usual_rows(10)
    path = write(tmp_path / "run.jsonl", [*rows, rows[2], rows[29], rows[1]])
    with pytest.raises(InvalidData, match="run.jsonl:32: the same generation as line 4. Remove one of the two lines"):
        told_by_two(path)


def test_what_is_no_file_of_many_single_rows_is_read_by_one(
    tmp_path: Path, parted: type[Within], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches stand together; rows that are held need not be read; and one core has no use for two processes."""
    path = write(tmp_path / "run.jsonl", usual_rows(2))
    batches = [*batch(baseline_row("p0"), baseline_row("p1")), *batch(drafted_row("p0"), drafted_row("p1"))]
    batched = write(tmp_path / "batched.jsonl", batches, replace(RUN, batch_size=2))
    to_frames([read(path), scan(path)], MODES)
    assert parted.parts == []
    assert_same(told_by_two(batched), told_by_one(batched))
    assert all(not file.rows for part in parted.parts for _, file in part.files)
    monkeypatch.setattr(Within, "parts", [])
    for name, value in (("_cores", lambda: 1), ("_LARGE_BYTES", 1e6)):
        with monkeypatch.context() as context:
            context.setattr(gather, name, value)
            assert_same(told_by_two(path), told_by_one(path))
    assert Within.parts == []


@pytest.mark.parametrize("program", ["/nonexistent/python", "/bin/false"])
def test_where_the_other_process_is_lost_its_part_is_read_here(
    tmp_path: Path, parted: type[Within], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(gather, "Aside", Aside)
    monkeypatch.setattr(aside.sys, "executable", program)  # type: ignore[attr-defined]
    path = write(tmp_path / "run.jsonl", usual_rows(4))
    assert_same(told_by_two(path), told_by_one(path))


def test_an_answer_that_was_cut_off_is_none() -> None:
    with Aside(Path, "a") as work:
        assert work.answer() == Path("a")
    with Aside(sys.exit, 3) as work:
        assert work.answer() is None


def test_what_is_printed_on_the_way_is_no_part_of_the_answer() -> None:
    """A library that greets or warns on stdout as it is imported made an answer that could not be read."""
    with Aside(subprocess.call, ["echo", "welcome"]) as work:
        assert work.answer() == 0


def test_the_other_process_ends_with_what_needed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt would leave it at work, and its complaints on the screen."""
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            started.append(self)

    monkeypatch.setattr(aside.subprocess, "Popen", Kept)  # type: ignore[attr-defined]
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Aside(time.sleep, 60):
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 30
    assert [process.returncode for process in started] == [-9]


def test_labels_that_both_parts_have_are_one_method(tmp_path: Path, parted: type[Within]) -> None:
    frame = told_by_two(write(tmp_path / "run.jsonl", usual_rows(4)))["free"]
    assert set(frame["label"]) >= {BASELINE, DRAFTED} and len(frame) == 12


def test_lines_are_told_as_they_stand_in_the_file(tmp_path: Path) -> None:
    """A part of a file begins somewhere in it."""
    path = write(tmp_path / "run.jsonl", usual_rows(4))
    path.write_bytes(path.read_bytes() + to_line(failed(baseline_row("p9"))).replace(b'"turn":0', b'"turn":-1'))
    _, second = scan(path).rows.parted(10**9)  # type: ignore[attr-defined]
    assert len(second) == 0
    first, second = scan(path).rows.parted(1)  # type: ignore[attr-defined]
    assert (len(first), len(second)) == (1, 12) and second[0] == scan(path).rows[1]
    for look in (list, lambda rows: rows[-1]):
        with pytest.raises(InvalidData, match="run.jsonl:14: turn: "):
            look(second)
