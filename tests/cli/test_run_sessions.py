"""`benchctl run --sessions N`: fresh processes, a file each, taken together by the table and continued by --resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result
from fixtures_run import make_folder

from benchctl.cli import main
from benchctl.cli.run import run
from benchctl.cli.run import sessions as run_sessions
from benchctl.cli.run.sessions import given, session_files
from benchctl.records.writer import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("sessions"))


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("target", "draft", "three.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Sessions run in this process, which takes a tenth of the time; what was asked for is kept."""
    asked: list[Sequence[str]] = []

    def call(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, CliRunner().invoke(main, command[3:]).exit_code)

    replace_processes(monkeypatch, call)
    return asked


def replace_processes(monkeypatch: pytest.MonkeyPatch, call: Callable[..., object]) -> None:
    """For sessions alone: others ask git and nvidia-smi."""
    monkeypatch.setattr(run_sessions, "subprocess", SimpleNamespace(run=call, DEVNULL=subprocess.DEVNULL))


def invocation() -> list[str]:
    usual = "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 4 --warm-up 0"
    options = "--method prompt_lookup --repeats 1 --no-watch --out kept.jsonl --sessions 2"
    return ["run", *usual.split(), *options.split()]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*invocation(), *arguments])


def test_every_session_is_a_process_with_a_file_of_its_own(here: Path) -> None:
    """With real processes; nothing of what they print but the errors reaches the terminal."""
    result = invoke()
    assert result.exit_code == 0, result.output
    first, second = read(here / "kept-1.jsonl"), read(here / "kept-2.jsonl")
    assert len(first.rows) == len(second.rows) == 8 and not (here / "kept.jsonl").exists()
    assert first.run.created <= second.run.created
    assert [row.token_ids for row in first.rows] == [row.token_ids for row in second.rows]
    assert [row.step_s for row in first.rows] != [row.step_s for row in second.rows]
    assert result.stdout.count("speed-up") == 1
    assert result.stdout.splitlines()[-2:] == ["Results: kept-1.jsonl", "Results: kept-2.jsonl"]


