"""`benchctl judge` as users run it, against a server and killed on the way: all is judged, nothing paid for twice."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from fixtures_records import BASELINE
from judge_server import KEY, MODEL, Asked, Deed, Hangs, JudgeServer, Says
from judged import KEY_ENV, fair, measured_file

from benchctl.records.scores import read_scores, scores_path

PROMPTS = 4
QUESTIONS = 2 * PROMPTS
IN_FLIGHT_S = 60.0


def command(results: Path, url: str, *more: str) -> list[str]:
    who = ["--judge", "gpt", "--model", MODEL, "--base-url", url, "--key-env", KEY_ENV, "--concurrency", "1"]
    return [sys.executable, "-m", "benchctl", "judge", str(results), *who, *more]


def environment() -> dict[str, str]:
    return {**os.environ, KEY_ENV: KEY}


@pytest.mark.slow
def test_a_judging_killed_twice_judges_everything_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    """Killed by SIGKILL while its third and then its sixth request is in flight, which the server never answers."""
    results = tmp_path / "first.jsonl"
    measured_file(
        results,
        {"koala": PROMPTS},
        lambda prompt, turn, label: f"The {'good' if label == BASELINE else 'bad'} answer to {prompt.id}.",
    )
    reached = threading.Event()

    def plan(asked: Asked) -> Deed:
        if asked.number not in (2, 5):
            return Says(fair(asked))
        reached.set()
        return Hangs(IN_FLIGHT_S)

    with JudgeServer(plan) as server:
        for kills in range(2):
            judging = subprocess.Popen(command(results, server.url), env=environment(), stderr=subprocess.DEVNULL)
            assert reached.wait(IN_FLIGHT_S)
            judging.send_signal(signal.SIGKILL)
            judging.wait()
            reached.clear()
            # The reply to the question before is in the cache; its score may still be on its way to the file.
            assert len(read_scores(scores_path(results)).scores) in ((1, 2), (3, 4))[kills]
        last = subprocess.run(command(results, server.url), env=environment(), capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    scores = read_scores(scores_path(results)).scores
    assert Counter((score.score, score.baseline_score) for score in scores) == {(3.0, 9.0): QUESTIONS}
    assert (len(server.asked), len(server.bills), server.paid_twice) == (QUESTIONS + 2, QUESTIONS, [])
    assert sum(score.prompt_tokens for score in scores) == server.tokens()[0]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 4])
def test_ctrl_c_ends_at_once_and_prints_the_command_that_continues(tmp_path: Path, at_once: int) -> None:
    """The first one once waited, without a word, for as long as replies were due, and then advised --resume."""
    results = tmp_path / "a file.jsonl"
    measured_file(results, {"koala": PROMPTS}, lambda prompt, turn, label: f"{label} on {prompt.id}: good or bad.")
    hanging = threading.Barrier(at_once + 1)

    def plan(asked: Asked) -> Deed:
        if asked.number == 0:
            return Says("8 7")
        hanging.wait(IN_FLIGHT_S)
        return Hangs(IN_FLIGHT_S)

    with JudgeServer(plan) as server:
        words = command(results, server.url, "--concurrency", str(at_once))
        judging = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
        hanging.wait(IN_FLIGHT_S)
        judging.send_signal(signal.SIGINT)
        begun_s = time.monotonic()
        _, shown = judging.communicate()
    assert (judging.returncode, time.monotonic() - begun_s < 10) == (130, True), shown
    assert shown.endswith(f"Continue with: benchctl {shlex.join(words[3:])}\n")
    assert len(read_scores(scores_path(results)).scores) == 1
