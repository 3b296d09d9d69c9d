"""A method that accepts a wrong token in one step of a thousand is found out, and rounding alone is not called wrong.

The faults are real: wherever two_model drafts a token that the target rejects, the answer goes on as if it had been
accepted, and the referee judges it by the target's own logits. That is done once for every such place; which of them
go wrong in a run of 200 prompts is then drawn a thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from oracles import in_float64, noisy_copy
from runs import prompt_of
from tiny import tiny_model

from benchctl.decoding.loop import Limits, decode
from benchctl.decoding.method import Context, Outcome
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.target import Target
from benchctl.measuring.control import answer_noise
from benchctl.measuring.verdict import Referee
from benchctl.methods.two_model import TwoModel
from benchctl.registry import build

LIMITS = Limits(128)  # as `benchctl run` has it
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
class Examined:
    """One prompt: the verdict on the honest answer, and on that of a fault in each step (None where none can be)."""

    honest: str | None
    faulty: list[str | None]


@pytest.fixture(scope="module", params=["float64", "bfloat16"])
def examined(request: pytest.FixtureRequest) -> tuple[str, list[Examined]]:
    dtype = getattr(torch, request.param)
    model = tiny_model("llama", seed=0, layers=2, dtype=dtype, vocab_size=64, max_position_embeddings=256)
    model = in_float64(model) if dtype is torch.float64 else model
    target, draft = Target(model, None), Target(noisy_copy(model, 0.1), None)
    method = Watched(draft_tokens=4)
    method.prepare(target, lambda _: draft, "draft")
    return request.param, [examine(method, target, prompt_of(12, seed)) for seed in range(3)]


def examine(method: Watched, target: Target, prompt: list[int]) -> Examined:
    baseline = decode(build("autoregressive"), target, prompt, LIMITS, Sampling(), lambda: 0.0).token_ids
    answer = decode(method, target, prompt, LIMITS, Sampling(), lambda: 0.0).token_ids
    referee = Referee(target, lambda _: baseline, partial(answer_noise, target))
    honest = referee.judge(prompt, answer).verdict
    faulty = [None if fault is None else _verdict(referee, prompt, answer, *fault) for fault in method.faults]
    return Examined(honest, faulty)


def _verdict(referee: Referee, prompt: list[int], answer: Sequence[int], place: int, token: int) -> str | None:
    return referee.judge(prompt, [*answer[:place], token, *answer[place + 1 :]]).verdict


def test_a_wrong_acceptance_in_a_thousand_steps_is_caught_on_200_prompts(examined: tuple[str, list[Examined]]) -> None:
    """A run is caught when any of its answers is lossy; an answer's first fault decides, as all else follows from it.

    A fault in bfloat16 may pass for rounding where the target itself hardly tells the two tokens apart. About 17 faults
    strike a run of these answers, most of whose steps reject a token; 99% takes 4.6.
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


def test_faults_in_float64_are_always_lossy_and_in_bfloat16_nearly_always(
    examined: tuple[str, list[Examined]],
) -> None:
    dtype, prompts = examined
    verdicts = [verdict for found in prompts for verdict in found.faulty if verdict is not None]
    assert len(verdicts) > 100
    assert verdicts.count("lossy") / len(verdicts) >= (1.0 if dtype == "float64" else 0.8)


def test_an_honest_answer_is_never_lossy(examined: tuple[str, list[Examined]]) -> None:
    """In bfloat16 it does leave the baseline's text, by rounding."""
    dtype, prompts = examined
    verdicts = {found.honest for found in prompts}
    assert "lossy" not in verdicts
    assert dtype == "bfloat16" or verdicts == {"identical"}
