"""Checkpoints: whole or not at all, whatever the disk does; resuming is exact, also after SIGKILL, or refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import full_disk, largest_file
from refusals import refused
from tiny_training import assert_same, loaded, names, tiny_settings, tiny_trainer

from benchctl.errors import UserError
from benchctl.training import checkpoint
from benchctl.training.checkpoint import Checkpoint, Position, load_checkpoint, save_checkpoint


def state(step: int, values: int = 2) -> Checkpoint:
    """A checkpoint whose weights are all its step."""
    moments = {"0": {"moments": torch.ones(values)}}
    random = {"cpu": torch.get_rng_state()}
    return Checkpoint(Position(step), {"w": torch.full((values,), float(step))}, moments, random, {"seed": "0"})


@pytest.mark.parametrize(
    "broken", ["save_file", "torch.save", "Path.mkdir", "Path.write_text", "os.fsync", "Path.rename", "shutil.rmtree"]
)
def test_a_full_disk_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Removing the oldest one is the last moment: then the new one is already there."""
    for step in (1, 2):
        save_checkpoint(tmp_path, state(step))
    with monkeypatch.context() as patch, pytest.raises(UserError) as shown:
        patch.setattr(*failing(broken))
        save_checkpoint(tmp_path, state(3))
    message, last = shown.value.message, 3 if broken == "shutil.rmtree" else 2
    assert shown.value.id == "cannot_write" and "No space left on device" in message and "--resume" in message
    assert re.search(r"\d MB", message)
    assert re.findall(r"step-\d+", message)[-1] == f"step-000000{last}"
    assert loaded(tmp_path).weights["w"].tolist() == [float(last)] * 2
    save_checkpoint(tmp_path, state(4))
    assert names(tmp_path) == [f"step-000000{last}", "step-0000004"]


def failing(name: str) -> tuple[Any, str, object]:
    owner, _, attribute = name.rpartition(".")
    owners: dict[str, Any] = {"": checkpoint, "torch": torch, "Path": Path, "os": os, "shutil": shutil}
    if name == "shutil.rmtree":
        return shutil, "rmtree", lambda path, ignore_errors=False: None if ignore_errors else full_disk()
    return owners[owner], attribute, full_disk


@pytest.mark.parametrize(("weights", "moments"), [(100_000, 2), (2, 100_000)], ids=["weights", "optimizer"])
def test_a_write_that_is_refused_half_way_leaves_nothing_behind(tmp_path: Path, weights: int, moments: int) -> None:
    """The libraries that write raise exceptions of their own, none of them OSError."""
    save_checkpoint(tmp_path, state(1))
    large = replace(state(2, weights), optimizer={"0": {"moments": torch.ones(moments)}})
    with largest_file(50_000), refused("cannot_write", "step-0000002", "--resume"):
        save_checkpoint(tmp_path, large)
    assert names(tmp_path) == ["step-0000001"]
    assert loaded(tmp_path).position.step == 1


def test_a_full_disk_before_the_first_checkpoint_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(UserError) as shown:
        save_checkpoint(tmp_path, state(1))
    assert shown.value.id == "cannot_write" and "--resume" not in shown.value.message
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "position.json", "fingerprint.json"])
@pytest.mark.parametrize("left", [None, 0.0, 0.5], ids=["missing", "empty", "half"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, name: str, left: float | None) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, state(step))
    hurt = tmp_path / "step-0000002" / name
    hurt.unlink() if left is None else truncate(hurt, left)
    notices: list[str] = []
    found = load_checkpoint(tmp_path, notices.append)
    assert found is not None and found.position.step == 1
    (notice,) = notices
    assert "step-0000002" in notice


def test_when_all_are_damaged_the_error_says_so(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    truncate(tmp_path / "step-0000001" / "model.safetensors", 0.5)
    with refused("damaged_checkpoints", str(tmp_path), "--resume", "--out"):
        load_checkpoint(tmp_path)


def test_a_run_goes_on_behind_a_damaged_checkpoint_to_the_same_end(tmp_path: Path) -> None:
    tiny_trainer(tmp_path / "whole", tiny_settings()).train()
    stopped = tiny_trainer(tmp_path / "hurt", tiny_settings(every_s=0.0), report=stop_at(7))
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    truncate(tmp_path / "hurt" / "step-0000006" / "optimizer.pt", 0.5)
    notices: list[str] = []
    trainer = tiny_trainer(tmp_path / "hurt", tiny_settings(), notify=notices.append)
    assert trainer.resume()
    assert trainer.position.step == 5
    assert names(tmp_path / "hurt") == ["log.jsonl", "step-0000005", "unread-step-0000006"]
    assert "unread-step-0000006" in notices[-1]
    trainer.train()
    assert_same(tmp_path / "whole", tmp_path / "hurt")


def truncate(path: Path, left: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])


def stop_at(step: int) -> Any:
    def report(progress: Any) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    return report


def test_a_module_of_another_shape_or_type_is_not_resumed(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, tiny_settings(steps=2)).train()
    other = tiny_trainer(tmp_path, tiny_settings(steps=2), dtype=torch.float64)
    with refused("other_training", "embed.weight: float32 [13, 6]", "float64 [13, 6]"):
        other.resume()


def test_only_trained_parameters_are_saved(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, tiny_settings(steps=2)).train()
    expected = ["embed.weight", "lm_head.weight", "middle.bias", "middle.weight"]
    assert sorted(loaded(tmp_path).weights) == expected


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
    wait_for_step(3, killed, process)
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


def wait_for_step(step: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """For its checkpoint or a later one: only the last two are kept."""
    deadline_s, least = time.monotonic() + TIMEOUT_S, f"step-{step:07d}"
    while not any(path.name >= least for path in folder.glob("step-*")):
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.002)
