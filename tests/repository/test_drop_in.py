"""README's promise: a method or a judge is one new file. It passes the tests of a copy of the tree, untouched else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JUDGE = '''"""Judge by length: an answer scores its number of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchctl.judging.judge import GradingJudge, Question, Row, Run


@dataclass
class Length(GradingJudge):
    """Counts words."""

    model: str = field(default="", init=False)
    protocol: Literal["exact"] = field(default="exact", init=False)

    def grade(self, run: Run, rows: Sequence[Row], question: Question) -> float | None:
        return float(len(rows[-1].text.split()))
'''
# The tests install benchctl from this tree; loaded first, this takes methods and judges from the copy instead.
PLUGIN = """import benchctl.judges
import benchctl.methods

benchctl.methods.__path__ = ["methods"]
benchctl.judges.__path__ = ["judges"]
"""
# What goes over all methods or judges: the structure, names, demo and tokens of the target.
FILES = ("repository/test_architecture.py", "registry", "cli/test_demo.py", "methods/test_matrix.py")
CHOSEN = "test_architecture or test_registry or test_demo or repeat or each_list"


@pytest.fixture(scope="module")
def copy(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with README's method and a judge in it."""
    tree = tmp_path_factory.mktemp("clone")
    assets = root / "benchctl" / "assets"
    for name in ("methods", "judges", "tests", "benchctl"):
        shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", assets.name))
    (tree / "benchctl" / assets.name).symlink_to(assets)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(root / file, tree)
    shown = re.search(r"^## Add a method\n.*?^```python\n(.*?)^```$", (root / "README.md").read_text(), re.M | re.S)
    assert shown is not None
    (tree / "methods" / "repeat.py").write_text(shown[1])
    (tree / "judges" / "length.py").write_text(JUDGE)
    (tree / "taken_from_copy.py").write_text(PLUGIN)
    return tree


def run(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = (sys.executable, "-m", *words)
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_new_file_passes_the_tests_without_another_one_touched(copy: Path) -> None:
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "-p", "taken_from_copy", "-rA")
    passed = run(copy, "pytest", *options, "-m", "not slow", "-k", CHOSEN, *(f"tests/{file}" for file in FILES))
    # The new method's own checks by `doctor` are slow.
    passed += run(copy, "pytest", *options, "-m", "slow", "-k", "passes and repeat", "tests/conformance/test_doctor.py")
    for test in ("test_demo.py::test_every_method_is_measured", "passes[repeat]", "exact_methods_are_exact[repeat-"):
        assert re.search(rf"PASSED .*{re.escape(test)}", passed), test
