"""The suite of tasks: the file is what its program makes, and its answers can be checked."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import make_folder, make_settings, measure_file

from benchctl.analysis.tables.text import View, summary
from benchctl.exact_match import is_right
from benchctl.measuring import settings as ask
from benchctl.measuring.prompts.suites import Suite, load_suite
from reference import tasks

FILE = "benchctl/assets/prompts/tasks.jsonl"


def load(source: str = "auto", notices: list[str] | None = None) -> Suite:
    notices = [] if notices is None else notices
    return load_suite("tasks", source=source, limit=None, notify=notices.append)


def test_the_file_is_byte_for_byte_what_the_program_prints(root: Path) -> None:
    program = [sys.executable, "-m", "reference.tasks"]
    assert (root / FILE).read_bytes() == subprocess.run(program, cwd=root, capture_output=True, check=True).stdout


def test_there_are_as_many_prompts_of_every_skill_and_the_first_are_as_mixed_as_all() -> None:
    prompts = load().prompts
    skills = len(tasks.MAKERS)
    assert len({prompt.turns for prompt in prompts}) == len(prompts) == 280
    assert set(Counter(prompt.category for prompt in prompts).values()) == {280 // skills}
    assert len({prompt.category for prompt in prompts[:skills]}) == skills


def test_every_answer_that_training_teaches_is_right() -> None:
    assert [task for task in tasks.suite_tasks() if not is_right(task.answer, task.key)] == []


def test_repeating_the_question_is_right_only_where_that_was_asked_or_by_its_last_word() -> None:
    repeated = Counter(task.skill for task in tasks.suite_tasks() if is_right(task.question, task.key))
    assert repeated == {"repeat": 20, "largest": 4, "nth_word": 3}


@pytest.mark.parametrize("source", ["auto", "published", "embedded"])
def test_its_one_source_is_the_package(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_DATA", str(tmp_path))
    notices: list[str] = []
    suite = load(source, notices=notices)
    assert (suite.source, suite.origin, suite.own, notices) == ("embedded", FILE, True, [])


@pytest.mark.slow
def test_the_tasks_are_measured_by_their_name_and_shown_without_the_warning_for_samples(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "models")
    settings = make_settings(folder, tmp_path / "out.jsonl")
    asked = replace(settings, prompts=ask.PromptSettings(("tasks",), limit=2), methods=("prompt_lookup",))
    file = measure_file(asked)
    (suite,) = file.run.suites
    assert (suite.source, suite.own, suite.exact_answers) == (
        "embedded",
        True,
        {"tasks_1": ("59",), "tasks_2": ("44",)},
    )
    text = summary([file.path], "md", View(full=True))
    assert "tasks, 2 prompts" in text and "exact match" in text and "embedded samples" not in text
    assert measure_file(replace(asked, resume=True)) == file
