"""What a judging is said to cost beforehand, and what a server that counts real tokens bills for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_records import BASELINE
from judge_server import KEY, JudgeServer, Says
from judged import KEY_ENV, PRICE, Court, measured_file

from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.prompts.suites import load_suite
from benchctl.records.writer import read

SUITES = {"koala": 8, "self-instruct": 8, "wizardlm": 8, "mt-bench": 6}
ACCURACY = 0.25
WHY = "no tokenizer of OpenAI's models here to count by: pip install -e '.[dev]'"


def counter(vocabulary: str) -> Callable[[str], int]:
    encoding: Any = pytest.importorskip("bpe_openai", reason=WHY).get_encoding(vocabulary)
    return lambda text: len(encoding.encode(text))


def english() -> list[str]:
    """Texts of many kinds, to stand for answers."""
    suites = (load_suite(name, source="embedded", limit=None, notify=lambda _: None) for name in SUITES)
    return [turn for suite in suites for prompt in suite.prompts for turn in prompt.turns]


@pytest.mark.parametrize(
    ("vocabulary", "protocol"), [("cl100k_base", "pairwise"), ("o200k_base", "pairwise"), ("o200k_base", "single")]
)
def test_an_estimate_is_within_a_quarter_of_the_bill(
    vocabulary: str, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, texts = counter(vocabulary), iter(english() * 4)
    monkeypatch.setenv(KEY_ENV, KEY)

    def answer(prompt: Prompt, turn: int, label: str) -> str:
        return "\n\n".join(next(texts) for _ in range(1 if label == BASELINE else 2))

    court = Court(tmp_path, ())
    court.prompts = measured_file(court.results, SUITES, answer)
    reply = "8 7" if protocol == "pairwise" else "8"
    with JudgeServer(lambda asked: Says(reply), count) as server:
        options = {"protocol": protocol}
        forecast = court.judged_by(server.url, options=options).forecast()
        assert not server.asked
        court.judge(server.url, options=options, concurrency=4)
    prompt_tokens, reply_tokens = server.tokens()
    billed = (prompt_tokens * PRICE.in_usd + reply_tokens * PRICE.out_usd) / 1e6
    answers = sum(row.repeat >= 0 for row in read(court.results).rows)
    assert forecast.questions == len(server.asked) == answers
    assert forecast.usd == pytest.approx(billed, rel=ACCURACY)
    assert forecast.usage.prompt_tokens == pytest.approx(prompt_tokens, rel=ACCURACY)
