"""The machine's facts: there, true where they can be checked, and without anything private."""

import os
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from benchctl.measuring.machine import host as machine
from benchctl.measuring.machine import meter


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_facts_are_of_this_machine_and_hold_a_hash_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.machine_facts("cpu")["hostname_hash"]
    monkeypatch.setattr(platform, "node", lambda: "secret-name")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = machine.machine_facts("cuda")
    assert facts["cpu"] and facts["os"]
    assert 1 <= int(str(facts["cores"])) <= (os.cpu_count() or 1)
    assert int(str(facts["memory_bytes"])) > 2**28
    assert isinstance(facts["load_average"], list) and len(facts["load_average"]) == 3
    assert (facts["gpu"], facts["gpu_driver"]) == ("", "")
    assert facts["hostname_hash"] != here and "secret-name" not in str(facts)


def test_the_commit_is_the_head_and_dirty_if_a_tracked_file_changed(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder inside somebody else's clone has none: that commit says nothing about the benchctl installed there."""
    head = git(clone, "rev-parse", "HEAD")
    assert machine.commit(clone) == head
    (clone / "notes.txt").write_text("new")
    assert machine.commit(clone) == head
    (clone / "code.py").write_text("a = 2\n")
    assert machine.commit(clone) == head + "+dirty"
    (clone / "site-packages").mkdir()
    assert machine.commit(clone / "site-packages") == ""
    git(clone / "site-packages", "init", "--quiet")
    assert machine.commit(clone / "site-packages") == ""  # before the first commit
    monkeypatch.setenv("PATH", "")
    assert machine.commit(clone) == ""


def test_the_processes_peak_memory_is_in_bytes_and_never_falls() -> None:
    before = meter.peak_memory_bytes("cpu")
    block = torch.ones(64 * 2**20 // 4)
    after = meter.peak_memory_bytes("cpu")
    del block
    assert before >= 2**26
    assert after >= before
    assert meter.peak_memory_bytes("cpu") >= after
