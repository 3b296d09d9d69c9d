"""Requests made by rule, which a target answers when something is distilled from it."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from benchctl.training.data.chats import Record
from reference.requests import GLOSSARY, user_requests


def test_requests_differ_are_the_same_every_time_and_each_is_one_turn_of_a_user() -> None:
    made = user_requests([], 2000)
    assert len(set(made)) == 2000 and made == user_requests([], 2000) != user_requests([], 2000, seed=1)
    for request in made:
        assert [message.role for message in request] == ["user"]
        assert "{" not in request[0].content and len(request[0].content) > 10


def test_terms_of_a_glossary_among_the_data_are_asked_about() -> None:
    glossary = [Record.chat(GLOSSARY, 'Define the term "cyclotron".', "A machine.")]
    other = [Record.chat("elsewhere", 'Define the term "cyclotron".', "A machine.")]
    assert any("cyclotron" in request[0].content for request in user_requests(glossary, 3000))
    assert not any("cyclotron" in request[0].content for request in user_requests(other, 3000))


@pytest.mark.slow
def test_no_request_is_a_prompt_of_an_embedded_suite() -> None:
    prompts: set[str] = set()
    for file in (files("benchctl") / "assets" / "prompts").iterdir():
        if file.name.endswith(".jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines():
                fields = json.loads(line)
                texts = [fields.get(name) for name in ("prompt", "instruction", "Instruction")]
                prompts |= {text for text in (*texts, *fields.get("turns", ())) if text}
    assert len(prompts) > 350
    requests = user_requests([], 60_000)
    assert 10_000 < len(requests) < 60_000  # more than there are
    assert not prompts & {request[0].content for request in requests}
