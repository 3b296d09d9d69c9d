"""Prompt suites: the table of the known ones, and loading one by its name or from a user's file."""

import difflib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchctl.errors import UserError
from benchctl.measuring.prompts.files import Line, Prompt, read_prompts, read_user_line
from benchctl.measuring.prompts.sources import (
    Downloader,
    Notify,
    Source,
    SuiteBytes,
    SuiteSpec,
    find_suite,
    sha256,
    unpacked,
)
from benchctl.records.reader import read_file

_DOWNLOADER = Downloader()  # one for all suites of a process, so that without a network only the first waits
_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def read_koala(suite: str, line: Line) -> Prompt:
    return Prompt(line.identifier("id"), suite, (line.text("prompt"),))


def read_self_instruct(suite: str, line: Line) -> Prompt:
    """The input, where there is one, follows its instruction after a blank line.

    Keyed on the id: one instruction text of the published file occurs twice.
    """
    instance = line.only_object("instances")
    given = instance.optional_text("input")
    instruction = line.text("instruction")
    text = f"{instruction}\n\n{given}" if given.strip() else instruction
    reference, category = (instance.text("output"),), line.optional_text("motivation_app")
    return Prompt(line.identifier("id"), suite, (text,), reference, category)


def read_wizardlm(suite: str, line: Line) -> Prompt:
    return Prompt(line.identifier("idx"), suite, (line.text("Instruction"),), category=line.text("Skill"))


def read_questions(suite: str, line: Line) -> Prompt:
    """The layout of FastChat, which Spec-Bench and EAGLE took over. Only some suites have categories."""
    category = line.optional_text("category")
    return Prompt(line.identifier("question_id"), suite, line.texts("turns"), category=category)


def read_mt_bench(suite: str, line: Line) -> Prompt:
    """Both turns. Only some lines have references, and the second may be empty."""
    prompt = read_questions(suite, line)
    if len(prompt.turns) != 2:
        raise line.error("wrong_turn_count", f'field "turns" has {len(prompt.turns)} entries; a line of {suite} has 2')
    return replace(prompt, reference=line.optional_texts("reference", at_most=2), category=line.text("category"))


def read_spec_bench(suite: str, line: Line) -> Prompt:
    """The eight categories of MT-Bench are one of the six of the paper (Xia et al. 2024), as its evaluation/speed.py
    counts them: `multi-turn`."""
    prompt, category = read_questions(suite, line), line.text("category")
    return replace(prompt, category="multi-turn" if category in _MT_BENCH else category)


def read_humaneval(suite: str, line: Line) -> Prompt:
    """The start of a function as the file has it: no word of the prompt is ours."""
    return Prompt(line.identifier("task_id"), suite, (line.text("prompt"),))


def read_gsm8k(suite: str, line: Line) -> Prompt:
    """The bare question: no word of the prompt is ours. The exact answer is the number after `####`.

    The file has no ids: the line number takes their place.
    """
    _, mark, answer = line.text("answer").rpartition("####")
    if not (mark and any(map(str.isdigit, answer))):
        raise line.error("uncheckable_answer", 'field "answer" has no number after "####"; get the file again')
    return Prompt(str(line.number), suite, (line.text("question"),), exact_answers=(answer.strip(),))


def read_tasks(suite: str, line: Line) -> Prompt:
    """Each answer can be checked against the reference, which is made by rule."""
    answers, turns = (line.text("reference"),), (line.text("prompt"),)
    return Prompt(line.identifier("id"), suite, turns, category=line.text("skill"), exact_answers=answers)


