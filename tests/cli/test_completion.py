"""What a shell is offered behind `benchctl`: asked of click's own completion, as the script that it prints does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner
from test_cli_main import HEAVY, imported_after

from benchctl.cli import main
from benchctl.cli.completion import VARIABLE

NAMES = [
    ("run --method two", ["two_model"]),
    ("run --sweep look", ["lookahead"]),
    ("run --bench ko", ["koala"]),
    ("run --model ref-", ["ref-dense", "ref-draft", "ref-moe"]),
    ("run --judge lik", ["likelihood"]),
    ("run --source emb", ["embedded"]),
    ("judge results.jsonl --judge gp", ["gpt"]),
    ("compare results.jsonl --over prompt", ["prompt_lookup"]),
    ("doctor --method deed --suite mt", ["mt-bench"]),
    ("doctor --method skip", ["skip_decode"]),
    ("doctor --aa --model ref-de", ["ref-dense"]),
    ("train med", ["medusa"]),
    ("list su", ["suites"]),
    ("completion z", ["zsh"]),
]
FILES = ["compare", "gate", "judge", "plot", "predict", "report", "import", "doctor --aa"]
FILES += [
    "gate results.jsonl --previous",
    "compare results.jsonl --scores",
    "report --scores",
    "run --bench",
    "run --suite",
]


def offered(line: str) -> list[CompletionItem]:
    """What is offered for the last word of a command line."""
    *before, incomplete = line.split(" ")
    return ShellComplete(main, {}, "benchctl", VARIABLE).get_completions(before, incomplete)


@pytest.mark.parametrize(("line", "names"), NAMES, ids=[line for line, _ in NAMES])
def test_names_that_begin_so_are_offered(line: str, names: list[str]) -> None:
    assert [item.value for item in offered(line)] == names


@pytest.mark.parametrize("line", [*FILES, "run --model", "run --draft-model"])
def test_files_are_offered_where_files_are_wanted_and_folders_for_models(line: str) -> None:
    kind = "dir" if line.endswith("model") else "file"
    assert [(item.value, item.type) for item in offered(f"{line} ./res")] == [("./res", kind)]


def test_nothing_heavy_is_imported_for_it(root: Path) -> None:
    """It is asked at every press of the key: importing torch alone takes longer than anybody waits."""
    code = f"""
from click.shell_completion import ShellComplete
from benchctl.cli import main
for line in {[line for line, _ in NAMES]!r}:
    *before, incomplete = line.split(" ")
    assert ShellComplete(main, {{}}, "benchctl", {VARIABLE!r}).get_completions(before, incomplete), line
"""
    assert not set(HEAVY) & set(imported_after(code, root))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_benchctl_and_is_one_that_the_shell_reads(shell: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in result.stdout
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(result.stdout)
        subprocess.run([program, "-n", tmp_path / "script"], check=True)


def test_what_the_script_of_bash_runs_prints_the_names(root: Path) -> None:
    asked = {VARIABLE: "bash_complete", "COMP_WORDS": "benchctl run --method two", "COMP_CWORD": "3"}
    command = [sys.executable, "-m", "benchctl"]
    done = subprocess.run(command, cwd=root, env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout == "plain,two_model\n"