def is_running(pid: int) -> bool:
    """A process that has ended is one no more, or is left for whoever inherited it to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


ENDLESS = (
    "--model target --bench three.jsonl --device cpu --max-new-tokens 4 --warm-up 0 --method prompt_lookup --no-watch "
    "--out kept.jsonl --sessions 2 --repeats 2000"
)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no way here to see which processes run")
def test_a_session_ends_with_the_process_that_began_it(here: Path) -> None:
    """It went on measuring after a kill -9 of that, and held its file against the same command with --resume."""
    command = (sys.executable, "-m", "benchctl", "run", *ENDLESS.split())
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: list[int] = []
    try:
        file = here / "kept-1.jsonl"
        wait_for(lambda: file.exists() and file.stat().st_size > 10_000)
        children = [
            int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if parent_of(stat) == parent.pid
        ]
        assert len(children) == 1
        parent.kill()
        wait_for(lambda: not is_running(children[0]))
        size_bytes = file.stat().st_size
        time.sleep(0.2)
        assert file.stat().st_size == size_bytes
        assert read(file).run.command[:2] == ("benchctl", "run")
    finally:
        parent.kill()
        parent.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_for(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_resuming_goes_on_with_what_is_missing_of_them(here: Path, within: list[Sequence[str]]) -> None:
    assert invoke().exit_code == 0
    second = here / "kept-2.jsonl"
    whole = [path.read_bytes() for path in (here / "kept-1.jsonl", second)]
    second.write_bytes(b"".join(whole[1].splitlines(keepends=True)[:4]))
    result = invoke("--sessions", "3", "--resume")
    assert result.exit_code == 0, result.output
    assert (here / "kept-1.jsonl").read_bytes() == whole[0]
    assert len(read(second).rows) == len(read(here / "kept-3.jsonl").rows) == 8
    assert second.read_bytes().startswith(b"".join(whole[1].splitlines(keepends=True)[:4]))
    assert len(within) == 5


def test_sessions_in_shuffled_order_take_orders_of_their_own(here: Path, within: list[Sequence[str]]) -> None:
    assert invoke("--order", "shuffle", "--repeats", "8", "--method", "two_model").exit_code == 0
    orders = [
        [(row.prompt_id, row.turn, row.label) for row in read(here / f"kept-{number}.jsonl").rows] for number in (1, 2)
    ]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


def test_a_session_that_fails_ends_the_run_with_its_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_processes(monkeypatch, lambda command, **_: subprocess.CompletedProcess(command, 2))
    result = invoke()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "kept-1.jsonl: this session ended with exit code 2; go on with the same command and --resume." in (
        " ".join(result.stderr.split())
    )


def test_sessions_without_a_name_have_the_one_that_a_run_would_have(here: Path, within: list[Sequence[str]]) -> None:
    """They were refused, though a run makes its own name: so the examples all had to carry --out."""
    words = [word for word in invocation() if word not in ("--out", "kept.jsonl")]
    result = CliRunner().invoke(main, [*words, "--sessions", "2"])
    assert result.exit_code == 0, result.output
    names = [line.removeprefix("Results: results/") for line in result.stdout.splitlines()[-2:]]
    stems = {name.removesuffix(f"-{number}.jsonl") for number, name in enumerate(names, 1)}
    assert len(stems) == 1 and stems.pop().startswith("three-prompt_lookup-2")
    assert [len(read(here / "results" / name).rows) for name in names] == [8, 8]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "told"),
    [(("--resume",), "--resume needs the file to go on with"), (("--model", "/nope"), "'/nope' is neither")],
)
def test_what_one_run_is_refused_for_sessions_without_a_name_are_too(
    within: list[Sequence[str]], words: Sequence[str], told: str
) -> None:
    result = CliRunner().invoke(main, ["run", "--sessions", "2", *words])
    assert result.exit_code == 2 and told in " ".join(result.stderr.split()) and within == []


def test_a_file_that_is_there_already_is_refused_before_any_session_begins(
    here: Path, within: list[Sequence[str]]
) -> None:
    (here / "kept-2.jsonl").write_text("something")
    result = invoke()
    assert result.exit_code == 2 and "kept-2.jsonl: exists" in result.stderr
    assert within == [] and not (here / "kept-1.jsonl").exists()


def test_files_of_sessions_are_numbered_before_the_suffix() -> None:
    assert session_files(Path("results/a.b.jsonl"), 2) == (Path("results/a.b-1.jsonl"), Path("results/a.b-2.jsonl"))


@pytest.mark.parametrize(
    "words",
    [
        "-m two_model -m early_exit[threshold=0.5] --sweep m2r2[width=1|2] -b koala --limit 3 --seed -4 --replay",
        "--profile --order shuffle --context 64 --no-watch --top-p 0.9 --temperature 0.5 --resume --model=",
        "--watch --long-prompts cut --dtype float64 --threads 2 --batch-size 4",
        "",
    ],
)
def test_a_session_is_asked_for_what_was_asked_for(words: str) -> None:
    """Parsed again, its words mean the same, defaults that were not named still being defaults."""
    of_all = "--sessions 3 --out a.jsonl --json --judge likelihood --max-usd 1 --base-url http://here"
    whole = run.make_context("run", [*of_all.split(), *words.split()])
    again = run.make_context("run", list(given(whole)))
    not_passed_on = ("sessions", "out", "as_json", "judge", "base_url", "max_usd")
    others = {name: value for name, value in whole.params.items() if name not in not_passed_on}
    assert {name: again.params[name] for name in others} == others
    assert (again.params["sessions"], again.params["out"], again.params["as_json"]) == (1, None, False)
    assert again.params["judge"] is None  # the answers of all sessions are judged once, together
    for name in others:
        assert again.get_parameter_source(name) == whole.get_parameter_source(name)
    assert isinstance(whole, click.Context)
