"""`benchctl judge`: from files and options to a judging, and what is refused before money is spent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from socket import socket
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixtures_records import DRAFTED, EXITING, RUN, baseline_row, drafted_row, exiting_row, write

from benchctl.cli import main
from benchctl.judging.judge import Reply, Usage
from benchctl.measuring.prompts.suites import load_suite
from benchctl.options import options_of
from benchctl.records.schema import SuiteInfo
from benchctl.records.scores import read_scores
from benchctl.registry import judge_class

KEY = "sk-test-3f9a81c7d2e64b05"
PROMPTS = [{"id": f"p{number}", "prompt": f"What is {number}?", "exact_answer": str(number)} for number in range(3)]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Answers to three prompts of a file: the baseline's are right, the drafted ones equal, the others wrong."""
    suite = tmp_path / "numbers.jsonl"
    suite.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    loaded = load_suite(str(suite), source="auto", limit=None, notify=lambda notice: None)
    info = SuiteInfo(
        name="numbers",
        source="file",
        origin=str(suite),
        sha256=loaded.prompts_sha256,
        prompts=3,
        exact_answers={prompt.id: prompt.exact_answers for prompt in loaded.prompts},
    )
    rows = []
    for number in range(3):
        right, wrong = f"It is {number}", f"It is {number + 1}"
        rows += [replace(row, text=right) for row in (baseline_row(f"p{number}"), drafted_row(f"p{number}"))]
        rows.append(replace(exiting_row(f"p{number}"), text=wrong))
    folder = tmp_path / "results"
    folder.mkdir()
    return write(folder / "first.jsonl", [replace(row, suite="numbers") for row in rows], replace(RUN, suites=(info,)))


