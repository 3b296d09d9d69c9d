"""Events that real servers sent, as they came: smollm2, the prompt "Repeat three times: one two three four five."

recorded/ has for each server the request and the events; paths and settings that nothing reads were taken out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.serving.client import Event
from benchctl.serving.dialects import DIALECTS
from benchctl.serving.engine import Counts, Question
from benchctl.serving.ledger import settle

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
STOP, VOCABULARY = 2, 49152


def read(path: Path) -> tuple[dict[str, Any], list[Event]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["body"], [Event(float(place), data) for place, data in enumerate(found["events"], 1)]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.stem))
def test_the_answer_is_read(path: Path) -> None:
    """The same tokens from every engine, and the request is the one that is sent today."""
    body, events = read(path)
    dialect = DIALECTS[path.stem]
    answer = dialect.read(events)
    question = Question(body["prompt"], 24, (STOP,), lambda: 0.0)
    found = settle(answer, question, drafts=True, limited_by_context=False, vocabulary=VOCABULARY)
    assert found.token_ids == (2705, 827, 1296, 1876, 2531, 30, STOP) and found.stop_reason == "stop"
    assert answer.prompt_tokens == len(body["prompt"]) == 40 and not answer.cached_tokens
    assert answer.counts == COUNTS[path.stem]
    assert found.reported is not None
    sums = (found.reported.steps, found.reported.drafted, found.reported.accepted)
    # llama.cpp hides its steps, so it is not known how many of its accepted tokens came before the end.
    assert sums == ((None, None, None) if path.stem == "llama_cpp" else (2, 5, 5))


COUNTS = {
    "llama_cpp": Counts(drafted=5, accepted=2),
    "vllm": Counts(steps=1, drafted=5, accepted=5, drafted_each=(5,), accepted_each=(5,)),
}


def test_both_servers_were_recorded() -> None:
    assert {path.stem for path in RECORDED} == COUNTS.keys()
