"""Runs of engines, from the prompts to the table, on servers that answer with the target's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import Answers, FakeEngine, Step
from fixtures_run import make_settings, measure_file, measured

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TARGET_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP, TPOT
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.measuring.settings import AnswerSettings, RepeatSettings, RunSettings
from benchctl.records.writer import RunFile
from benchctl.registry import build

NEW_TOKENS = 24
LOOKUP = "prompt_lookup[draft_tokens=3]"


@pytest.fixture(scope="module")
def target(run_folder: Path) -> Target:
    return Target.load(run_folder / "target", dtype="float32", device="cpu")


def answers_of(target: Target, label: str) -> Answers:
    """The answers of our own loop, with its steps."""
    method = build(label)
    method.prepare(target)

    def answer(prompt: Sequence[int], most: int, stops: Sequence[int]) -> list[Step]:
        generation = decode(method, target, DecodeRequest(prompt, most))
        steps = [Step(step.tokens, step.drafted, step.accepted) for step in generation.steps]
        return [Step(generation.token_ids[:1]), *steps]

    return answer


def settings_of(folder: Path, out: Path, *labels: str) -> RunSettings:
    settings = make_settings(folder, out)
    return replace(
        settings,
        methods=labels,
        answers=AnswerSettings(max_new_tokens=NEW_TOKENS),
        repeat=RepeatSettings(repeats=2, warm_up=1),
    )


def label_of(plain: FakeEngine, server: FakeEngine, *options: str) -> str:
    return f"openai[{','.join([f'base_url={server.url}', f'plain_url={plain.url}', 'dtype=float32', *options])}]"


def measure(folder: Path, out: Path, plain: FakeEngine, server: FakeEngine) -> RunFile:
    return measure_file(settings_of(folder, out, label_of(plain, server)))


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
def test_an_engine_with_the_targets_tokens_has_the_rows_of_our_own_loop(
    dialect: str, run_folder: Path, tmp_path: Path, target: Target
) -> None:
    ours = measure_file(settings_of(run_folder, tmp_path / "ours.jsonl", LOOKUP))
    with (
        FakeEngine(dialect, answers_of(target, "autoregressive")) as plain,
        FakeEngine(dialect, answers_of(target, LOOKUP)) as server,
    ):
        file = measure(run_folder, tmp_path / "engine.jsonl", plain, server)
    names = {"autoregressive": file.run.baseline, file_label(ours): file_label(file)}
    theirs = {(row.label, row.prompt_id, row.turn, row.repeat): row for row in measured(file)}
    assert len(theirs) == len(measured(ours)) == 16
    drafted = accepted = 0
    for own in measured(ours):
        row = theirs[names[own.label], own.prompt_id, own.turn, own.repeat]
        assert (row.token_ids, row.text, row.stop_reason) == (own.token_ids, own.text, own.stop_reason)
        assert row.verdict == own.verdict and row.error is None
        assert row.fidelity["scored_tokens"] == row.fidelity["target_agreed_tokens"] == len(row.token_ids)
        drafted, accepted = drafted + sum(own.drafted), accepted + sum(own.accepted)
        if dialect == "vllm" or own.label == "autoregressive":
            assert (row.committed, row.drafted, row.accepted) == (own.committed, own.drafted, own.accepted)
            assert row.totals is None and len(row.step_s) == len(own.step_s)
        elif any(own.drafted):
            assert row.totals is not None and not row.step_s
            steps = len(own.committed) if dialect == "sglang" else None
            assert row.totals.new_tokens == len(own.token_ids) == sum(row.arrived_tokens)
            assert (row.totals.steps, row.totals.drafted, row.totals.accepted) == (
                *(steps, sum(own.drafted), sum(own.accepted)),
            )
    assert drafted > accepted > 0
    (group,) = compare([file])
    (our_group,) = compare([ours])
    engine, method = figures(group), figures(our_group)
    assert engine.lossless and method.lossless
    assert engine.estimate(ACCEPTANCE_RATE).value == method.estimate(ACCEPTANCE_RATE).value == accepted / drafted
    if dialect == "llama_cpp":
        assert engine.estimate(BLOCK_EFFICIENCY).value is None
    else:
        assert engine.estimate(BLOCK_EFFICIENCY).value == method.estimate(BLOCK_EFFICIENCY).value
    assert engine.estimate(TARGET_AGREEMENT).value == 1.0
    assert engine.estimate(SPEEDUP).value and engine.estimate(TPOT).value


def file_label(file: RunFile) -> str:
    return file.run.methods[1].label


def figures(group: Group):  # type: ignore[no-untyped-def]
    return group.pooled.methods[1]