@pytest.fixture
def reply(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Sets what gpt does instead of sending anything; it is reached without a network."""
    from benchctl.judges.gpt import Gpt

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    read_key = Gpt._read_key
    monkeypatch.setattr(Gpt, "reach", lambda self: setattr(self, "_key", read_key(self)))

    def use(say: Any) -> None:
        monkeypatch.setattr(Gpt, "ask", lambda self, messages, sample: say(self, messages))

    use(lambda self, messages: Reply("6 6", Usage(100, 4)))
    return use


def judge(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["judge", *map(str, arguments)])


def gpt(results: Path, *more: str) -> Result:
    return judge(results, "--judge", "gpt", "--model", "gpt-4o", *more)


def test_exact_needs_no_key_and_no_model(results: Path) -> None:
    result = judge(results, "--judge", "exact")
    assert result.exit_code == 0, result.output
    scores = read_scores(results.parent / "first.scores.jsonl").scores
    assert {(score.label, score.score, score.baseline_score) for score in scores} == {
        (DRAFTED, 1.0, 1.0),
        (EXITING, 0.0, 1.0),
    }
    assert "nothing spent" in result.stderr and str(results.parent / "first.scores.jsonl") in result.stdout


def test_a_judging_says_what_it_did_and_where_its_scores_are(results: Path, reply: Callable[[Any], None]) -> None:
    result = gpt(results, "--max-usd", "1", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["written"], told["ties"], told["unreadable"]) == (9, 3, 0)
    assert told["spent"]["usd"] == pytest.approx(6 * (100 * 2.5 + 4 * 10) / 1e6)
    assert result.stderr.startswith("gpt[model=gpt-4o]: 9 of 9 ") and "$0.0017" in result.stderr
    assert (results.parent / "judge-cache").is_dir()


def test_scores_files_among_the_results_are_passed_over(results: Path, reply: Callable[[Any], None]) -> None:
    """The shell makes results/*.jsonl into both."""
    assert gpt(results).exit_code == 0
    told = gpt(results, "--dry-run", "--base-url", "http://localhost:1/v1").stdout
    assert " 0 questions" in told and "Cost: nothing." in told
    again = judge(*sorted(results.parent.glob("*.jsonl")), "--judge", "gpt", "--model", "gpt-4o")
    assert again.exit_code == 0 and " 0 of 9 " in again.stderr and " 9 were there" in again.stderr


def test_a_dry_run_needs_no_key_and_writes_nothing(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = gpt(results, "--dry-run")
    assert result.exit_code == 0, result.output
    assert " 6 questions" in result.stdout and "$0.00" in result.stdout
    assert sorted(path.name for path in results.parent.iterdir()) == ["first.jsonl"]


def test_a_dry_run_of_a_judge_without_a_bill_says_so(results: Path) -> None:
    """It once cost $0.0000, at list prices."""
    result = judge(results, "--judge", "exact", "--dry-run")
    assert result.exit_code == 0 and "Cost: nothing." in result.stdout


def test_without_a_key_nothing_is_asked_and_what_to_do_is_said(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = gpt(results)
    assert result.exit_code == 2
    assert "OPENAI_API_KEY" in result.stderr and "--judge likelihood" in result.stderr
    assert sorted(path.name for path in results.parent.iterdir()) == ["first.jsonl"]


def test_a_server_that_is_not_there_is_told_of_at_once_and_before_a_run_measures(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong port was once found after the measurement."""
    waits: list[float] = []
    monkeypatch.setattr("openai._base_client.time", SimpleNamespace(**{**vars(time), "sleep": waits.append}))
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    for command in (("judge", str(results)), ("run", "--model", "nowhere")):
        waits.clear()
        result = CliRunner().invoke(main, [*command, "--judge", "gpt[model=m]", "--base-url", url])
        assert result.exit_code == 2 and "--base-url" in result.stderr, result.output
        assert len(waits) == 2
    assert sorted(path.name for path in results.parent.iterdir()) == ["first.jsonl"]


def test_how_a_judge_is_reached_makes_no_other_judge_of_it(results: Path, reply: Callable[[Any], None]) -> None:
    """With another time-out everything was once asked and paid for again, by a judge of another name."""
    assert judge(results, "--judge", "gpt[model=gpt-4o]").exit_code == 0
    again = judge(results, "--judge", "gpt[model=gpt-4o,timeout_s=300]")
    assert again.stderr.startswith("gpt[model=gpt-4o]: 0 of 9 ")
    other = judge(results, "--judge", "gpt[model=gpt-4o,temperature=1]", "--dry-run")
    assert "To ask: 6 questions" in other.stdout


@pytest.mark.parametrize("name", ["gpt", "local", "likelihood"])
def test_what_does_not_change_what_a_judge_says_is_among_its_options(name: str) -> None:
    judge_type = judge_class(name)
    assert judge_type.unsaid and judge_type.unsaid < {option.name for option in options_of(judge_type)}


def test_a_dry_run_gives_an_upper_bound(results: Path, reply: Callable[[Any], None]) -> None:
    told = json.loads(gpt(results, "--dry-run", "--json").stdout)
    assert f"At most ${told['most_usd']:.4f}" in gpt(results, "--dry-run").stdout
    assert 3 * told["usd"] < told["most_usd"] < 10 * told["usd"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--judge", "gpt"), "gpt needs a model"),
        (("--judge", "gtp", "--model", "m"), "'gtp'. Did you mean 'gpt'"),
        (("--judge", "gpt[modle=m]"), "gpt has no option 'modle'"),
        (("--judge", "gpt[model=m]", "--model", "m"), "both name a model"),
        (("--judge", "exact", "--model", "m"), "exact has no option 'model'|exact takes no --model"),
        (("--judge", "exact", "--max-usd", "1"), "exact takes no --max-usd"),
        (("--judge", "local", "--base-url", "http://localhost/v1"), "local takes no --base-url"),
        (("--judge", "gpt", "--model", "m", "--base-url", "localhost:8000/v1"), "--base-url is no address"),
        (("--judge", "gpt", "--model", "m", "--base-url", "http:///v1"), "--base-url is no address"),
        (("--judge", "gpt", "--model", "m", "--base-url", "http://me:pw@localhost/v1"), "--base-url holds a password"),
        (("--judge", "gpt", "--model", "m", "--base-url", "http://localhost/v1?key=pw"), "--base-url holds a password"),
        (("--judge", "gpt", "--model", "unheard-of", "--max-usd", "1"), "'unheard-of' costs"),
        (("--judge", "gpt", "--model", "m", "--price-in", "1"), "--price-in and --price-out"),
        (
            ("--judge", "exact", "--baseline-label", "nobody"),
            "'nobody' that --baseline-label",
        ),
        (("--judge", "likelihood", "--baseline-label", "nobody"), "'nobody' that --baseline-label"),
        (("--judge", "gpt", "--baseline-label", "nobody"), "'nobody' that --baseline-label"),
        (("--judge", "exact", "--key-env", "MY_KEY"), "exact takes no --key-env"),
        (("--judge", "local", "--key-env", "MY_KEY"), "local takes no --key-env"),
        (("--judge", "gpt", "--model", "m", "--key-env", "sk-abcdefgh"), "--key-env is"),
    ],
)
def test_what_cannot_be_done_is_refused(
    results: Path, reply: Callable[[Any], None], arguments: tuple[str, ...], problem: str
) -> None:
    result = judge(results, *arguments)
    assert result.exit_code == 2
    assert any(part in result.stderr for part in problem.split("|")), result.stderr
    assert not any(secret in result.output for secret in ("sk-abcdefgh", "pw"))
    assert not (results.parent / "first.scores.jsonl").exists()


def test_other_prompts_than_those_measured_are_refused(results: Path) -> None:
    (results.parent.parent / "numbers.jsonl").write_text('{"id": "p0", "prompt": "Something else?"}\n')
    result = judge(results, "--judge", "exact")
    assert result.exit_code == 2 and "the prompts of numbers" in result.stderr


def test_an_exhausted_budget_ends_with_1(results: Path, reply: Callable[[Any], None]) -> None:
    result = gpt(results, "--max-usd", "0.0001")
    assert result.exit_code == 1 and re.search(r"^6 .*--max-usd", result.stderr, re.MULTILINE)


def test_questions_too_long_for_the_judge_end_with_1_and_their_count(
    results: Path, reply: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judging that left them out once ended with 0."""
    from benchctl.judges.gpt import Gpt

    monkeypatch.setattr(Gpt, "context_tokens", 10)
    result = gpt(results, "--json")
    assert (result.exit_code, json.loads(result.stdout)["too_long"]) == (1, 6), result.output
    assert re.search(r"^6 .*too long", result.stderr, re.MULTILINE)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("trouble", ["none", "unreadable", "raises", "gives up", "crashes"])
def test_the_key_is_in_no_file_and_in_no_output(
    results: Path,
    reply: Callable[[Any], None],
    trouble: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the server says it back, and in the traceback of what nobody foresaw."""
    from openai import APIConnectionError

    monkeypatch.setattr("benchctl.judging.asking.PATIENCE_S", 0.0)
    from benchctl.judges.gpt import read_completion, sent

    def say(self: Any, messages: Any) -> Any:
        if trouble == "raises":
            body = {"choices": [{"message": {"content": None, "refusal": f"Not with {self._key}!"}}]}
            return read_completion(json.dumps(body), self._key)
        if trouble == "unreadable":
            return read_completion(f"<html>Bearer {self._key}</html>", self._key)
        if trouble == "gives up":
            import httpx2

            def fail() -> None:
                request = httpx2.Request("POST", "http://x", headers={"Authorization": f"Bearer {self._key}"})
                raise APIConnectionError(message=f"cannot use {self._key}", request=request)

            return sent(fail, model="m", key=self._key, key_env="OPENAI_API_KEY")
        if trouble == "crashes":
            raise RuntimeError("unforeseen")
        return Reply("6 6", Usage(100, 4))

    reply(say)
    result = gpt(results, "--tries", "1")
    import traceback

    told = "".join(traceback.format_exception(*result.exc_info)) if result.exc_info else ""
    assert (result.exit_code == 0) == (trouble in ("none", "unreadable", "raises"))
    for text in (result.output, told, caplog.text, everything(results.parent).decode()):
        assert KEY not in text


def test_the_default_judge_is_gpt_with_a_key_and_likelihood_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchctl.cli.judge import JudgeOptions, judge_label

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert judge_label(JudgeOptions()).text == "likelihood"
    assert judge_label(JudgeOptions(model="m")).text == "gpt[model=m]"
    assert judge_label(JudgeOptions(judge="local", model="m")).text == "local[model=m]"
    assert judge_label(JudgeOptions(key_env="MY_KEY")).text == "gpt", "MY_KEY"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert judge_label(JudgeOptions()).text == "gpt"


def test_run_takes_judging_options_only_with_a_judge() -> None:
    result = CliRunner().invoke(main, ["run", "--max-usd", "1"])
    assert result.exit_code == 2 and "--max-usd" in result.stderr and "--judge" in result.stderr


def test_run_refuses_a_judge_without_a_key_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = CliRunner().invoke(main, ["run", "--judge", "gpt[model=gpt-4o]"])
    assert result.exit_code == 2 and "OPENAI_API_KEY" in result.stderr


def test_run_refuses_a_key_in_the_address_and_a_judge_that_is_not_there_before_it_measures() -> None:
    """The command line is kept in the results file. A judge of one's own was once looked for after the measurement."""
    gpt = ("--judge", "gpt[model=m]", "--base-url", "http://me:hush@localhost/v1")
    for judging, problem in ((gpt, "--base-url holds a password"), (("--judge", "local"), "local needs a judge")):
        result = CliRunner().invoke(main, ["run", "--model", "nowhere", *judging])
        assert (result.exit_code, problem in result.stderr, "hush" in result.output) == (2, True, False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--judge", "exact", "--method", "early_exit"), "koala has an exact answer"),
        (("--judge", "exact", "--bench", "tasks", "--method", "autoregressive"), "add a --method"),
        (("--judge", "likelihood", "--method", "early_exit", "--context", "8"), "with --context:"),
    ],
)
def test_run_refuses_to_judge_what_it_will_not_have_before_it_measures(
    arguments: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused after the measurement."""
    monkeypatch.setattr(import_module("benchctl.cli.run"), "measure", lambda settings: pytest.fail("it measured"))
    result = CliRunner().invoke(main, ["run", *arguments])
    assert result.exit_code == 2 and problem in result.stderr, result.output


def test_a_run_prints_its_table_though_its_judging_fails(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After hours of measuring only the error was once to be seen."""
    measured = (SimpleNamespace(out=results), SimpleNamespace(measured=9, failed=0))
    monkeypatch.setattr(import_module("benchctl.cli.run"), "measure", lambda settings: measured)
    (results.parent.parent / "numbers.jsonl").write_text('{"id": "p0", "prompt": "Something else?"}\n')
    result = CliRunner().invoke(main, ["run", "--judge", "exact", "--bench", "tasks"])
    assert result.exit_code == 2 and "the prompts of numbers" in result.stderr
    assert EXITING in result.stdout and f"Results: {results}" in result.stdout


@pytest.mark.parametrize(("unasked", "code"), [(0, 0), (3, 1)])
def test_a_run_whose_judging_the_budget_cut_short_says_so_by_its_exit_code(
    results: Path, monkeypatch: pytest.MonkeyPatch, unasked: int, code: int
) -> None:
    """It was 0, as if all were judged; `benchctl judge` gives 1."""
    measured = (SimpleNamespace(out=results), SimpleNamespace(measured=9, failed=0))
    monkeypatch.setattr(import_module("benchctl.cli.run"), "measure", lambda settings: measured)
    judged = SimpleNamespace(unfinished=unasked)
    monkeypatch.setattr(import_module("benchctl.cli.run"), "judge_files", lambda *_, **__: judged)
    result = CliRunner().invoke(main, ["run", "--judge", "exact", "--bench", "tasks"])
    assert (result.exit_code, f"Results: {results}" in result.stdout) == (code, True), result.output


def test_judges_are_listed_with_their_options() -> None:
    result = CliRunner().invoke(main, ["list", "judges", "--json"])
    listed = {line["name"]: line for line in json.loads(result.stdout)}
    assert {"exact", "gpt", "likelihood", "local"} <= set(listed)
    assert "model" in {option["name"] for option in listed["gpt"]["options"]}
    assert all(line["description"] for line in listed.values())
