"""scripts/setup, with a Python that only writes down what it is asked: installs once, and again when pins change."""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
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


def test_it_installs_through_the_constraints_once(clone: Path) -> None:
    assert set_up(clone).returncode == 0
    assert set_up(clone).stderr == ""
    assert installs(clone) == [
        "-m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e .[dev]"
    ]


def moved(clone: Path) -> Path:
    """The scripts of a virtual environment hold its absolute path."""
    return clone.rename(clone.parent / "moved")


def interrupted(clone: Path) -> Path:
    (clone / ".venv" / ".installed").unlink()
    return clone


def changed(name: str, clone: Path) -> Path:
    with (clone / name).open("a") as file:
        file.write("# changed\n")
    return clone


@pytest.mark.parametrize(
    "event", [moved, interrupted, partial(changed, "pyproject.toml"), partial(changed, "constraints.txt")]
)
def test_a_clone_that_was_moved_interrupted_or_changed_installs_again(
    clone: Path, event: Callable[[Path], Path]
) -> None:
    set_up(clone)
    again = event(clone)
    set_up(again)
    assert len(installs(again)) == 2


def test_without_a_fitting_python_it_says_what_to_install(clone: Path) -> None:
    tools = clone.parent / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "dirname", "env"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    done = set_up(clone, PATH=str(tools), PYTHON="")
    assert done.returncode == 1 and "Python 3.11" in done.stderr and "ensurepip" in done.stderr
