"""Requests and records made by rule: the same every time, right, and none of the suite among them."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from benchctl.training.data.chats import Message, Record
from benchctl.training.optim import Stage
from reference import recipe
from reference.bpe import chat_format
from reference.recipe import SYNTHETIC_CHATS, TASKS, corpus_data, reference_corpus, tokenizer_for
from reference.requests import GLOSSARY, user_requests
from reference.synthetic import story_records, suite_records, synthetic_records
from reference.tasks import in_suite, suite_tasks, training_tasks


def test_no_task_and_no_record_of_the_recipe_is_of_the_suite() -> None:
    """The tasks reach the model as records, beside chats of other rules: what counts is what those ask."""
    suite, trained = ({task.question for task in tasks} for tasks in (suite_tasks(), training_tasks(TASKS)))
    assert not suite & trained
    assert all(map(in_suite, suite)) and not any(map(in_suite, trained))
    records = synthetic_records(TASKS, SYNTHETIC_CHATS)
    assert len(records) == TASKS + SYNTHETIC_CHATS
    assert not {record.prompt for record in suite_records()} & {record.prompt for record in records}


def test_the_same_seed_makes_the_same_records_and_another_seed_others() -> None:
    assert synthetic_records(200, 100) == synthetic_records(200, 100)
    assert synthetic_records(200, 100, seed=1) != synthetic_records(200, 100)
    assert [task.question for task in suite_tasks()] == [task.question for task in suite_tasks()]


def test_the_answer_of_a_sum_ends_with_the_sum() -> None:
    asked = re.compile(r"Add (\d+) and (\d+)\.")
    sums = [(found, record) for record in synthetic_records(600, 0) if (found := asked.match(record.prompt[0].content))]
    assert len(sums) > 5
    for found, record in sums:
        assert record.answer.endswith(f" = {int(found[1]) + int(found[2])}")


def test_a_story_is_asked_for_by_the_word_it_is_about() -> None:
    story = Record.plain("tinystories_sample", "Once upon a time a boat sailed. The boat was blue. A boat!")
    made = story_records([story, Record.plain("unit", "Not a story."), story])
    assert [record.prompt for record in made] == [
        (Message("user", "Tell me a short story about a boat."),),
        (Message("user", "Write a short story for children about a boat."),),
    ]
    assert {record.answer for record in made} == {story.text}


def test_the_reference_corpus_adds_records_made_by_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "TASKS", 20)
    monkeypatch.setattr(recipe, "SYNTHETIC_CHATS", 10)
    texts = [
        {"source": source, "text": f"A {word} met a {word}. {source}"}
        for source in ("tinystories_sample", "tinyshakespeare", "unit")
        for word in ("boat", "tree")
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, texts)))
    (tmp_path / "val.jsonl").write_text(json.dumps({"instruction": "Hi", "output": "Hello"}))
    corpus = reference_corpus([str(tmp_path)])
    assert Counter(record.source for record in corpus.train) == {
        "tinystories_sample": 2,
        "unit": 2,
        "stories": 2,
        "tasks": 20,
        "synthetic": 10,
    }
    assert list(corpus.held_out) == ["instruct", "tasks"]
    data = corpus_data(corpus, chat_format(tokenizer_for(corpus, 300)), (Stage(1.0, 128, 2),))
    assert data.stages[0].rows(0, 2).tokens.shape == (2, 128)
    assert {name: of[0].tokens.shape[1] for name, of in data.held_out.items()} == {"instruct": 512, "tasks": 512}


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
