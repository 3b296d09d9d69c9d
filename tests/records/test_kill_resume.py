"""A run that is killed, or that the disk or another run stops, and resumed: no row lost but the one in flight, none
doubled, and nothing else changed."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fixtures_run import measured, timeless, write_prompts
from forked_runs import TIMEOUT_S, ForkedRun, RunServer
from tiny import tiny_folder

from benchctl.decoding.model.target import Target
from benchctl.errors import UserError
from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.run import run
from benchctl.records.reader import row_key
from benchctl.records.writer import RunFile, Writer, read

EXITING = "early_exit[threshold=0.0]"
SKIPPING = "skip_decode[adapters=none,min_layers=1]"
PROMPTS = [
    {"id": "first", "prompt": "Say something."},
    {"id": "talk", "turns": ["Say something.", "And now?"]},
    *({"id": f"p{number}", "prompt": f"Count to {number}."} for number in range(14)),
]
NEW_TOKENS = 5
KILLS = 34  # of each kind of run, of which there are three


@dataclass(frozen=True)
class Kind:
    """Runs of one kind: their settings but for the file, and one of them that nobody interrupts."""

    settings: ask.RunSettings
    whole: RunFile

    @property
    def most_at_once(self) -> int:
        return self.settings.batch_size

    def to(self, out: Path) -> ask.RunSettings:
        return replace(self.settings, out=out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    tiny_folder(folder / "target", layers=2, stop_ids=(319,))
    write_prompts(folder / "counting.jsonl", PROMPTS)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[RunServer]:
    with RunServer() as server:
        yield server


def usual_settings(folder: Path) -> ask.RunSettings:
    return ask.RunSettings(
        methods=(EXITING,),
        prompts=ask.PromptSettings(benches=(str(folder / "counting.jsonl"),)),
        models=ask.ModelSettings(str(folder / "target"), device="cpu"),
        answers=ask.AnswerSettings(max_new_tokens=NEW_TOKENS),
        repeat=ask.RepeatSettings(repeats=2, warm_up=1),
        watch=False,  # what the machine met is not the same twice, and it is busy with the kills
        resume=True,
    )


def kind_of(server: RunServer, settings: ask.RunSettings, path: Path) -> Kind:
    server.measure(replace(settings, out=path), path.with_suffix(".told"))
    return Kind(settings, read(path))


@pytest.fixture(scope="module")
def plain(server: RunServer, folder: Path) -> Kind:
    return kind_of(server, usual_settings(folder), folder / "plain.jsonl")


@pytest.fixture(scope="module")
def batched(server: RunServer, folder: Path) -> Kind:
    settings = replace(usual_settings(folder), methods=(SKIPPING,), batch_size=3)
    return kind_of(server, settings, folder / "batched.jsonl")


@pytest.fixture(scope="module")
def of_all_modes(server: RunServer, folder: Path) -> Kind:
    settings = usual_settings(folder)
    settings = replace(settings, repeat=replace(settings.repeat, replay=True, profile=True))
    return kind_of(server, settings, folder / "modes.jsonl")


@pytest.fixture(params=["plain", "batched", "of_all_modes"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.getfixturevalue(request.param)
    return found


def measure(settings: ask.RunSettings) -> None:
    run(check(settings, lambda notice: None), lambda event: None)


def lines_of(out: Path) -> list[bytes]:
    """Whole lines; a kill may leave the last one torn."""
    lines = out.read_bytes().splitlines(keepends=True) if out.exists() else []
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def kill_soon(process: ForkedRun, out: Path, lines: int, delay_s: float) -> bool:
    """Kill it a little after the file has that many lines; False where the run was over before."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s and len(lines_of(out)) < lines and process.is_running:
        time.sleep(0.004)  # more often would take the core from the run
    time.sleep(delay_s)
    if not process.is_running:
        return False
    process.kill()
    return True


def check_after_a_kill(process: ForkedRun, kind: Kind, out: Path, before: list[bytes]) -> None:
    """What the run had said to be written is in the file, in order, behind what was there; at most one job more."""
    if not lines_of(out):
        assert process.done == 0
        return
    assert lines_of(out)[: len(before)] == before
    rows = measured(read(out))
    assert process.done <= len(rows) <= max(process.done, len_measured(before)) + kind.most_at_once
    assert timeless(rows) == timeless(measured(kind.whole))[: len(rows)]


def len_measured(lines: list[bytes]) -> int:
    return sum(b'"repeat":-' not in line for line in lines[1:])


def check_as_if_never_killed(kind: Kind, out: Path) -> None:
    file = read(out)
    assert file.notices == ()
    assert len({row_key(row) for row in file.rows}) == len(file.rows)
    assert timeless(measured(file)) == timeless(measured(kind.whole))


@pytest.mark.slow
def test_runs_killed_a_hundred_times_end_as_if_never_killed(server: RunServer, kind: Kind, tmp_path: Path) -> None:
    """Kills fall anywhere: while prompts are read, the model is loaded, in warm-up, in and between generations."""
    chance, kills, files = random.Random(2), 0, 0
    while kills < KILLS:
        out, process = tmp_path / f"{files}.jsonl", None
        files += 1
        while process is None or process.ended != 0:
            before, more = lines_of(out), chance.randint(0, 6)
            delay_s = chance.uniform(0, 0.02 if more else 0.3)
            process = server.start(kind.to(out), tmp_path / "told")
            if kills < KILLS and kill_soon(process, out, len(before) + more, delay_s):
                kills += 1
                check_after_a_kill(process, kind, out, before)
            else:
                assert process.wait() == 0, process.error
        check_as_if_never_killed(kind, out)
    assert files < KILLS // 2, "most runs ended before they were killed"


