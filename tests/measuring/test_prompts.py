"""Suites and prompt files: how they are read, how a broken file is refused, the suite of tasks, the filled context."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import make_folder, make_settings, measure_file, measured
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.tables.text import View, render
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.errors import UserError
from benchctl.exact_match import is_right
from benchctl.measuring import settings as ask
from benchctl.measuring.prompts.fit import Filler, filler_text, make_filler
from benchctl.measuring.prompts.sources import SIZE_LIMIT_BYTES, SuiteSpec, sha256
from benchctl.measuring.prompts.suites import SUITES, Suite, load_suite, suite_names
from benchctl.measuring.run import suite_info
from benchctl.measuring.settings import RunSettings
from reference import tasks

SHARED = Path(os.environ.get("BENCHCTL_DATA") or Path(__file__).parents[3] / "shared" / "data")
needs_published = pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not beside the repository")


PUBLISHED = [spec for spec in SUITES if not spec.own]
AT_HAND = [spec for spec in PUBLISHED if (SHARED / spec.file).is_file()]
SAMPLED = [spec for spec in PUBLISHED if spec.embedded_prompts]


def embedded(name: str, limit: int | None = None) -> Suite:
    return load_suite(name, source="embedded", limit=limit, notify=lambda text: None)


def published(name: str, limit: int | None = None) -> Suite:
    return from_folder(name, SHARED, "published", limit)


def from_folder(name: str, folder: Path, source: str = "auto", limit: int | None = None) -> Suite:
    """A known suite from a folder of BENCHCTL_DATA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHCTL_DATA", str(folder))
        return load_suite(name, source=source, limit=limit, notify=lambda text: None)


def own(path: Path, limit: int | None = None) -> Suite:
    return load_suite(str(path), source="auto", limit=limit, notify=lambda text: None)


