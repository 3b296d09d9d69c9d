"""State from prompt to prompt: by the mix-in alone, and never from another repeat of the same prompt."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pytest
from command import ok
from fixtures_run import invoke_run, measured, write_prompts
from runs import pair, prompt_of

from benchctl import registry
from benchctl.analysis.comparison import compare
from benchctl.analysis.warnings import warnings
from benchctl.decoding.draft import Draft
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import CarriesOver, Context, Method, Outcome, Speculative, one_token
from benchctl.measuring.teacher_forcing import own_logits
from benchctl.records.writer import RunFile, read


@dataclass
class Recalls(Speculative, CarriesOver):
    """Drafts what followed the same prompt's tokens before: a store of whole answers."""

    memory: Literal["prompt", "run"] = "prompt"
    store: Any = field(default=None, init=False, repr=False)

    def new_store(self) -> object:
        return {}

    def draft(self, context: Context, budget: int) -> Draft:
        known = self.store.get(tuple(context.tokens[: context.prompt_tokens]), [])
        return Draft.chain(known[context.new_tokens :][: min(budget, 4)] or [0][:budget])

    def observe(self, context: Context, outcome: Outcome) -> None:
        prompt, answer = tuple(context.tokens[: context.prompt_tokens]), context.tokens[context.prompt_tokens :]
        self.store[prompt] = max(self.store.get(prompt, []), [*answer, *outcome.tokens], key=len)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, here: Path) -> Path:
    """Two prompts of equal text between others, so that the second may draft what the first wrote."""
    monkeypatch.setattr(
        registry, "_plugins", lambda group: {"recalls": EntryPoint("recalls", f"{__name__}:Recalls", "")}
    )
    texts = ("Say something.", "Count to three.", "Say something.")
    (here / "three.jsonl").unlink()
    write_prompts(here / "three.jsonl", [{"id": f"p{n}", "prompt": text} for n, text in enumerate(texts)])
    return here


def _measured(memory: str, *more: str) -> RunFile:
    label = f"recalls[memory={memory}]"
    ok(invoke_run("--method", label, "--max-new-tokens", "12", "--repeats", "2", *more))
    return read("out.jsonl")


def _accepted(file: RunFile) -> dict[tuple[str, int], int]:
    rows = (row for row in file.rows if row.repeat >= 0 and row.label.startswith("recalls"))
    return {(row.prompt_id, row.repeat): sum(row.accepted) for row in rows}


@pytest.mark.parametrize("memory", ["prompt", "run"])
@pytest.mark.usefixtures("plugin")
def test_every_repeat_takes_the_same_steps_and_only_prompts_before_are_remembered(memory: str) -> None:
    """Without the rule, repeat 1 would draft the answer of repeat 0 and pass for a fast method."""
    file = _measured(memory)
    accepted = _accepted(file)
    assert all(accepted[prompt, 0] == accepted[prompt, 1] for prompt, _ in accepted)
    assert (accepted["p2", 0] > accepted["p0", 0]) == (memory == "run")
    (group,) = compare([file])
    ids = [warning.id for warning in warnings(group)]
    assert ("carries_over" in ids, "remembers" in ids) == (memory == "run", False)


@dataclass
class Notes(Method, CarriesOver):
    """Notes each token that it continues."""

    memory: Literal["prompt", "run"] = "run"
    store: Any = field(default=None, init=False, repr=False)

    def new_store(self) -> object:
        return []

    def step(self, context: Context) -> tuple[int]:
        self.store.append(context.tokens[-1])
        return one_token(context)


def test_a_repetition_for_the_distributions_leaves_the_store_of_the_run_alone() -> None:
    """It asked for an empty store, but the method went on with that of the run."""
    model, request = pair("llama").target, DecodeRequest(prompt_of(9), 6)
    method = Notes()
    method.prepare(model)
    answer = decode(method, model, replace(request, store=[])).token_ids
    of_the_run = method.store = [1]
    assert own_logits(method, model, request, answer) is not None
    assert of_the_run == [1]


def test_a_run_resumed_between_two_turns_takes_the_steps_of_one_that_was_not(here: Path) -> None:
    """The second turn went on with what the warm-up had stored."""
    words = ("--method", "token_recycling", "--max-new-tokens", "24", "--repeats", "1")
    assert invoke_run(*words).exit_code == 0
    file = here / "out.jsonl"
    lines, whole = file.read_bytes().splitlines(keepends=True), read(file)
    rows = [(row.prompt_id, row.label, row.turn, row.repeat) for row in whole.rows]
    file.write_bytes(b"".join(lines[: 1 + rows.index(("talk", "token_recycling", 1, 0))]))
    assert invoke_run(*words, "--resume").exit_code == 0
    (one, other) = (
        {(row.prompt_id, row.turn): (row.drafted, row.accepted) for row in rows if row.label != "autoregressive"}
        for rows in (measured(whole), measured(read(file)))
    )
    assert one == other and sum(one["talk", 1][1]) > 0


def test_a_run_with_memory_that_lacks_the_last_turn_of_a_chat_is_not_whole(here: Path, raised: list[str]) -> None:
    """How many turns a prompt has was taken from the file, so that it went on with an empty store."""
    words = ("--method", "token_recycling[memory=run]", "--max-new-tokens", "6", "--repeats", "1", "--no-watch")
    assert invoke_run(*words).exit_code == 0
    file = here / "out.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if json.loads(line).get("turn") != 1))
    assert (invoke_run(*words, "--resume").exit_code, raised[-1]) == (2, "memory_lost")


def test_modes_of_a_chat_do_not_see_each_other_s_answers(here: Path) -> None:
    """The second turn drafted what the same turn had written in another mode."""
    words = ("--method", "token_recycling", "--max-new-tokens", "24", "--repeats", "2", "--replay")
    assert invoke_run(*words).exit_code == 0
    free = [row for row in measured(read(here / "out.jsonl")) if row.mode == "free" and row.label != "autoregressive"]
    steps = {(row.prompt_id, row.turn, row.repeat): (row.drafted, row.accepted) for row in free}
    assert all(steps[prompt, turn, 0] == steps[prompt, turn, 1] for prompt, turn, _ in steps)
    alone = ("--method", "token_recycling", "--max-new-tokens", "24", "--repeats", "1", "--out", "alone.jsonl")
    assert invoke_run(*alone).exit_code == 0
    plain = [row for row in measured(read(here / "alone.jsonl")) if row.label != "autoregressive"]
    assert all(steps[row.prompt_id, row.turn, 0] == (row.drafted, row.accepted) for row in plain)


@pytest.mark.usefixtures("plugin")
def test_a_run_with_memory_cannot_be_resumed_and_one_without_can(raised: list[str]) -> None:
    _measured("run")
    words = ("--max-new-tokens", "12", "--repeats", "2", "--resume")
    refused = invoke_run("--method", "recalls[memory=run]", *words)
    assert refused.exit_code == 0  # nothing is missing
    lines = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    disturbed = json.dumps({**json.loads(lines[-1]), "invalid": "to be measured again"}).encode() + b"\n"
    for last in (b"", disturbed):
        Path("out.jsonl").write_bytes(b"".join([*lines[:-1], last]))
        refused = invoke_run("--method", "recalls[memory=run]", *words, "--watch")
        assert (refused.exit_code, raised.pop()) == (2, "memory_lost")
    _measured("prompt", "--out", "other.jsonl")
    assert invoke_run("--method", "recalls", *words, "--out", "other.jsonl").exit_code == 0
