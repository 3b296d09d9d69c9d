"""`benchctl judge` as users run it, against a server and killed on the way: all is judged, nothing paid for twice."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select

import pytest
from fixtures_records import BASELINE
from judge_server import KEY, MODEL, Asked, Deed, Hangs, JudgeServer, Says
from judged import KEY_ENV, fair, measured_file

from benchctl.measuring.prompts.files import Prompt
from benchctl.records.scores import Score, read_scores, scores_path

PROMPTS = 4
QUESTIONS = 2 * PROMPTS
KILLS = 20
IN_FLIGHT_S = 60.0


def command(results: Path, url: str, *more: str) -> list[str]:
    who = ["--judge", "gpt", "--model", MODEL, "--base-url", url, "--key-env", KEY_ENV, "--concurrency", "1"]
    return [sys.executable, "-m", "benchctl", "judge", str(results), *who, *more]


def environment() -> dict[str, str]:
    return {**os.environ, KEY_ENV: KEY}


def answer(file: int, prompt: Prompt, turn: int, label: str) -> str:
    """Another text in each file, so that no reply is in the cache."""
    return f"The {'good' if label == BASELINE else 'bad'} answer {file} to {prompt.id}."


def scores_of(results: Path) -> tuple[Score, ...]:
    path = scores_path(results)
    return tuple(read_scores(path).scores) if path.exists() else ()


# Forks a judging for each line of arguments, with everything imported; prints its process and then its exit code.
FORKS = """
import json, os, sys
import openai, benchctl.cli.judge, benchctl.judges.gpt, benchctl.judging.scoring
for line in sys.stdin:
    process = os.fork()
    if not process:
        os.dup2(2, 1)
        try:
            benchctl.cli.main(json.loads(line), prog_name="benchctl")
        except SystemExit as end:
            os._exit(end.code or 0)
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_a_judging_that_is_killed_again_and_again_judges_everything_and_pays_once(tmp_path: Path) -> None:
    """Killed by SIGKILL at 20 random moments after its first request; what was in flight may be billed again."""
    chance, kills, files, pipe = random.Random(4), 0, 0, subprocess.PIPE
    forks = subprocess.Popen(
        [sys.executable, "-c", FORKS], env=environment(), bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    )
    assert forks.stdin is not None and forks.stdout is not None
    with forks, JudgeServer(lambda asked: Says(fair(asked)), delay_s=0.005) as server:
        while kills < KILLS:
            results, paid = tmp_path / f"{files}.jsonl", len(server.bills)
            files += 1
            measured_file(results, {"koala": PROMPTS}, partial(answer, files))
            again, ended = 0, None
            while ended != 0:
                asked, before = len(server.asked), scores_of(results)
                forks.stdin.write(json.dumps(command(results, server.url)[3:]).encode() + b"\n")
                process = int(forks.stdout.readline())
                while len(server.asked) == asked and not select([forks.stdout], [], [], 0.001)[0]:
                    pass
                if kills < KILLS and not select([forks.stdout], [], [], chance.uniform(0, 0.06))[0]:
                    with suppress(ProcessLookupError):  # it ended just now
                        os.kill(process, signal.SIGKILL)
                ended = int(forks.stdout.readline())
                kills, again = kills + (ended != 0), again + (ended != 0)
                assert ended in (0, -signal.SIGKILL) and scores_of(results)[: len(before)] == before
            scores = scores_of(results)
            assert len({(score.prompt_id, score.label, score.order) for score in scores}) == len(scores) == QUESTIONS
            assert 0 <= len(server.bills) - paid - QUESTIONS <= again
    assert files < KILLS


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
    assert shown.endswith(f" benchctl {shlex.join(words[3:])}\n")
    assert len(read_scores(scores_path(results)).scores) == 1