def written(folder: Path, content: str | bytes, name: str = "mine.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("spec", SAMPLED, ids=lambda spec: spec.name)
def test_embedded_sample_is_read_by_its_suites_own_reader_and_says_embedded(spec: SuiteSpec) -> None:
    suite = embedded(spec.name)
    assert len(suite.prompts) == spec.embedded_prompts >= 24
    assert (suite.source, suite.origin) == ("embedded", f"benchctl/assets/prompts/{spec.name}.jsonl")
    assert all(len(prompt.turns) == spec.turns and prompt.suite == spec.name for prompt in suite.prompts)
    assert all("sample" in prompt.id for prompt in suite.prompts)
    assert not any(prompt.exact_answers for prompt in suite.prompts) and not suite.own


def test_prompts_without_exact_answers_keep_the_hash_that_runs_of_the_first_version_hold() -> None:
    """Else no run measured before there were exact answers could be compared or resumed."""
    assert embedded("koala").prompts_sha256 == "dd0f6d1bfa669ae8feeb58e0dd2d3f8fc75e06ecb8846bc5067b01937640afcc"


def runs_of_words(text: str, length: int) -> set[tuple[str, ...]]:
    parts = re.findall(r"\w+", text.lower())
    return {tuple(parts[n : n + length]) for n in range(len(parts) - length + 1)}


@needs_published
def test_no_embedded_prompt_shares_eight_words_in_a_row_with_a_published_one() -> None:
    theirs = {
        run for spec in AT_HAND for p in published(spec.name).prompts for run in runs_of_words("\n".join(p.turns), 8)
    }
    assert len(theirs) > 10_000
    for spec in SUITES:
        for prompt in embedded(spec.name).prompts if spec.embedded_prompts else ():
            assert not runs_of_words("\n".join(prompt.turns), 8) & theirs, prompt


@needs_published
@pytest.mark.parametrize("spec", AT_HAND, ids=lambda spec: spec.name)
def test_published_layout_is_read_whole(spec: SuiteSpec) -> None:
    suite = published(spec.name)
    assert (suite.source, suite.origin, suite.sha256) == ("published", spec.address, spec.sha256)
    assert len(suite.prompts) == spec.prompts
    assert max(len(prompt.turns) for prompt in suite.prompts) == spec.turns
    assert not any(turn.endswith("\r") for prompt in suite.prompts for turn in prompt.turns)


@needs_published
def test_one_self_instruct_text_that_occurs_twice_stays_two_prompts() -> None:
    """Keyed on the instruction, 252 published prompts would become 251."""
    twice = [
        p for p in published("self-instruct").prompts if p.turns[0].startswith("Answer the following question.\n\n")
    ]
    assert len({prompt.id for prompt in twice}) == len({prompt.turns for prompt in twice}) == 2


@needs_published
def test_published_references_are_kept_where_there_are_some() -> None:
    assert sum(bool(prompt.reference) for prompt in published("mt-bench").prompts) == 39
    assert all(len(prompt.reference) == 1 for prompt in published("self-instruct").prompts)


def self_instruct_line(given: str) -> str:
    instances = [{"input": given, "output": "4"}]
    return json.dumps({"id": "t", "motivation_app": "maths", "instruction": "Add.", "instances": instances})


@pytest.mark.parametrize(("given", "text"), [("2 and 2", "Add.\n\n2 and 2"), ("", "Add."), (" \n", "Add.")])
def test_self_instruct_input_follows_the_instruction_after_a_blank_line(tmp_path: Path, given: str, text: str) -> None:
    path = written(tmp_path, self_instruct_line(given), "user_oriented_instructions.jsonl")
    suite = from_folder("self-instruct", path.parent)
    (prompt,) = suite.prompts
    assert (prompt.turns, prompt.reference, prompt.category) == ((text,), ("4",), "maths")


def known_file(name: str, lines: Sequence[dict[str, object]], folder: Path) -> Path:
    """A file of a known suite, where BENCHCTL_DATA=folder has it; compressed where the published one is."""
    spec = next(spec for spec in SUITES if spec.name == name)
    content = "\n".join(map(json.dumps, lines)).encode()
    content = gzip.compress(content) if spec.file.endswith(".gz") else content
    return written(folder, content, Path(spec.file).name)


def test_mt_bench_is_one_of_the_six_categories_of_spec_bench(tmp_path: Path) -> None:
    categories = ["writing", "humanities", "translation", "rag"]
    lines: list[dict[str, object]] = [
        {"question_id": n, "category": category, "turns": ["One?", "Two?"][: 2 - n // 2], "reference": [["a", "b"]]}
        for n, category in enumerate(categories)
    ]
    known_file("spec-bench", lines, tmp_path)
    prompts = from_folder("spec-bench", tmp_path).prompts
    assert [prompt.category for prompt in prompts] == ["multi-turn", "multi-turn", "translation", "rag"]
    assert [(prompt.id, len(prompt.turns)) for prompt in prompts] == [("0", 2), ("1", 2), ("2", 1), ("3", 1)]


@needs_published
@pytest.mark.skipif(not (SHARED / "spec_bench").is_dir(), reason="spec_bench is not among the published files")
def test_spec_bench_has_eighty_prompts_of_each_category_and_a_limit_takes_as_many_of_each() -> None:
    categories = ["multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag"]
    assert Counter(prompt.category for prompt in published("spec-bench").prompts) == dict.fromkeys(categories, 80)
    few = [prompt.category for prompt in published("spec-bench", limit=24).prompts]
    assert few == [category for category in categories for _ in range(4)]
    rag = published("spec-bench/rag", limit=2)
    assert [(prompt.id, prompt.suite) for prompt in rag.prompts] == [(id, "spec-bench/rag") for id in ("481", "482")]


def test_gsm8k_has_the_bare_question_and_the_number_that_the_answer_ends_with(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"question": "2 x 4 x 5?", "answer": "2 x 4 = <<2*4=8>>8.\n8 x 5 = 40 # done\n#### 40"},
        {"question": "And 1,000 more?", "answer": "#### 1,040"},
    ]
    known_file("gsm8k", lines, tmp_path)
    prompts = from_folder("gsm8k", tmp_path).prompts
    assert [(each.id, each.turns, each.exact_answers) for each in prompts] == [
        ("1", ("2 x 4 x 5?",), ("40",)),
        ("2", ("And 1,000 more?",), ("1,040",)),
    ]
    assert is_right("So it is $1040.", prompts[1].exact_answers[0])


def test_humaneval_is_unpacked_and_its_prompt_is_the_code_alone(tmp_path: Path) -> None:
    code = 'def add(a: int, b: int) -> int:\n    """The sum."""\n'
    path = known_file("humaneval", [{"task_id": "HumanEval/0", "prompt": code, "test": ""}], tmp_path)
    suite = from_folder("humaneval", tmp_path)
    assert [(prompt.id, prompt.turns) for prompt in suite.prompts] == [("HumanEval/0", (code,))]
    assert suite.sha256 == sha256(path.read_bytes())


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (gzip.compress(b'{"prompt": "a"}', mtime=0)[:-4], "broken_gzip"),
        (gzip.compress(b'{"prompt": "a"}', mtime=0) + b"more", "broken_gzip"),
        (b"\x1f\x8bno deflate", "broken_gzip"),
        (gzip.compress(b" " * (SIZE_LIMIT_BYTES + 1)), "file_too_large"),
    ],
)
def test_a_compressed_file_that_is_not_whole_or_too_large_is_refused(tmp_path: Path, content: bytes, id: str) -> None:
    with refused(id, "mine.jsonl.gz"):
        own(written(tmp_path, content, "mine.jsonl.gz"))


