"""The benchmark of reading writes what it says and measures the process that reads."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchctl.recordfile import read as read_records
from benchmarks import reading
from benchmarks.reading import MODES, Reading, main, read, write_run


def test_the_file_has_as_many_generations_as_asked_for_and_all_can_be_true(tmp_path: Path) -> None:
    write_run(tmp_path / "run.jsonl", 65, MODES)
    rows = read_records(tmp_path / "run.jsonl").rows
    assert len(rows) == 65
    assert {row.mode for row in rows} == set(MODES) and {row.label for row in rows} == set(reading.METHODS)
    assert len({row.step_s for row in rows}) == 65


def test_what_it_took_is_that_of_the_process_that_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "run.jsonl", 40, MODES[:1])
    found = read(tmp_path / "run.jsonl")
    assert 0.2 < found.user_s + found.system_s < found.wall_s + 5
    assert 5e7 < found.peak_bytes < 1e9
    (tmp_path / "run.jsonl").write_text("nothing\n")
    with pytest.raises(ChildProcessError, match="exit code 3"):
        read(tmp_path / "run.jsonl")


@pytest.mark.parametrize(("wall_s", "peak_bytes", "code"), [(9.9, 990_000_000, 0), (10.1, 1, 1), (1, 1_010_000_000, 1)])
def test_beyond_ten_seconds_or_a_gigabyte_it_fails(
    monkeypatch: pytest.MonkeyPatch, wall_s: float, peak_bytes: int, code: int
) -> None:
    monkeypatch.setattr(reading, "read", lambda path: Reading(wall_s, 1.0, 0.5, peak_bytes))
    result = CliRunner().invoke(main, ["--generations", "10", "--times", "2"])
    assert result.exit_code == code
    assert result.output.count(f"{wall_s:.2f} s (1.00 s user, 0.50 s system), {peak_bytes / 1e6:.0f} MB at most") == 2