SUITES = (
    SuiteSpec(
        name="koala",
        prompts=180,
        licence="Apache-2.0",
        address="https://raw.githubusercontent.com/arnav-gudibande/koala-test-set/main/koala_test_set.jsonl",
        sha256="c8cda5c53810dc30aad34fabbb828fe3eba0957119e00916650c971905d19886",
        file="koala/koala_test_set.jsonl",
        read=read_koala,
    ),
    SuiteSpec(
        name="self-instruct",
        prompts=252,
        licence="Apache-2.0",
        address="https://raw.githubusercontent.com/yizhongw/self-instruct/main"
        "/human_eval/user_oriented_instructions.jsonl",
        sha256="81d60a117db495cecedecd9193504fd07c5b5a42f6699ef6b0f9da10fc22f42e",
        file="self_instruct/user_oriented_instructions.jsonl",
        read=read_self_instruct,
    ),
    SuiteSpec(
        name="wizardlm",
        prompts=218,
        licence="CC BY-NC 4.0",
        address="https://raw.githubusercontent.com/nlpxucan/WizardLM/main/WizardLM/data/WizardLM_testset.jsonl",
        sha256="e216ec20538a7040b908f654f1f767305460f0a71f01b3db9f3989c8a78f8245",
        file="wizardlm/WizardLM_testset.jsonl",
        read=read_wizardlm,
        terms="these prompts are licensed CC BY-NC 4.0: for non-commercial use only, naming their authors (WizardLM)",
    ),
    SuiteSpec(
        name="mt-bench",
        prompts=80,
        turns=2,
        licence="Apache-2.0",
        address="https://raw.githubusercontent.com/lm-sys/FastChat/main"
        "/fastchat/llm_judge/data/mt_bench/question.jsonl",
        sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        file="mt_bench/question.jsonl",
        embedded_prompts=24,
        read=read_mt_bench,
    ),
    SuiteSpec(
        name="spec-bench",
        prompts=480,
        turns=2,
        licence="Apache-2.0; texts of five other sets",
        address="https://raw.githubusercontent.com/hemingkx/Spec-Bench/fd2c1cd7d2201ef71db4c5f4e455008f017967bf"
        "/data/spec_bench/question.jsonl",
        sha256="4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
        file="spec_bench/question.jsonl",
        embedded_prompts=0,
        read=read_spec_bench,
    ),
    SuiteSpec(
        name="vicuna",
        prompts=80,
        licence="Apache-2.0",
        address="https://raw.githubusercontent.com/lm-sys/FastChat/0e6d3e4beaab66f4d3f93db72541a4abab8af28d"
        "/fastchat/llm_judge/data/vicuna_bench/question.jsonl",
        sha256="c248c5c98ba45bb0c2aadae2f270e643bd32679c6c306a3b2a503ac4254cdaa5",
        file="vicuna_bench/question.jsonl",
        embedded_prompts=0,
        read=read_questions,
    ),
    SuiteSpec(
        name="humaneval",
        prompts=164,
        licence="MIT",
        address="https://raw.githubusercontent.com/openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d"
        "/data/HumanEval.jsonl.gz",
        sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        file="human_eval/HumanEval.jsonl.gz",
        embedded_prompts=0,
        read=read_humaneval,
    ),
    SuiteSpec(
        name="gsm8k",
        prompts=1319,
        licence="MIT",
        address="https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c"
        "/grade_school_math/data/test.jsonl",
        sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        file="grade_school_math/test.jsonl",
        embedded_prompts=0,
        read=read_gsm8k,
    ),
    # The 80 prompts of each set that the papers on speculative decoding use, in EAGLE's repository.
    SuiteSpec(
        name="alpaca",
        prompts=80,
        licence="CC BY-NC 4.0",
        address="https://raw.githubusercontent.com/SafeAILab/EAGLE/cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b"
        "/eagle/data/alpaca/question.jsonl",
        sha256="8ad3e5a7fc61b88d8e25edb81a52a2ce00a04494d5694c122cb11a5cc26a00df",
        file="alpaca/question.jsonl",
        embedded_prompts=0,
        read=read_questions,
        terms="these prompts are licensed CC BY-NC 4.0: for non-commercial use only, naming their authors (Alpaca)",
    ),
    SuiteSpec(
        name="cnn-dailymail",
        prompts=80,  # those of spec-bench/summarization
        licence="Apache-2.0; texts of CNN and Daily Mail",
        address="https://raw.githubusercontent.com/SafeAILab/EAGLE/cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b"
        "/eagle/data/sum/question.jsonl",
        sha256="916876f0c42f938a944de96eed16e51425f29f27438cca5c9ef4737c0fedf771",
        file="sum/question.jsonl",
        embedded_prompts=0,
        read=read_questions,
    ),
    SuiteSpec(
        name="tasks",
        prompts=280,
        licence="Apache-2.0",
        embedded_prompts=280,
        read=read_tasks,
    ),
)