def test_own_file_takes_prompts_and_turns_with_line_numbers_for_missing_ids(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "Hi.", "reference": "Hello."}',
        "",
        '{"turns": ["One?", "Two?"], "id": 7}',
        '{"prompt": "Bye."}',
    ]
    suite = own(written(tmp_path, "\r\n".join(lines)))
    assert (suite.name, suite.source, suite.origin) == ("mine", "file", str(tmp_path / "mine.jsonl"))
    assert [prompt.id for prompt in suite.prompts] == ["1", "7", "4"]
    assert [prompt.turns for prompt in suite.prompts] == [("Hi.",), ("One?", "Two?"), ("Bye.",)]
    assert suite.prompts[0].reference == ("Hello.",)


def test_own_file_asks_for_exact_match_by_an_exact_answer_per_turn(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "2 + 2?", "exact_answer": " 4\\n"}',
        '{"turns": ["2 + 2?", "Why?"], "exact_answer": "4"}',
        '{"turns": ["Hi.", "2 + 3?"], "exact_answer": ["", "5"]}',
        '{"prompt": "Hi.", "reference": "Hello.", "answer": "Hello."}',
    ]
    answers = [prompt.exact_answers for prompt in own(written(tmp_path, "\n".join(lines))).prompts]
    assert answers == [("4",), ("4",), ("", "5"), ()]


def test_limit_takes_the_first_prompts_and_leaves_the_file_hash_alone(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    whole, two = own(path), own(path, limit=2)
    assert [prompt.turns[0] for prompt in two.prompts] == ["a", "b"]
    assert whole.sha256 == two.sha256
    assert whole.prompts_sha256 != two.prompts_sha256 == own(path, limit=2).prompts_sha256


def test_limit_takes_as_many_of_each_category_in_file_order_where_it_has_as_many(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"{category}{n}", "prompt": "?", "category": category})
             for category, count in (("a", 3), ("b", 1), ("c", 3)) for n in range(count)]  # fmt: skip
    path = written(tmp_path, "\n".join(lines))
    kept = {limit: [prompt.id for prompt in own(path, limit=limit).prompts] for limit in (2, 5, 6, 99)}
    assert kept[2] == ["a0", "b0"]
    assert kept[5] == ["a0", "a1", "b0", "c0", "c1"]
    assert kept[6] == ["a0", "a1", "a2", "b0", "c0", "c1"]
    assert own(path, limit=99).prompts_sha256 == own(path).prompts_sha256


def test_a_suite_and_a_category_of_it_are_two_suites_and_a_file_of_that_name_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_skill = embedded("tasks/nth_word", limit=3)
    assert (of_skill.name, of_skill.own, of_skill.source) == ("tasks/nth_word", True, "embedded")
    assert {(prompt.suite, prompt.category) for prompt in of_skill.prompts} == {("tasks/nth_word", "nth_word")}
    assert len(of_skill.prompts) == 3 and of_skill.sha256 == embedded("tasks").sha256
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    written(tmp_path / "tasks", '{"prompt": "mine"}', "nth_word")
    assert [prompt.turns for prompt in embedded("tasks/nth_word").prompts] == [("mine",)]


