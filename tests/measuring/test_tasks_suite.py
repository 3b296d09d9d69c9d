"""The suite of tasks: the file is what its program makes, its answers can be checked, and a lossy method loses them."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import LABELS, make_folder, make_settings, measured, write_prompts

from benchctl.analysis.comparison import compare
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH, EXACT_MATCH_DIFFERENCE
from benchctl.analysis.tables.text import summary
from benchctl.exact_match import is_right
from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.prompts.suites import Suite, load_suite
from benchctl.measuring.run import run
from benchctl.records.writer import RunFile, read
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


def measure(settings: ask.RunSettings, out: Path) -> RunFile:
    run(check(replace(settings, out=out), lambda notice: None), lambda event: None)
    return read(out)


@pytest.fixture(scope="module")
def checkable(tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """A lossy method on prompts whose exact answers are what the baseline says, and on one that has none."""
    folder = make_folder(tmp_path_factory.mktemp("tasks"))
    prompts = [{"id": f"p{n}", "prompt": f"What is {n} + {n + 1}?"} for n in range(10)]
    write_prompts(folder / "three.jsonl", prompts)
    settings = replace(make_settings(folder, folder / "x"), repeat=ask.RepeatSettings(repeats=1, warm_up=0))
    asked = measure(replace(settings, methods=()), folder / "asked.jsonl")
    said = {row.prompt_id: row.text for row in asked.rows if any(map(str.isalnum, row.text))}
    assert len(said) >= 3
    keyed = [prompt | {"exact_answer": said.get(prompt["id"], "")} for prompt in prompts]
    write_prompts(folder / "three.jsonl", [*keyed, {"id": "free", "prompt": "Hi.", "reference": "Hello."}])
    return measure(settings, folder / "answered.jsonl")


@pytest.mark.slow
def test_a_lossy_method_falls_below_the_baseline_and_an_exact_one_does_not(checkable: RunFile) -> None:
    (group,) = compare([checkable])
    score = {method.label: method.estimate(EXACT_MATCH).value for method in group.pooled.methods}
    lost = {method.label: method.estimate(EXACT_MATCH_DIFFERENCE) for method in group.pooled.methods}
    assert (score[LABELS[0]], score[LABELS[1]]) == (1.0, 1.0)
    lossy = score[LABELS[2]]
    assert lossy is not None and lossy < 1.0
    assert lost[LABELS[2]].value == pytest.approx(lossy - 1.0)
    interval = lost[LABELS[2]].interval
    assert interval is not None and interval.low <= interval.high < 0.0
    assert (lost[LABELS[0]].value, lost[LABELS[1]].value) == (0.0, 0.0)


def test_a_reference_in_free_text_is_no_exact_answer(checkable: RunFile) -> None:
    (suite,) = checkable.run.suites
    assert "free" not in suite.exact_answers and suite.exact_answers
    (group,) = compare([checkable])
    assert {method.checked_prompts for method in group.pooled.methods} == {len(suite.exact_answers)}
    assert len({row.prompt_id for row in measured(checkable)}) == 11


@pytest.mark.slow
def test_the_tasks_are_measured_by_their_name_and_shown_without_the_warning_for_samples(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "models")
    settings = make_settings(folder, tmp_path / "out.jsonl")
    asked = replace(settings, prompts=ask.PromptSettings(("tasks",), limit=2), methods=("prompt_lookup",))
    file = measure(asked, tmp_path / "out.jsonl")
    (suite,) = file.run.suites
    assert (suite.source, suite.own, suite.exact_answers) == (
        "embedded",
        True,
        {"tasks_1": ("59",), "tasks_2": ("44",)},
    )
    text = summary([file.path], "md")
    assert "**tasks**" in text and "exact match" in text and "embedded samples" not in text
    assert measure(replace(asked, resume=True), tmp_path / "out.jsonl") == file
