"""Records made by rule: none of the suite among them, the same every time, and right."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from benchctl.training.data.chats import Message, Record
from benchctl.training.optim import Stage
from reference import recipe
from reference.bpe import chat_format
from reference.recipe import SYNTHETIC_CHATS, TASKS, corpus_data, reference_corpus, tokenizer_for
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


def test_the_reference_corpus_adds_what_rules_make_and_leaves_out_what_weighs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