def test_a_file_cut_at_any_byte_goes_on_with_all_that_was_whole_in_it(kind: Kind, tmp_path: Path) -> None:
    """Kills hit a row while it is written too seldom to wait for. Also when only a newline is missing: a line appended
    behind it would spoil both."""
    out, data = tmp_path / "out.jsonl", kind.whole.path.read_bytes()
    ends = [end for end in range(len(data)) if data[end : end + 1] == b"\n"]
    chance = random.Random(3)
    for cut in [0, 1, *chance.sample(range(len(data)), 60), *chance.sample(ends, 6), *(end + 1 for end in ends[:6])]:
        out.write_bytes(data[:cut])
        with Writer(out, kind.whole.run, resume=True) as writer:
            done = len(writer.stored.rows)
            assert writer.stored.rows == kind.whole.rows[:done]
            assert done > data[:cut].count(b"\n") - 1 - kind.most_at_once
            writer.append(*kind.whole.rows[done:])
        assert out.read_bytes() == data, cut


@pytest.mark.parametrize("bytes_missing", [1, 300])
def test_what_was_torn_is_measured_again(kind: Kind, tmp_path: Path, bytes_missing: int) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(kind.whole.path.read_bytes()[:-bytes_missing])
    measure(kind.to(out))
    check_as_if_never_killed(kind, out)


def test_without_resume_a_torn_file_is_left_as_it_is(plain: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    torn = plain.whole.path.read_bytes()[:-10]
    out.write_bytes(torn)
    with pytest.raises(UserError, match="exists. Continue it with --resume"):
        check(replace(plain.to(out), resume=False), lambda notice: None)
    assert out.read_bytes() == torn


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_run_that_fills_the_disk_says_so_and_goes_on_when_there_is_room(
    server: RunServer, kind: Kind, tmp_path: Path, share: float
) -> None:
    """The system refuses to let the file grow in the middle of a line: of the first one, and of later ones."""
    out, data = tmp_path / "out.jsonl", kind.whole.path.read_bytes()
    header_bytes = data.index(b"\n") + 1
    room_bytes = round(header_bytes + share * (len(data) - header_bytes)) - 5
    process = server.start(kind.to(out), tmp_path / "told", most_file_bytes=room_bytes)
    assert process.wait() == 1
    assert process.error.startswith("benchctl.errors.UserError: ") and str(out) in process.error
    assert "cannot be written: File too large. Rows so far are kept; make room and use --resume." in process.error
    lines = out.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    assert process.done == len_measured(lines)
    assert room_bytes - sum(map(len, lines)) < 2 * max(map(len, data.splitlines())) * kind.most_at_once, (
        "it gave up early"
    )
    assert server.start(kind.to(out), tmp_path / "told").wait() == 0
    check_as_if_never_killed(kind, out)


def test_a_file_system_that_became_read_only_is_named_and_the_file_left_as_it_is(
    plain: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    torn = plain.whole.path.read_bytes()[:-10]
    out.write_bytes(torn)

    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        assert flags & (os.O_WRONLY | os.O_RDWR), "only writing is refused"
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=f"{out}: cannot be written: Read-only file system. Give another --out."):
        Writer(out, plain.whole.run, resume=True).__enter__()
    monkeypatch.undo()
    assert out.read_bytes() == torn


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder here that not even root can write")
def test_a_folder_that_cannot_be_written_is_refused_before_models_are_loaded(
    plain: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(UserError, match="/sys/kernel/out.jsonl: .*cannot be written.* Give another --out"):
        check(plain.to(Path("/sys/kernel/out.jsonl")), lambda notice: None)


def test_a_second_run_on_the_same_file_is_refused_and_harms_nothing(
    server: RunServer, plain: Kind, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    first = server.start(plain.to(out), tmp_path / "told")
    while len(lines_of(out)) < 3 and first.is_running:
        time.sleep(0.004)
    with first.halted():
        before = out.read_bytes()
        second = server.start(plain.to(out), tmp_path / "told by the second")
        assert second.wait() == 1
        assert f"{out}: another run is writing it. Wait for it, or give another --out." in second.error
        assert out.read_bytes() == before
    assert first.wait() == 0, first.error
    check_as_if_never_killed(plain, out)


def test_of_two_runs_that_start_a_file_at_once_one_is_refused(server: RunServer, plain: Kind, tmp_path: Path) -> None:
    for number in range(3):
        out = tmp_path / f"{number}.jsonl"
        settings = replace(plain.to(out), resume=False)
        both = [server.start(settings, tmp_path / f"told {number} {place}") for place in range(2)]
        assert sorted(process.wait() for process in both) == [0, 1]
        refused = next(process for process in both if process.wait() == 1)
        assert "another run is writing it" in refused.error or "exists. Continue it" in refused.error
        check_as_if_never_killed(plain, out)
