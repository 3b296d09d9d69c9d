"""Judging by a server that is not ours: transformers' own `serve`, with a model of ours behind it, over real HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from fixtures_records import EXITING
from judged import Court, good_and_bad
from parrot import parrot_folder
from refusals import refused

from benchctl.judges.local import Local
from benchctl.records.scores import Score

NEEDED = ("accelerate", "fastapi", "uvicorn")
MISSING = [name for name in NEEDED if find_spec(name) is None]
PATIENCE_S = 120.0
SERVE = "from transformers.cli.transformers import main; main()"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"transformers serve needs {', '.join(MISSING)}: pip install -e '.[dev]'"),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port that the system gives to no other program, and on which a server that reuses addresses may listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parrot_folder(tmp_path_factory.mktemp("served") / "parrot", "8 3")


@pytest.fixture(scope="module")
def server(model: Path, port: int) -> Iterator[str]:
    """The address of `transformers serve`, which serves that model and no other."""
    options = ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    log = model.parent / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", str(model), *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE_S
        while not answers(url):
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.2)
        yield f"{url}/v1"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def same_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.judging.asking.new_mark", lambda: "0123456789abcdef")
    monkeypatch.setattr(Local, "repeats_itself", False)


def test_a_model_behind_transformers_serve_judges_over_http(server: str, model: Path, tmp_path: Path) -> None:
    """Two prompts, both orders, no key: its scores are read, and are those of the same model without a server."""
    served = Court(tmp_path / "served", good_and_bad(2))
    summary = served.judge(server, options={"model": str(model), "timeout_s": 60.0}, concurrency=2)
    judged = [score for score in served.scores() if score.label == EXITING]
    found = sorted((score.order, score.score, score.baseline_score) for score in judged)
    assert found == [("baseline_first", 3.0, 8.0)] * 2 + [("baseline_second", 8.0, 3.0)] * 2
    assert (summary.unreadable, {score.reply for score in judged}) == (0, {"8 3"})
    here = Court(tmp_path / "here", good_and_bad(2))
    here.judge("", judge=Local(model=str(model), way="generate"))
    assert sorted(map(told, here.scores())) == sorted(map(told, served.scores()))


def told(score: Score) -> tuple[str, ...]:
    """What does not depend on how the judge is reached, its tokens included."""
    names = ("label", "prompt_id", "order", "score", "reply", "template", "prompt_tokens", "reply_tokens", "tries")
    return tuple(str(getattr(score, name)) for name in names)


def test_a_model_that_is_not_served_is_refused(server: str, tmp_path: Path) -> None:
    court = Court(tmp_path, good_and_bad(1))
    with refused("judge_refuses", "nowhere"):
        court.judge(server, options={"model": "nowhere", "timeout_s": 60.0})
