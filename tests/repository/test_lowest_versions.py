"""benchctl works with the lowest version of every dependency that pyproject.toml allows.

Torch stays out: its lowest version is a download of gigabytes, and neither the help nor reading results needs it.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.cli import VERBS

TOO_LARGE = {"torch"}
Benchctl = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow


def lowest(requirement: str) -> str:
    """`click>=8.4.2,<9` as `click==8.4.2`."""
    name, bound = re.fullmatch(r"([\w-]+)>=([\w.]+),<[\w.]+", requirement).groups()  # type: ignore[union-attr]
    return f"{name}=={bound}"


@pytest.fixture(scope="module")
def benchctl(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Benchctl:
    """Runs Python with benchctl in an environment with the lowest versions."""
    folder = tmp_path_factory.mktemp("lowest")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [lowest(line) for line in project["dependencies"] if re.split(r"\W", line)[0] not in TOO_LARGE]
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *versions]
    for _ in range(3):  # of a network that fails now and then; what it has loaded is in the cache
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr

    # The installed package has methods/ and judges/ inside.
    package = folder / "package" / "benchctl"
    package.mkdir(parents=True)
    for entry in (*(root / "benchctl").iterdir(), root / "judges", root / "methods"):
        (package / entry.name).symlink_to(entry)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(package.parent)}
        return subprocess.run([python, *words], cwd=package.parent, env=environment, capture_output=True, text=True)

    return run


def test_help_is_printed_and_results_are_compared_and_drawn(benchctl: Benchctl, root: Path, tmp_path: Path) -> None:
    words = [["--help"], *([verb, "--help"] for verb in VERBS)]
    helped = benchctl("-c", f"from benchctl.cli import main\nfor each in {words}: main(each, standalone_mode=False)")
    assert helped.returncode == 0 and helped.stdout.count("Usage: ") == len(words), helped.stderr
    results, out = str(root / "results" / "reference" / "default.jsonl"), tmp_path / "pareto.png"
    compared = benchctl("-m", "benchctl", "compare", results, "--format", "json")
    assert compared.returncode == 0 and json.loads(compared.stdout), compared.stderr
    drawn = benchctl("-m", "benchctl", "plot", "--pareto", results, "--out", str(out))
    assert drawn.returncode == 0 and out.stat().st_size > 10_000, drawn.stderr
