"""scripts/setup, with a Python that only writes down what it is asked: installs once, and again when pins change."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FAKE_PYTHON = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p .venv/bin
cp "$0" .venv/bin/python
cp "$0" .venv/bin/benchctl
"""


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    """A folder with the files that setting up reads, and a Python that only takes notes."""
    folder = tmp_path / "a clone"
    shutil.copytree(root / "scripts", folder / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, folder / name)
    python = tmp_path / "fake-python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return folder


def set_up(clone: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": str(clone.parent / "fake-python"), "CALLS": str(clone.parent / "calls")}
    return subprocess.run([clone / "scripts" / "setup"], env={**environment, **changed}, capture_output=True, text=True)


def installs(clone: Path) -> list[str]:
    return [line for line in (clone.parent / "calls").read_text().splitlines() if "pip install" in line]


def test_the_first_time_installs_through_the_constraints(clone: Path) -> None:
    assert set_up(clone).returncode == 0
    assert installs(clone) == ["-m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[dev]"]


def test_the_second_time_does_nothing(clone: Path) -> None:
    set_up(clone)
    assert set_up(clone).stderr == ""
    assert len(installs(clone)) == 1


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_install_again(clone: Path, name: str) -> None:
    set_up(clone)
    with (clone / name).open("a") as file:
        file.write("# changed\n")
    set_up(clone)
    assert len(installs(clone)) == 2


def test_a_moved_clone_installs_again(clone: Path) -> None:
    """The scripts of a virtual environment hold its absolute path."""
    set_up(clone)
    moved = clone.rename(clone.parent / "moved")
    set_up(moved)
    assert len(installs(moved)) == 2


def test_an_interrupted_installation_is_done_again(clone: Path) -> None:
    set_up(clone)
    (clone / ".venv" / ".installed").unlink()
    set_up(clone)
    assert len(installs(clone)) == 2


def test_without_a_fitting_python_it_says_what_to_install(clone: Path) -> None:
    tools = clone.parent / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "dirname", "env"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    done = set_up(clone, PATH=str(tools), PYTHON="")
    assert done.returncode == 1
    assert "no Python 3.11 or newer with the modules venv and ensurepip was found" in done.stderr
