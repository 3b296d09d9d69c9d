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


def test_a_cpu_run_knows_its_processor_memory_and_load_and_no_gpu() -> None:
    facts = machine.machine_facts("cpu")
    assert facts["cpu"] and facts["os"]
    assert 1 <= int(str(facts["cores"])) <= (os.cpu_count() or 1)
    assert int(str(facts["memory_bytes"])) > 2**28
    assert isinstance(facts["load_average"], list) and len(facts["load_average"]) == 3
    assert (facts["gpu"], facts["gpu_driver"]) == ("", "")


def test_the_facts_hold_a_hash_of_the_machines_name_and_not_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.machine_facts("cpu")["hostname_hash"]
    monkeypatch.setattr(platform, "node", lambda: "secret-name")
    facts = machine.machine_facts("cpu")
    assert facts["hostname_hash"] != here and "secret-name" not in str(facts)


def test_a_gpu_run_without_a_gpu_still_has_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.machine_facts("cuda")["gpu"] == ""


def test_versions_are_those_installed() -> None:
    found = machine.versions()
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert all(found.values())


def test_the_commit_of_a_clean_clone_is_its_head(clone: Path) -> None:
    assert machine.commit(clone) == git(clone, "rev-parse", "HEAD")


def test_a_changed_file_makes_the_commit_dirty_and_a_new_one_does_not(clone: Path) -> None:
    """Results and notes lie about in any clone; only changed code makes a commit untrue."""
    (clone / "notes.txt").write_text("new")
    assert machine.commit(clone) == git(clone, "rev-parse", "HEAD")
    (clone / "code.py").write_text("a = 2\n")
    assert machine.commit(clone) == git(clone, "rev-parse", "HEAD") + "+dirty"


def test_a_folder_inside_somebody_elses_clone_has_no_commit(clone: Path) -> None:
    """An environment often lies inside a repository: its commit says nothing about the benchctl installed there."""
    (clone / "site-packages").mkdir()
    assert machine.commit(clone / "site-packages") == ""


def test_without_git_or_before_the_first_commit_there_is_no_commit(
    tmp_path: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert machine.commit(empty) == ""
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
