"""A run that is killed and resumed: no row lost but the one in flight, none doubled, and nothing else changed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import measured, timeless, write_prompts
from tiny import tiny_folder

from benchctl.errors import UserError
from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.run import run
from benchctl.recordfile import RunFile, read
from benchctl.rowkeys import row_key

LABELS = ("autoregressive", "early_exit[threshold=0.0]")
PROMPTS = [
    {"id": "talk", "turns": ["Say something.", "And now?"]},
    *({"id": f"p{number}", "prompt": f"Count to {number}."} for number in range(8)),
]
GENERATIONS = (8 + 2) * len(LABELS) * 2
NEW_TOKENS = 80
KILLS = 3
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    tiny_folder(folder / "target", max_position_embeddings=1024, stop_ids=(319,))
    write_prompts(folder / "counting.jsonl", PROMPTS)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> RunFile:
    """The run that nobody interrupts."""
    measure(settings_for(folder, folder / "whole.jsonl"))
    return read(folder / "whole.jsonl")


def settings_for(folder: Path, out: Path) -> ask.RunSettings:
    return ask.RunSettings(
        methods=LABELS[1:],
        prompts=ask.PromptSettings(benches=(str(folder / "counting.jsonl"),)),
        models=ask.ModelSettings(str(folder / "target"), device="cpu"),
        answers=ask.AnswerSettings(max_new_tokens=NEW_TOKENS),
        repeat=ask.RepeatSettings(repeats=2, warm_up=1),
        out=out,
        resume=True,
    )


def measure(settings: ask.RunSettings) -> None:
    run(check(settings, lambda notice: None), lambda event: None)


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    """The same run in a process of its own."""
    arguments = ["--method", LABELS[1], "--bench", folder / "counting.jsonl", "--model", folder / "target"]
    arguments += ["--device", "cpu", "--max-new-tokens", NEW_TOKENS, "--warm-up", 1, "--out", out, "--resume"]
    command = [sys.executable, "-m", "benchctl", "run", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str], out: Path, lines: int, delay_s: float) -> None:
    """SIGKILL, a little after the file has that many lines."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while lines_of(out) < lines and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.002)
    time.sleep(delay_s)
    process.kill()
    process.communicate()


def lines_of(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_if_never_killed(folder: Path, whole: RunFile, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    moments = random.Random(2)
    kept: list[str] = []
    for _ in range(KILLS):
        process = start(folder, out)
        kill(process, out, lines_of(out) + moments.randint(1, 10), moments.uniform(0, 0.05))
        assert process.returncode == -9, "it ended before it was killed: the run is too short for this test"
        rows = read(out).rows
        assert [row.order for row in rows if row.repeat >= 0] == list(range(len(measured(read(out)))))
        assert out.read_text().startswith("".join(kept))
        kept = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    last = start(folder, out)
    _, told = last.communicate(timeout=TIMEOUT_S)
    assert last.returncode == 0, told
    file = read(out)
    assert file.notices == ()
    assert len({row_key(row) for row in file.rows}) == len(file.rows)
    assert len(measured(file)) == GENERATIONS
    assert timeless(measured(file)) == timeless(measured(whole))


@pytest.mark.parametrize("missing_bytes", [1, 2, 300])
def test_a_line_torn_anywhere_is_measured_again(
    folder: Path, whole: RunFile, tmp_path: Path, missing_bytes: int
) -> None:
    """Also when only its newline is missing: a line appended behind it would spoil both."""
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole.path.read_bytes()[:-missing_bytes])
    measure(settings_for(folder, out))
    assert read(out).notices == ()
    assert timeless(measured(read(out))) == timeless(measured(whole))


@pytest.mark.parametrize("bytes_left", [0, 1, 200])
def test_a_run_killed_in_its_first_line_starts_again(
    folder: Path, whole: RunFile, tmp_path: Path, bytes_left: int
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(whole.path.read_bytes()[:bytes_left])
    measure(settings_for(folder, out))
    assert timeless(measured(read(out))) == timeless(measured(whole))


def test_without_resume_a_torn_file_is_left_as_it_is(folder: Path, whole: RunFile, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    torn = whole.path.read_bytes()[:-10]
    out.write_bytes(torn)
    with pytest.raises(UserError, match="exists. Continue it with --resume"):
        check(replace(settings_for(folder, out), resume=False), lambda notice: None)
    assert out.read_bytes() == torn
