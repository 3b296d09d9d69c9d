"""A training run killed by SIGKILL and resumed ends with the bits of one that nobody kills."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_training import assert_same, loaded, names, tiny_settings, tiny_trainer

WORKER = Path(__file__).parents[1] / "helpers" / "tiny_training.py"
TIMEOUT_S = 120
SIGKILLED = -9


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """The tiny run in a process of its own."""
    command = [sys.executable, str(WORKER), str(folder), "--steps", "12", *options]
    return subprocess.Popen(command)


@pytest.mark.slow
def test_a_run_that_is_killed_ends_like_one_that_is_not(tmp_path: Path) -> None:
    """SIGKILL, once wherever it is and once between two files of a checkpoint; Muon and AdamW, stages, accumulation."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    tiny_trainer(whole, tiny_settings()).train()

    process = start(killed, "--slow", "0.05")
    wait_for(killed / "step-0000003", process)
    process.kill()
    assert process.wait(TIMEOUT_S) == SIGKILLED
    reached = loaded(killed).position.step
    assert 3 <= reached < 12

    process = start(killed, "--resume", "--die-in-save", "2")
    assert process.wait(TIMEOUT_S) == SIGKILLED
    assert loaded(killed).position.step == reached + 1
    assert ".partial-" in "".join(names(killed))

    trainer = tiny_trainer(killed, tiny_settings())
    assert trainer.resume()
    trainer.train()
    assert names(killed) == ["log.jsonl", f"step-{reached + 1:07d}", "step-0000012"]
    assert_same(whole, killed)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not path.exists() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.002)
