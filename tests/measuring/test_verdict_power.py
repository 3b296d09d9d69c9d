"""A method that accepts a wrong token in one step of a thousand is found out, and rounding alone is not called wrong.

The faults are real: wherever two_model drafts a token that the target rejects, the answer goes on as if it had been
accepted, and the referee judges it by the target's own logits. That is done once for every such place; which of them
go wrong in a run of 200 prompts is then drawn a thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from oracles import in_float64, noisy_copy
from runs import prompt_of
from test_verdict import baseline_answers
from tiny import tiny_model
from torch import Tensor

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Outcome
from benchctl.decoding.model.target import Target
from benchctl.measuring.verdict import AnswerControl, Referee, pass_sizes
from benchctl.methods.two_model import TwoModel
from benchctl.registry import build

NEW_TOKENS = 128  # as `benchctl run` has it
PROMPTS, RUNS, CHANCE = 200, 1000, 1e-3


class Watched(TwoModel):
    """two_model that notes, step by step, the rejected token that a faulty one would have accepted, if there was one;
    `faults` has its place in the answer and the token."""

    def start(self, context: Context) -> int:
        self.faults: list[tuple[int, int] | None] = []
        first: int = super().start(context)
        return first

    def observe(self, context: Context, outcome: Outcome) -> None:
        accepted = len(outcome.verdict.path)
        place = len(context.tokens) - context.prompt_tokens + accepted
        rejected = accepted < len(outcome.draft)
        self.faults.append((place, outcome.draft.tokens[accepted]) if rejected else None)


@dataclass(frozen=True)
class Kind:
    """Words of the vocabulary, tokens of a draft, and what logits are multiplied by: a random model of many words is
    as unsure as none that was trained is; by 2 its best logit is about 20, and its margins those of a chat."""

    dtype: torch.dtype
    words: int
    draft_tokens: int
    prompts: int
    scale: float = 1.0


KINDS = {
    "float64": Kind(torch.float64, 64, 4, 3),
    "bfloat16": Kind(torch.bfloat16, 64, 4, 3),
    "bfloat16 of 32,768 words": Kind(torch.bfloat16, 32_768, 4, 1, 2.0),
    "bfloat16 of 32,768 words in wide passes": Kind(torch.bfloat16, 32_768, 20, 1, 2.0),
}


@dataclass(frozen=True)
class Examined:
    """One prompt: the verdict on the honest answer, and on that of a fault in each step (None where none can be)."""

    honest: str | None
    faulty: list[str | None]


class Spliced(AnswerControl):
    """The control of an answer that goes on like the honest one up to `place`, says `token` there, and errs no more."""

    def __init__(self, honest: AnswerControl, place: int, token: int) -> None:
        self._honest, self._spliced_at, self._token = honest, place, token

    def logits(self, index: int) -> Tensor:
        return self._honest.logits(index)

    def noises(self, sizes: Sequence[int]) -> tuple[float, ...]:
        return self._honest.noises(sizes)

    def gaps(self) -> list[float]:
        logits = self.logits(self._spliced_at)
        return [*self._honest.gaps()[: self._spliced_at], float(logits.max() - logits[self._token])]


@pytest.fixture(scope="module", params=KINDS)
def examined(request: pytest.FixtureRequest) -> tuple[str, list[Examined]]:
    kind = KINDS[request.param]
    model = tiny_model("llama", seed=0, layers=2, vocab_size=kind.words, max_position_embeddings=256)
    with torch.no_grad():
        model.lm_head.weight.mul_(kind.scale)
    model = in_float64(model) if kind.dtype is torch.float64 else model.to(kind.dtype)
    target, draft = Target(model, None), Target(noisy_copy(model, 0.1), None)
    method = Watched(draft_tokens=kind.draft_tokens)
    method.use_draft_model(draft)
    method.prepare(target)
    return request.param, [examine(method, target, prompt_of(12, seed)) for seed in range(kind.prompts)]


def examine(method: Watched, target: Target, prompt: list[int]) -> Examined:
    baseline = decode(build("autoregressive"), target, DecodeRequest(prompt, NEW_TOKENS)).token_ids
    generation = decode(method, target, DecodeRequest(prompt, NEW_TOKENS))
    answer, sizes = generation.token_ids, pass_sizes([step.rows for step in generation.steps])
    honest = AnswerControl(target, prompt, answer)

    def verdict_on(fault: tuple[int, int] | None) -> str | None:
        if fault is None or fault[0] >= len(answer):
            return None
        place, token = fault
        said = [*answer[:place], token]
        if said == list(baseline[: place + 1]):
            return None  # it would have said what the baseline says
        judge = Referee(target, baseline_answers(baseline), lambda prompt_ids, answer: Spliced(honest, place, token))
        return judge.judge(prompt, said, sizes).verdict

    referee = Referee(target, baseline_answers(baseline), lambda prompt_ids, answer: honest)
    return Examined(referee.judge(prompt, answer, sizes).verdict, [verdict_on(fault) for fault in method.faults])


def test_a_wrong_acceptance_in_a_thousand_steps_is_caught_on_200_prompts(examined: tuple[str, list[Examined]]) -> None:
    """A run is caught when any of its answers is lossy; an answer's first fault decides, as all else follows from it.

    A fault in bfloat16 may pass for rounding where the target itself hardly tells the two tokens apart. About 17 faults
    strike a run of these answers, most of whose steps reject a token; 99% takes 4.6, and 5.5 where 84% are told, as in
    wide passes. There 1 in 118 was told as long as a tie ended the comparison of an answer.
    """
    _, prompts = examined
    rng = np.random.default_rng(6)
    caught = 0
    for _ in range(RUNS):
        drawn = (prompts[index] for index in rng.integers(len(prompts), size=PROMPTS))
        caught += any(_first_fault(found.faulty, rng) == "lossy" for found in drawn)
    assert caught / RUNS >= 0.99


def _first_fault(verdicts: Sequence[str | None], rng: np.random.Generator) -> str | None:
    """The verdict on an answer each of whose steps goes wrong by chance."""
    struck: list[bool] = (rng.random(len(verdicts)) < CHANCE).tolist()
    faults = (verdict for verdict, wrong in zip(verdicts, struck, strict=True) if wrong)
    return next((verdict for verdict in faults if verdict is not None), None)


def test_faults_in_float64_are_always_lossy_and_in_bfloat16_nearly_always(examined: tuple[str, list[Examined]]) -> None:
    """In wide passes 84% are told (98 of 117 here); were twice the noise excused it would be 73%, and the run of 200
    prompts would be caught all the same: 60%, as this test once asked for, held neither."""
    kind, prompts = examined
    verdicts = [verdict for found in prompts for verdict in found.faulty if verdict is not None]
    assert len(verdicts) > 90
    least = 1.0 if kind == "float64" else 0.75 if "wide" in kind else 0.9
    assert verdicts.count("lossy") / len(verdicts) >= least


def test_an_honest_answer_is_never_lossy(examined: tuple[str, list[Examined]]) -> None:
    """In bfloat16 it does leave the baseline's text, by rounding."""
    kind, prompts = examined
    verdicts = {found.honest for found in prompts}
    assert "lossy" not in verdicts
    assert kind != "float64" or verdicts == {"identical"}