def test_a_file_keeps_its_separators_is_never_shown_as_a_suite_and_is_hashed_with_its_answers(tmp_path: Path) -> None:
    suite = own(written(tmp_path, b"\xef\xbb\xbf" + '{"prompt": "one\u2028two"}\n'.encode(), "koala.jsonl"))
    assert (suite.name, suite.prompts[0].suite) == ("koala.jsonl", "koala.jsonl")
    assert suite.prompts[0].turns == ("one\u2028two",)
    answers: list[dict[str, str]] = [{}, {"exact_answer": "4"}, {"exact_answer": "5"}]
    contents = [json.dumps({"prompt": "2 + 2?"} | answer) for answer in answers]
    assert len({own(written(tmp_path, content)).prompts_sha256 for content in contents}) == 3


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ('{"prompt": "a"}\n{"text": "b"}\n', 2, "the line has: text"),
        ('{"prompt": "a", "turns": ["b"]}', 1, 'either "prompt"'),
        ('{"prompt": "a"}\n\n{"prompt": "  "}', 3, '"prompt" is empty'),
        ('{"prompt": ["a"]}', 1, "must be text, not a list"),
        ('{"turns": []}', 1, "empty list"),
        ('{"turns": "a"}', 1, "must be a list, not text"),
        ('{"turns": ["a", ""]}', 1, '"turns[1]" is empty'),
        ('{"prompt": "a", "reference": ["b", "c"]}', 1, "2 entries for 1 turn"),
        ('{"prompt": "a", "exact_answer": "?!"}', 1, '"exact_answer" has no letter or digit'),
        ('{"prompt": "a", "exact_answer": 4}', 1, '"exact_answer" must be a list, not a number'),
        ('{"prompt": "a", "id": 1.5}', 1, "must be text, not a number"),
        ('{"prompt": "a", "id": true}', 1, "must be text, not true or false"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', 2, "also that of line 1"),
        ('{"prompt": "a", "id": 2}\n{"prompt": "b"}', 2, 'id "2" is also'),
        ('{"prompt": "a"}\n{"prompt": \n', 2, "broken JSON at column"),
        ('{"prompt": "a"}\n["b"]', 2, "a list instead of an object"),
        (b'{"prompt": "a"}\n{"prompt": "caf\xe9"}', 2, "not UTF-8 (byte 16"),
        (b'{"prompt": "\\ud83d"}', 1, "surrogate"),
        (b"[" * 200_000, 1, "broken JSON"),
        ("", 1, "has no prompt"),
        ("\n \n", 1, "has no prompt"),
    ],
)
def test_broken_file_is_refused_with_file_and_line(tmp_path: Path, content: str | bytes, line: int, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UserError) as caught:
        own(path, limit=1)
    assert str(caught.value).startswith(f"{path}:{line}: ") and says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("koala", {"id": "k"}, '"prompt" is missing'),
        ("self-instruct", {"id": "s", "instruction": "Add.", "instances": []}, "exactly one object"),
        ("self-instruct", {"id": "s", "instruction": "Add.", "instances": [{"input": ""}]}, '"output" is missing'),
        ("wizardlm", {"idx": 1, "Skill": "Math"}, '"Instruction" is missing'),
        ("mt-bench", {"question_id": 1, "category": "math", "turns": ["One?"]}, "has 2"),
        ("spec-bench", {"question_id": 1, "turns": ["One?"]}, '"category" is missing'),
        ("vicuna", {"question_id": 1, "turns": []}, "empty list"),
        ("humaneval", {"task_id": "HumanEval/0"}, '"prompt" is missing'),
        ("gsm8k", {"question": "2 + 2?", "answer": "It is 4."}, '"answer" has no number'),
        ("gsm8k", {"question": "2 + 2?", "answer": "It is 4.\n#### ?"}, '"answer" has no number'),
    ],
)
def test_known_suite_with_a_broken_line_is_refused_with_file_and_line(
    tmp_path: Path, name: str, fields: dict[str, object], says: str
) -> None:
    spec = next(spec for spec in SUITES if spec.name == name)
    path = written(tmp_path, json.dumps(fields), Path(spec.file).name)
    with pytest.raises(UserError) as caught:
        from_folder(name, tmp_path)
    assert str(caught.value).startswith(f"{path}:1: ") and says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "id", "fact"),
    [
        ("mt_bench", "unknown_suite", '"mt-bench"'),
        ("zzz", "unknown_suite", ", ".join(suite_names())),
        ("zzz/rag", "cannot_read", "zzz/rag"),
        ("tasks/absent", "unknown_category", "nth_word"),
        ("tasks/absent.jsonl", "unknown_category", "absent.jsonl"),
        ("absent.jsonl", "cannot_read", "absent.jsonl"),
        (".", "cannot_read", "Is a directory"),
    ],
)
def test_unknown_names_are_refused(
    tmp_path: Path, name: str, id: str, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(id, fact):
        own(Path(name))


def test_a_category_without_a_name_is_not_the_whole_suite() -> None:
    with refused("unknown_category", "koala"):
        load_suite("koala/", source="embedded", limit=None, notify=print)


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


def test_a_run_records_the_category_of_each_prompt_that_has_one(tmp_path: Path) -> None:
    assert suite_info(embedded("tasks", 2)).categories == {"tasks_1": "add", "tasks_2": "add_three"}
    path = written(tmp_path, '{"prompt": "a", "category": "x"}\n{"prompt": "b"}')
    assert suite_info(own(path)).categories == {"1": "x"}


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
    text = render(compare([file]), "md", View(full=True))
    assert "tasks, 2 prompts" in text and "exact match" in text and "embedded samples" not in text
    assert measure_file(replace(asked, resume=True)) == file


FILL = 40


@pytest.fixture(scope="module")
def tokenizer(run_folder: Path) -> TargetTokenizer:
    return load_tokenizer(run_folder / "target")


def filled(settings: RunSettings, fill: int) -> RunSettings:
    once = replace(settings.repeat, repeats=1, warm_up=0)
    return replace(settings, repeat=once, prompts=replace(settings.prompts, context_fill=fill))


def test_a_filler_has_exactly_the_tokens_asked_for(tokenizer: TargetTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens in (1, 40, 126):
        ids = make_filler(tokenizer, tokens).ids
        assert len(ids) == tokens and filler_text().startswith(tokenizer.decode_text(ids))
    once = tokenizer.encode_text(filler_text())
    monkeypatch.setattr(tokenizer, "context_tokens", 10 * len(once))
    assert list(make_filler(tokenizer, len(once) + 3).ids) == [*once, *once[:3]]


def test_the_filler_comes_after_the_first_token_of_the_tokenizer() -> None:
    assert Filler((7, 8), first=1).before([1, 5, 6]) == [1, 7, 8, 5, 6]
    assert Filler((7, 8), first=1).before([5, 6]) == [7, 8, 5, 6]
    assert Filler((7, 8)).before([1, 5, 6]) == [7, 8, 1, 5, 6]


def test_a_filler_without_tokens_is_empty_and_one_that_leaves_no_room_is_refused(tokenizer: TargetTokenizer) -> None:
    assert make_filler(tokenizer, 0) == Filler() and Filler().before([1, 5]) == [1, 5]
    with refused("filler_too_long", "--context 127", "128 tokens"):
        make_filler(tokenizer, 127)


@pytest.mark.slow
def test_every_label_answers_the_filled_prompt_and_the_run_records_it(run_folder: Path, tmp_path: Path) -> None:
    """The truth is the target's own best next token, read off a pass over filler, prompt and answer."""
    plain = measure_file(filled(make_settings(run_folder, tmp_path / "plain.jsonl"), 0))
    full = measure_file(filled(make_settings(run_folder, tmp_path / "full.jsonl"), FILL))
    assert (plain.run.context_fill, full.run.context_fill) == (0, FILL)
    tokens, filled_tokens = (
        {(row.label, row.prompt_id): row.prompt_tokens for row in measured(file) if row.turn == 0}
        for file in (plain, full)
    )
    assert filled_tokens == {key: count + FILL for key, count in tokens.items()}
    target = Target.load(run_folder / "target", dtype="float32")
    short = next(row for row in measured(full) if (row.label, row.prompt_id) == ("autoregressive", "short"))
    ids = target.tokenizer.encode_chat([{"role": "user", "content": "Say something."}])
    text = [ids[0], *make_filler(target.tokenizer, FILL).ids, *ids[1:]]
    assert ids[0] == target.tokenizer.first_id and len(text) == short.prompt_tokens
    for token in short.token_ids:
        assert token == int(target.next_logits(text).argmax())
        text.append(token)


@pytest.mark.slow
def test_prompts_that_the_filler_leaves_no_room_for_are_left_out_or_cut(run_folder: Path, tmp_path: Path) -> None:
    files = {}
    for policy in ("skip", "cut"):
        settings = filled(make_settings(run_folder, tmp_path / f"{policy}.jsonl"), 100)
        prompts = replace(settings.prompts, long_prompts=policy)
        files[policy] = measure_file(replace(settings, methods=("autoregressive",), prompts=prompts))
    assert {row.prompt_id for row in measured(files["skip"])} == {"short", "talk"}
    assert files["skip"].run.suites[0].prompts == 2
    (story,) = (row for row in measured(files["cut"]) if row.prompt_id == "story")
    assert story.error is None and story.prompt_tokens == 100 + 28 - 6
    assert "cut" in files["cut"].run.suites[0].origin