@dataclass(frozen=True)
class Suite:
    """The prompts of one suite. `sha256` is that of the whole file's bytes, whatever the limit."""

    name: str
    prompts: tuple[Prompt, ...]
    source: Source
    origin: str
    sha256: str
    own: bool = False

    @property
    def prompts_sha256(self) -> str:
        """sha256 of the prompts in use, as JSON with sorted keys: equal when the same prompts run in the same order."""
        # Exact answers only where a prompt has some, so that other prompts keep the hash that older files hold.
        prompts = [
            {name: value for name, value in asdict(prompt).items() if value or name != "exact_answers"}
            for prompt in self.prompts
        ]
        text = json.dumps(prompts, sort_keys=True, separators=(",", ":"))
        return sha256(text.encode())


def suite_names() -> tuple[str, ...]:
    return tuple(spec.name for spec in SUITES)


def load_suite(
    name_or_path: str,
    *,
    source: str,
    limit: int | None,
    notify: Notify,
    downloader: Downloader | None = None,
) -> Suite:
    """A known suite by its name, one category of it as `name/category`, or any file of `prompt` or `turns` records by
    its path; the file may be compressed by gzip.

    `source` ("auto", "published" or "embedded") and BENCHCTL_DATA choose where a known suite comes from. `limit` keeps
    so many prompts, as `evenly` does; the whole file is checked. `notify` gets a sentence about a download or a
    substitute. Raises UserError.
    """
    known, one, category = name_or_path.partition("/")
    spec = next((spec for spec in SUITES if spec.name == known), None)
    if spec is not None and not (category and os.path.exists(name_or_path)):
        content = find_suite(spec, source=source, downloader=downloader or _DOWNLOADER, notify=notify)
        name, read = spec.name, spec.read
    else:
        spec, one = None, ""
        content, read = _own_file(name_or_path), read_user_line
        # A file named like a known suite keeps its suffix, so that no table shows it as that suite.
        path = Path(name_or_path)
        name = path.name if path.stem in suite_names() else path.stem
    prompts = read_prompts(name, content.file, unpacked(content.content, content.file), read)
    if one:
        prompts, name = _of_category(prompts, name, category), f"{name}/{category}"
    own = spec is not None and spec.own
    return Suite(name, evenly(prompts, limit), content.source, content.origin, sha256(content.content), own)


def evenly(prompts: Sequence[Prompt], limit: int | None) -> tuple[Prompt, ...]:
    """The first prompts of each category, as many of each as of any other where it has them, in the order given.

    All prompts without a limit. Where `limit` is no multiple of the number of categories, those that come first in
    `prompts` have one more.
    """
    seen: Counter[str] = Counter()
    numbers = []  # of each prompt within its category
    for prompt in prompts:
        numbers.append(seen[prompt.category])
        seen[prompt.category] += 1
    kept = sorted(range(len(prompts)), key=numbers.__getitem__)[:limit]
    return tuple(prompts[at] for at in sorted(kept))


def _of_category(prompts: Sequence[Prompt], name: str, category: str) -> tuple[Prompt, ...]:
    kept = tuple(replace(prompt, suite=f"{name}/{category}") for prompt in prompts if prompt.category == category)
    if not (kept and category):
        known = ", ".join(dict.fromkeys(prompt.category for prompt in prompts if prompt.category)) or "none"
        raise UserError("unknown_category", f'{name} has no category "{category}"; its categories: {known}')
    return kept


def _own_file(text: str) -> SuiteBytes:
    path = Path(text)
    if os.path.exists(path) or path.suffix or len(path.parts) > 1:
        return SuiteBytes(read_file(path), "file", text, text)
    near = difflib.get_close_matches(text.lower().replace("_", "-"), suite_names(), n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    known = ", ".join(suite_names())
    raise UserError("unknown_suite", f'unknown suite "{text}"; known: {known}, or the path of a .jsonl file.{hint}')
