"""`benchctl judge`: from files and options to a judging, and what is refused before money is spent."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import Result
from command import cli, ok
from fixtures_records import DRAFTED, EXITING, RUN, baseline_row, drafted_row, exiting_row, write
from openai import APIConnectionError

from benchctl.cli.judge import JudgeOptions, judge_label
from benchctl.judging.judge import Reply, Usage
from benchctl.measuring.prompts.suites import load_suite
from benchctl.measuring.run import suite_info
from benchctl.records.schema import SuiteInfo
from benchctl.records.scores import read_scores, scores_path
from benchctl.records.writer import read

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


def test_prompts_are_those_that_the_limit_takes_of_each_category_or_the_first_as_in_earlier_versions(
    results: Path, tmp_path: Path
) -> None:
    """A run that is not finished: so its rows do not show which prompts it has."""
    suite = tmp_path / "numbers.jsonl"
    prompts = [{**prompt, "category": "ab"[n // 2]} for n, prompt in enumerate(PROMPTS)]
    suite.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    file = read(results)
    for ids in (("p0", "p2"), ("p0", "p1")):
        loaded = load_suite(str(suite), source="auto", limit=None, notify=lambda notice: None)
        part = replace(loaded, prompts=tuple(prompt for prompt in loaded.prompts if prompt.id in ids))
        rows = [row for row in file.rows if row.prompt_id == "p0"]
        path = write(results.parent / f"{ids[1]}.jsonl", rows, replace(file.run, suites=(suite_info(part),)))
        ok(judge(path, "--judge", "exact"))
        assert {score.prompt_id for score in read_scores(scores_path(path)).scores} == {"p0"}


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


judge = partial(cli, "judge")


def gpt(results: Path, *more: str) -> Result:
    return judge(results, "--judge", "gpt", "--model", "gpt-4o", *more)


def test_exact_needs_no_key_no_model_and_no_money(results: Path) -> None:
    assert "Cost: nothing." in judge(results, "--judge", "exact", "--dry-run").stdout
    result = ok(judge(results, "--judge", "exact"))
    scores = read_scores(results.parent / "first.scores.jsonl").scores
    shown = {(score.label, score.score, score.baseline_score) for score in scores}
    assert shown == {(DRAFTED, 1.0, 1.0), (EXITING, 0.0, 1.0)}
    assert "nothing spent" in result.stderr and str(results.parent / "first.scores.jsonl") in result.stdout


def test_a_judging_says_what_it_did_and_where_its_scores_are(results: Path, reply: Callable[[Any], None]) -> None:
    result = ok(gpt(results, "--max-usd", "1", "--json"))
    summary = json.loads(result.stdout)
    assert (summary["written"], summary["ties"], summary["unreadable"]) == (9, 3, 0)
    assert summary["spent"]["usd"] == pytest.approx(6 * (100 * 2.5 + 4 * 10) / 1e6)
    assert result.stderr.startswith("gpt[model=gpt-4o]: 9 of 9 ") and "$0.0017" in result.stderr
    assert (results.parent / "judge-cache").is_dir()


def test_scores_files_among_the_results_are_passed_over(results: Path, reply: Callable[[Any], None]) -> None:
    """The shell makes results/*.jsonl into both."""
    assert gpt(results).exit_code == 0
    forecast = gpt(results, "--dry-run", "--base-url", "http://localhost:1/v1").stdout
    assert " 0 questions" in forecast and "Cost: nothing." in forecast
    again = judge(*sorted(results.parent.glob("*.jsonl")), "--judge", "gpt", "--model", "gpt-4o")
    assert again.exit_code == 0 and " 0 of 9 " in again.stderr and " 9 already" in again.stderr


def test_without_a_key_only_a_dry_run_is_made_and_nothing_written(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    forecast = ok(gpt(results, "--dry-run"))
    assert " 6 questions" in forecast.stdout and "$0.00" in forecast.stdout
    sums = json.loads(gpt(results, "--dry-run", "--json").stdout)
    assert f"At most ${sums['most_usd']:.4f}" in forecast.stdout
    assert 3 * sums["usd"] < sums["most_usd"] < 10 * sums["usd"]
    refused = gpt(results)
    assert (refused.exit_code, "OPENAI_API_KEY" in refused.stderr) == (2, True)
    assert "--judge likelihood" in refused.stderr
    assert sorted(path.name for path in results.parent.iterdir()) == ["first.jsonl"]


def test_how_a_judge_is_reached_makes_no_other_judge_of_it(results: Path, reply: Callable[[Any], None]) -> None:
    """With another time-out everything was once asked and paid for again, by a judge of another name."""
    assert judge(results, "--judge", "gpt[model=gpt-4o]").exit_code == 0
    again = judge(results, "--judge", "gpt[model=gpt-4o,timeout_s=300]")
    assert again.stderr.startswith("gpt[model=gpt-4o]: 0 of 9 ")
    other = judge(results, "--judge", "gpt[model=gpt-4o,temperature=1]", "--dry-run")
    assert "To ask: 6 questions" in other.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("gpt", "gpt needs a model"),
        ("gtp --model m", "Did you mean 'gpt'"),
        ("gpt[modle=m]", "'modle'"),
        ("gpt[model=m] --model m", "both name a model"),
        ("exact --model m", "--model"),
        ("exact --max-usd 1", "--max-usd"),
        ("exact --key-env MY_KEY", "--key-env"),
        ("local --base-url http://localhost/v1", "--base-url"),
        ("gpt --model m --base-url localhost:8000/v1", "--base-url is no address"),
        ("gpt --model m --base-url http:///v1", "--base-url is no address"),
        ("gpt --model m --base-url http://me:pw@localhost/v1", "--base-url contains a password"),
        ("gpt --model m --base-url http://localhost/v1?key=pw", "--base-url contains a password"),
        ("gpt --model unheard-of --max-usd 1", "'unheard-of' is unknown"),
        ("gpt --model m --price-in 1", "--price-in and --price-out"),
        ("gpt --model m --baseline-label nobody", "--baseline-label"),
        ("gpt --model m --key-env sk-abcdefgh", "--key-env is"),
    ],
)
def test_what_cannot_be_done_is_refused(results: Path, reply: Callable[[Any], None], words: str, problem: str) -> None:
    result = judge(results, "--judge", *words.split())
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not any(secret in result.output for secret in ("sk-abcdefgh", "pw"))
    assert not (results.parent / "first.scores.jsonl").exists()


def test_an_exhausted_budget_and_questions_too_long_for_the_judge_end_with_1_and_their_count(
    results: Path, reply: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judging that left them out once ended with 0."""
    from benchctl.judges.gpt import Gpt

    poor = gpt(results, "--max-usd", "0.0001")
    assert poor.exit_code == 1 and re.search(r"^6 .*--max-usd", poor.stderr, re.MULTILINE)
    monkeypatch.setattr(Gpt, "context_tokens", 10)
    result = gpt(results, "--json")
    assert (result.exit_code, json.loads(result.stdout)["too_long"]) == (1, 6), result.output
    assert re.search(r"^6 .*too long", result.stderr, re.MULTILINE)


@pytest.mark.parametrize("trouble", ["none", "refuses", "no completion", "gives up", "crashes"])
def test_the_key_is_in_no_file_and_in_no_output(
    results: Path,
    reply: Callable[[Any], None],
    trouble: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the server says it back, and in the traceback of what nobody foresaw."""
    from benchctl.judges.gpt import read_completion

    monkeypatch.setattr("benchctl.judging.asking.PATIENCE_S", 0.0)

    def say(self: Any, messages: Any) -> Any:
        def fail() -> None:
            request = httpx2.Request("POST", "http://x", headers={"Authorization": f"Bearer {self._key}"})
            raise APIConnectionError(message=f"cannot use {self._key}", request=request)

        if trouble == "refuses":
            body = {"choices": [{"message": {"content": None, "refusal": f"Not with {self._key}!"}}]}
            return read_completion(json.dumps(body), self._key)
        if trouble == "no completion":
            return read_completion(f"<html>Bearer {self._key}</html>", self._key)
        if trouble == "gives up":
            return self._sent(fail)
        if trouble == "crashes":
            raise RuntimeError("unforeseen")
        return Reply("6 6", Usage(100, 4))

    reply(say)
    result = gpt(results, "--tries", "1")
    shown = "".join(traceback.format_exception(*result.exc_info)) if result.exc_info else ""
    codes = {"none": 0, "refuses": 1, "crashes": 1}  # 1 where no reply at all could be read
    assert result.exit_code == codes.get(trouble, 2)
    written = b"".join(path.read_bytes() for path in results.parent.rglob("*") if path.is_file()).decode()
    assert all(KEY not in text for text in (result.output, shown, caplog.text, written))


def test_the_default_judge_is_gpt_with_a_key_and_likelihood_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for options, label in (
        (JudgeOptions(), "likelihood"),
        (JudgeOptions(model="m"), "gpt[model=m]"),
        (JudgeOptions(judge="local", model="m"), "local[model=m]"),
        (JudgeOptions(key_env="MY_KEY"), "gpt"),
    ):
        assert judge_label(options).text == label
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert judge_label(JudgeOptions()).text == "gpt"
