"""`benchctl run --sessions N`: fresh processes, a file each, taken together by the table and continued by --resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from command import cli, ok
from fake_engine import is_running, wait_for
from fixtures_records import RUN, method, usual_rows, write
from fixtures_run import make_folder

from benchctl.cli.run import run, session_arguments
from benchctl.measuring.memory import NO_ROOM
from benchctl.records.writer import read


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Sessions without a process or a model: each writes its file, if there is none; their commands are kept."""
    commands: list[Sequence[str]] = []

    def call(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        out = Path(command[-1].removeprefix("--out="))
        if not out.exists():
            out.parent.mkdir(exist_ok=True)
            write(out, usual_rows(3))
        return subprocess.CompletedProcess(command, 0)

    replace_processes(monkeypatch, call)
    return commands


def replace_processes(monkeypatch: pytest.MonkeyPatch, call: Callable[..., object]) -> None:
    processes = SimpleNamespace(run=call, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(import_module("benchctl.cli.run"), "subprocess", processes)


def invoke(*arguments: str) -> Result:
    words = "run --method prompt_lookup --no-watch --out kept.jsonl --sessions 2"
    return cli(*words.split(), *arguments)


@pytest.mark.slow
def test_every_session_is_a_process_with_a_file_of_its_own(tmp_path: Path) -> None:
    """The only case with real processes and models."""
    make_folder(tmp_path)
    model = "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 4 --warm-up 0"
    result = ok(invoke(*model.split(), "--repeats", "1"))
    first, second = read(tmp_path / "kept-1.jsonl"), read(tmp_path / "kept-2.jsonl")
    assert len(first.rows) == len(second.rows) == 8 and not (tmp_path / "kept.jsonl").exists()
    assert first.run.created <= second.run.created
    assert [row.token_ids for row in first.rows] == [row.token_ids for row in second.rows]
    assert [row.step_s for row in first.rows] != [row.step_s for row in second.rows]
    assert result.stdout.splitlines()[-2:] == ["Results: kept-1.jsonl", "Results: kept-2.jsonl"]


def test_every_session_gets_its_file_and_resuming_passes_all_of_them_on(here: Path, stubs: list[Sequence[str]]) -> None:
    result = ok(invoke())
    assert [command[-1] for command in stubs] == ["--out=kept-1.jsonl", "--out=kept-2.jsonl"]
    assert all(command[3:] == ("run", "--method=prompt_lookup", "--no-watch", command[-1]) for command in stubs)
    assert result.stdout.splitlines()[-2:] == ["Results: kept-1.jsonl", "Results: kept-2.jsonl"]
    kept = (here / "kept-1.jsonl").read_bytes()
    assert invoke("--sessions", "3", "--resume").exit_code == 0
    assert (here / "kept-1.jsonl").read_bytes() == kept
    assert [command[-2:] for command in stubs[2:]] == [
        ("--resume", f"--out=kept-{number}.jsonl") for number in (1, 2, 3)
    ]


STUB = """
import os, time
from pathlib import Path
import benchctl.cli

def measure_forever(prog_name):
    with Path("child.txt").open("a") as file:
        while True:
            print(os.getpid(), file=file, flush=True)
            time.sleep(0.01)

benchctl.cli.main = measure_forever
from benchctl.cli.run import session
session()
"""
PARENT = f"""
from importlib import import_module
from pathlib import Path
run = import_module("benchctl.cli.run")
run._CHILD = {STUB!r}
run._run_session((), Path("kept-1.jsonl"))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no way here to see which processes run")
def test_a_session_ends_with_its_parent_process(here: Path, root: Path) -> None:
    """After a kill -9 of the parent it went on measuring, and held its file against --resume."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    parent = subprocess.Popen((sys.executable, "-c", PARENT), env=environment)
    child = 0
    try:
        file = here / "child.txt"
        assert wait_for(lambda: file.exists() and file.stat().st_size > 0, 60)
        child = int(file.read_text().split()[0])
        assert is_running(child)
        parent.kill()
        assert wait_for(lambda: not is_running(child), 60)
    finally:
        parent.kill()
        parent.wait()
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("measured", [True, False])
def test_a_session_that_fails_ends_the_run_with_its_exit_code(monkeypatch: pytest.MonkeyPatch, measured: bool) -> None:
    """Where nothing was measured, there is nothing to continue. The advice lacked --out, which has a name with the time
    where none was given."""

    def fail(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        out = Path(command[-1].removeprefix("--out="))
        if measured:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.touch()
        return subprocess.CompletedProcess(command, 2)

    replace_processes(monkeypatch, fail)
    result = invoke()
    assert (result.exit_code, result.stdout) == (2, "")
    assert ("kept-1.jsonl" in result.stderr and "exit code 2" in result.stderr) == measured
    assert ("--out kept.jsonl --resume" in result.stderr) == measured


@pytest.mark.parametrize("prompts", [20, 3])
def test_a_session_that_lacked_memory_for_a_method_is_followed_by_the_next(
    prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the run, and so did each --resume. One that broke off, of 20 prompts after 3, ends it."""
    lacking = replace(RUN, repeats=1, methods=(*RUN.methods, method("medusa", unsupported=NO_ROOM)))

    def lack(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        write(Path(command[-1].removeprefix("--out=")), usual_rows(prompts), lacking)
        return subprocess.CompletedProcess(command, 1)

    replace_processes(monkeypatch, lack)
    result = invoke()
    assert result.exit_code == 1
    assert (Path("kept-2.jsonl").exists(), "kept-2.jsonl" in result.stdout) == (prompts == 20, prompts == 20)


def test_sessions_without_a_name_have_the_one_that_a_run_would_have(tmp_path: Path, stubs: list[Sequence[str]]) -> None:
    make_folder(tmp_path)
    words = "run --method prompt_lookup --model target --bench three.jsonl --device cpu --sessions 2"
    result = ok(cli(*words.split()))
    first, second = (line.removeprefix("Results: results/") for line in result.stdout.splitlines()[-2:])
    assert first.startswith("three-prompt_lookup-2")
    assert first.removesuffix("-1.jsonl") == second.removesuffix("-2.jsonl")


@pytest.mark.parametrize(
    ("words", "named"),
    [("--resume", "--out FILE"), ("--model /nope", "'/nope'"), ("--out kept.jsonl", "kept-2.jsonl: exists")],
)
def test_what_a_run_is_refused_for_is_refused_before_any_session_begins(
    here: Path, stubs: list[Sequence[str]], words: str, named: str
) -> None:
    (here / "kept-2.jsonl").write_text("something")
    result = cli("run", "--sessions", "2", *words.split())
    assert result.exit_code == 2 and named in " ".join(result.stderr.split())
    assert stubs == [] and not (here / "kept-1.jsonl").exists()


@pytest.mark.parametrize(
    "words",
    [
        "-m two_model -m early_exit[threshold=0.5] --sweep m2r2[width=1|2] -b koala --limit 3 --seed -4 --replay",
        "--profile --context 64 --no-watch --top-p 0.9 --temperature 0.5 --resume --model=",
        "--watch --long-prompts cut --dtype float64 --threads 2 --batch-size 4",
        "",
    ],
)
def test_a_session_is_asked_for_what_was_asked_for(words: str) -> None:
    """Parsed again, its words mean the same, defaults that were not named still being defaults."""
    of_all = "--sessions 3 --out a.jsonl --json"
    whole = run.make_context("run", [*of_all.split(), *words.split()])
    again = run.make_context("run", list(session_arguments(whole)))
    not_passed_on = ("sessions", "out", "as_json")
    others = {name: value for name, value in whole.params.items() if name not in not_passed_on}
    assert {name: again.params[name] for name in others} == others
    assert (again.params["sessions"], again.params["out"], again.params["as_json"]) == (1, None, False)
    for name in others:
        assert again.get_parameter_source(name) == whole.get_parameter_source(name)
