"""A run that is killed, or that the disk or another run stops, and resumed: no row is lost but the one in flight.

The runs have no model: the contract is that of session, writer, lock and signals.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes_sessions import LABELS, Met, measure
from fixtures_run import make_settings, write_prompts
from forked_runs import TIMEOUT_S, ForkedRun, Request, RunServer
from refusals import refused
from tiny import tiny_folder

from benchctl.measuring.check import check
from benchctl.measuring.plan import Plan
from benchctl.measuring.prompts.files import Prompt
from benchctl.records.writer import RunFile, Writer, read

PROMPTS = (
    Prompt("talk", "koala", ("Say something.", "And now?")),
    *(Prompt(f"p{number}", "koala", ("Count.",)) for number in range(9)),
)
PLANS = {
    "plain": Plan(PROMPTS, LABELS, repeats=2),
    "batched": Plan(PROMPTS, LABELS, repeats=2, batch_size=3),
    "modes": Plan(PROMPTS, LABELS, repeats=2, modes=("free", "replay", "profile")),
}
KILLS = 34  # of each kind of run


@dataclass(frozen=True)
class Kind:
    """Runs of one plan, and one of them that was not interrupted."""

    plan: Plan
    whole: RunFile

    @property
    def bytes(self) -> bytes:
        return self.whole.path.read_bytes()

    def to(self, out: Path, **options: int) -> Request:
        return Request(self.plan, out, out.with_suffix(".log"), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Iterator[RunServer]:
    with RunServer() as server:
        yield server


def kind_of(name: str, folder: Path) -> Kind:
    path = folder / "whole.jsonl"
    measure(path, PLANS[name], lambda task: Met({}), None)
    return Kind(PLANS[name], read(path))


@pytest.fixture(params=PLANS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return kind_of(request.param, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Kind:
    return kind_of("plain", tmp_path)


def lines_of(out: Path) -> list[bytes]:
    """Whole lines; a kill may leave the last one torn."""
    lines = out.read_bytes().splitlines(keepends=True) if out.exists() else []
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def kill_soon(process: ForkedRun, out: Path, lines: int, delay_s: float) -> bool:
    """Kill it a little after the file has that many lines; False where the run was over before."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s and len(lines_of(out)) < lines and process.is_running:
        time.sleep(0.001)
    time.sleep(delay_s)
    if not process.is_running:
        return False
    process.kill()
    return True


def check_after_a_kill(process: ForkedRun, kind: Kind, out: Path, before: list[bytes]) -> None:
    """All rows that the run reported are in the file, in order, after those from before; at most one job more."""
    lines = lines_of(out)
    if not lines:
        assert process.done == 0
        return
    assert lines[: len(before)] == before
    assert kind.bytes.startswith(b"".join(lines))
    assert process.done <= len(lines) - 1 <= max(process.done, len(before) - 1) + kind.plan.batch_size


def test_a_run_that_is_killed_repeatedly_ends_as_if_never_killed(server: RunServer, kind: Kind, tmp_path: Path) -> None:
    """Kills fall anywhere: before the first line, in and between generations."""
    chance, kills, files = random.Random(2), 0, 0
    while kills < KILLS:
        out, process = tmp_path / f"{files}.jsonl", None
        files += 1
        while process is None or process.ended != 0:
            before, more = lines_of(out), chance.randint(0, 6)
            process = server.start(kind.to(out))
            if kills < KILLS and kill_soon(process, out, len(before) + more, chance.uniform(0, 0.01)):
                kills += 1
                check_after_a_kill(process, kind, out, before)
            else:
                assert process.wait() == 0, process.error
        assert out.read_bytes() == kind.bytes
    assert files < KILLS // 2


