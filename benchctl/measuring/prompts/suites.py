"""Prompt suites: the table of the known ones, and loading one by its name or from a user's file."""

import difflib
import json
import os
from dataclasses import asdict, dataclass
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
    read_file,
    sha256,
)

_DOWNLOADER = Downloader()  # one for all suites of a process, so that without a network only the first waits


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


def read_mt_bench(suite: str, line: Line) -> Prompt:
    """Both turns. Only some lines have references, and the second may be empty."""
    turns = line.texts("turns")
    if len(turns) != 2:
        raise line.error("wrong_turn_count", f'field "turns" has {len(turns)} entries; a line of {suite} has 2')
    reference = line.optional_texts("reference", at_most=2)
    return Prompt(line.identifier("question_id"), suite, turns, reference, category=line.text("category"))


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
    """A known suite by its name, or any file of `prompt` or `turns` records by its path.

    `source` ("auto", "published" or "embedded") and BENCHCTL_DATA choose where a known suite comes from. `limit` keeps
    the first N prompts in file order; the whole file is checked. `notify` gets a sentence about a download or a
    substitute. Raises UserError.
    """
    spec = next((spec for spec in SUITES if spec.name == name_or_path), None)
    if spec is not None:
        content = find_suite(spec, source=source, downloader=downloader or _DOWNLOADER, notify=notify)
        name, read = spec.name, spec.read
    else:
        content, read = _own_file(name_or_path), read_user_line
        # A file named like a known suite keeps its suffix, so that no table shows it as that suite.
        path = Path(name_or_path)
        name = path.name if path.stem in suite_names() else path.stem
    prompts = read_prompts(name, content.file, content.content, read)[:limit]
    return Suite(name, prompts, content.source, content.origin, sha256(content.content), spec is not None and spec.own)


def _own_file(text: str) -> SuiteBytes:
    path = Path(text)
    if os.path.exists(path) or path.suffix or len(path.parts) > 1:
        return SuiteBytes(read_file(path), "file", text, text)
    near = difflib.get_close_matches(text.lower().replace("_", "-"), suite_names(), n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    known = ", ".join(suite_names())
    raise UserError("unknown_suite", f'unknown suite "{text}"; known: {known}, or the path of a .jsonl file.{hint}')
