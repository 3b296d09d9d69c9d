"""The table of the known suites: where each comes from, under which licence, and how its fields are read."""

from dataclasses import dataclass

from benchctl.measuring.prompts.files import Line, Prompt, Reader


@dataclass(frozen=True)
class SuiteSpec:
    """A known suite. `sha256` pins the bytes that `address` must give; `file` is its place below a --data-dir.

    A suite without an address is benchctl's own: the embedded file is the suite, and not a sample of a published one.
    """

    name: str
    prompts: int
    turns: int
    licence: str
    embedded_prompts: int
    read: Reader
    address: str = ""
    sha256: str = ""
    file: str = ""
    terms: str = ""

    @property
    def own(self) -> bool:
        return not self.address


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
    return Prompt(
        line.identifier("id"), suite, (text,), (instance.text("output"),), category=line.optional_text("motivation_app")
    )


def read_wizardlm(suite: str, line: Line) -> Prompt:
    return Prompt(line.identifier("idx"), suite, (line.text("Instruction"),), category=line.text("Skill"))


def read_mt_bench(suite: str, line: Line) -> Prompt:
    """Both turns; only some lines have references, and the second of these may be empty."""
    turns = line.texts("turns")
    if len(turns) != 2:
        raise line.error(f'field "turns" has {len(turns)} entries; a line of {suite} has 2')
    reference = line.optional_texts("reference", at_most=2)
    return Prompt(line.identifier("question_id"), suite, turns, reference, category=line.text("category"))


def read_tasks(suite: str, line: Line) -> Prompt:
    """The references are made by rule, and answers can be checked by them."""
    exact_answers = (line.text("reference"),)
    turns = (line.text("prompt"),)
    return Prompt(line.identifier("id"), suite, turns, category=line.text("skill"), exact_answers=exact_answers)


SUITES = (
    SuiteSpec(
        name="koala",
        prompts=180,
        turns=1,
        licence="Apache-2.0",
        address="https://raw.githubusercontent.com/arnav-gudibande/koala-test-set/main/koala_test_set.jsonl",
        sha256="c8cda5c53810dc30aad34fabbb828fe3eba0957119e00916650c971905d19886",
        file="koala/koala_test_set.jsonl",
        embedded_prompts=30,
        read=read_koala,
    ),
    SuiteSpec(
        name="self-instruct",
        prompts=252,
        turns=1,
        licence="Apache-2.0",
        address="https://raw.githubusercontent.com/yizhongw/self-instruct/main"
        "/human_eval/user_oriented_instructions.jsonl",
        sha256="81d60a117db495cecedecd9193504fd07c5b5a42f6699ef6b0f9da10fc22f42e",
        file="self_instruct/user_oriented_instructions.jsonl",
        embedded_prompts=30,
        read=read_self_instruct,
    ),
    SuiteSpec(
        name="wizardlm",
        prompts=218,
        turns=1,
        licence="CC BY-NC 4.0",
        address="https://raw.githubusercontent.com/nlpxucan/WizardLM/main/WizardLM/data/WizardLM_testset.jsonl",
        sha256="e216ec20538a7040b908f654f1f767305460f0a71f01b3db9f3989c8a78f8245",
        file="wizardlm/WizardLM_testset.jsonl",
        embedded_prompts=30,
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
        turns=1,
        licence="Apache-2.0",
        embedded_prompts=280,
        read=read_tasks,
    ),
)