def test_a_file_cut_at_any_byte_is_continued_after_its_last_whole_row(kind: Kind, tmp_path: Path) -> None:
    """Also when only a newline is missing: a line appended after it would spoil both."""
    out, data = tmp_path / "out.jsonl", kind.bytes
    ends = [end for end in range(len(data)) if data[end : end + 1] == b"\n"]
    chance = random.Random(3)
    for cut in [0, 1, *chance.sample(range(len(data)), 40), *chance.sample(ends, 6), *(end + 1 for end in ends[:6])]:
        out.write_bytes(data[:cut])
        with Writer(out, kind.whole.run, resume=True) as writer:
            done = len(writer.stored.rows)
            assert writer.stored.rows == kind.whole.rows[:done]
            assert done > data[:cut].count(b"\n") - 1 - kind.plan.batch_size
            writer.append(*kind.whole.rows[done:])
        assert out.read_bytes() == data, cut


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_run_that_fills_the_disk_ends_with_an_error_and_continues_when_there_is_room(
    server: RunServer, kind: Kind, tmp_path: Path, share: float
) -> None:
    """The system refuses to let the file grow in the middle of a line: of the first one, and of later ones."""
    out, data = tmp_path / "out.jsonl", kind.bytes
    header_bytes = data.index(b"\n") + 1
    room_bytes = round(header_bytes + share * (len(data) - header_bytes)) - 5
    process = server.start(kind.to(out, most_file_bytes=room_bytes))
    assert process.wait() == 1
    assert process.error.startswith("benchctl.errors.UserError: ") and str(out) in process.error
    assert "File too large" in process.error and "--resume" in process.error
    lines = out.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    assert process.done == max(len(lines) - 1, 0)
    longest_bytes = max(map(len, data.splitlines()))
    assert room_bytes - sum(map(len, lines)) < 2 * longest_bytes * kind.plan.batch_size, "it gave up early"
    assert server.start(kind.to(out)).wait() == 0
    assert out.read_bytes() == data


def test_a_file_system_that_became_read_only_is_named_and_the_file_left_as_it_is(
    plain: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    torn = plain.bytes[:-10]
    out.write_bytes(torn)

    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        assert flags & (os.O_WRONLY | os.O_RDWR), "only writing is refused"
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with refused("cannot_write", f"{out}: ", os.strerror(errno.EROFS)):
        Writer(out, plain.whole.run, resume=True).__enter__()
    monkeypatch.undo()
    assert out.read_bytes() == torn


def test_a_second_run_on_a_file_is_refused_and_harms_nothing(server: RunServer, plain: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first = server.start(plain.to(out, halts_at=2))
    with first.halted():
        before = out.read_bytes()
        second = server.start(replace(plain.to(out), log=tmp_path / "second.log"))
        assert second.wait() == 1
        assert f"{out}: another run" in second.error
        assert out.read_bytes() == before
    assert first.wait() == 0, first.error
    assert out.read_bytes() == plain.bytes


def test_of_two_runs_that_start_a_file_at_once_one_is_refused(server: RunServer, plain: Kind, tmp_path: Path) -> None:
    for number in range(3):
        out = tmp_path / f"{number}.jsonl"
        request = replace(plain.to(out), resume=False)
        both = [server.start(replace(request, log=tmp_path / f"{number}-{index}.log")) for index in range(2)]
        assert sorted(process.wait() for process in both) == [0, 1]
        refused = next(process for process in both if process.wait() == 1)
        assert "another run" in refused.error or "exists" in refused.error
        assert out.read_bytes() == plain.bytes


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder here that not even root can write")
@pytest.mark.parametrize(("name", "resume"), [("/sys/kernel/out.jsonl", True), ("torn.jsonl", False)])
@pytest.mark.usefixtures("no_weights")
def test_a_file_that_cannot_be_written_or_exists_is_refused_before_models_are_loaded(
    tmp_path: Path, name: str, resume: bool
) -> None:
    tiny_folder(tmp_path / "target", layers=2)
    tiny_folder(tmp_path / "draft", layers=1)
    write_prompts(tmp_path / "three.jsonl", [{"prompt": "Hi."}])
    out = tmp_path / name
    if not resume:
        out.write_text("torn")
    with refused("cannot_write" if resume else "file_exists", "--out"):
        check(replace(make_settings(tmp_path, out), resume=resume), lambda notice: None)
    assert resume or out.read_text() == "torn"
