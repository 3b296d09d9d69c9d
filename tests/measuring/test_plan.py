"""Early exit without verification equals its plan: one parallel pass in which residuals freeze where tokens left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from oracles import ExitAnswer, ExitRule, exit_answer
from plain_depths import picked_from
from runs import LAYERS, MODELS, Pair, pair, prompt_of, run
from torch import Tensor

from benchctl.decoding.adaptive import View
from benchctl.decoding.kv.cache import Cache, Layout
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import Generation
from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.methods.early_exit import EarlyExit

NEW_TOKENS = 30
EVERY = tuple(range(1, LAYERS))
UPPER = tuple(range(LAYERS // 2, LAYERS))  # the default: no exit below half the depth
RULES = (
    ("min_exit=1", ExitRule(EVERY, threshold=0.3)),
    ("exits=1", ExitRule((1,), threshold=0.0)),
    ("exits=2+3", ExitRule((2, 3), threshold=0.2)),
    ("confidence=softmax_max,min_exit=1", ExitRule(EVERY, "softmax_max", 0.5)),
    ("confidence=state_cosine,min_exit=1", ExitRule(EVERY, "state_cosine", 0.8)),
    ("min_exit=2,confidence=state_cosine", ExitRule((2, 3), "state_cosine", 0.7)),
    ("", ExitRule(UPPER, threshold=0.3)),
    ("min_exit=1", ExitRule(EVERY, threshold=2.0)),
)
POLICIES = ("propagate", "deferred_exact")


@dataclass(frozen=True)
class Logged:
    """A generation and the logits [tokens, vocabulary] each of its tokens was chosen by."""

    generation: Generation
    target_logits: Tensor


def _label(options: str, rule: ExitRule, policy: str) -> str:
    parts = [options, f"threshold={rule.threshold}", f"kv_policy={policy}"]
    return f"early_exit[{','.join(part for part in parts if part)}]"


def _run_logged(monkeypatch: pytest.MonkeyPatch, label: str, models: Pair, prompt: list[int]) -> Logged:
    with monkeypatch.context() as patch:
        picked = picked_from(patch)
        generation = run(label, models.target, prompt, NEW_TOKENS)
    return Logged(generation, torch.cat([logits for _, logits in picked]))


def _planned_logits(models: Pair, prompt: list[int], expected: ExitAnswer, policy: str) -> Tensor:
    """[tokens, vocabulary] of one pass over prompt and answer, each token read off where it left."""
    text = [*prompt, *expected.tokens[:-1]]
    depths = [LAYERS] * (len(prompt) - 1) + expected.exits
    states = models.naive.states(text, depths if policy == "propagate" else None)
    rows = range(len(prompt) - 1, len(text))
    return models.naive.logits(torch.stack([states[depths[row], row] for row in rows]))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("options", "rule"), RULES)
def test_early_exit_equals_its_plan(
    monkeypatch: pytest.MonkeyPatch, options: str, rule: ExitRule, policy: str, family: str, seed: int
) -> None:
    """Tokens, layers run and logits: of full recomputation, of counting by hand and of one parallel pass."""
    models = pair(family, seed)
    for prompt_tokens in (1, 13):
        prompt = prompt_of(prompt_tokens, seed)
        logged = _run_logged(monkeypatch, _label(options, rule, policy), models, prompt)
        expected = exit_answer(models.naive, prompt, NEW_TOKENS, rule, propagate=policy == "propagate")
        assert list(logged.generation.token_ids) == expected.tokens
        assert list(logged.generation.layers) == expected.ran
        planned = _planned_logits(models, prompt, expected, policy)
        assert (logged.target_logits - planned).abs().max() < 1e-12


def test_mixture_of_experts_equals_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' router takes its softmax in float32, hence the wider tolerance."""
    models, prompt, rule = pair("mixtral", 3), prompt_of(13), ExitRule(EVERY, threshold=0.3)
    for policy in POLICIES:
        logged = _run_logged(monkeypatch, _label("min_exit=1", rule, policy), models, prompt)
        expected = exit_answer(models.naive, prompt, NEW_TOKENS, rule, propagate=policy == "propagate")
        planned = _planned_logits(models, prompt, expected, policy)
        assert len(set(expected.exits)) > 2
        assert (logged.target_logits - planned).abs().max() < 1e-5


def test_plan_of_the_other_policy_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison can fail: what skipped layers hold of a token matters to the tokens after it."""
    models, prompt, rule = pair("llama"), prompt_of(13), ExitRule(EVERY, threshold=0.3)
    for policy, other in zip(POLICIES, reversed(POLICIES), strict=True):
        logged = _run_logged(monkeypatch, _label("min_exit=1", rule, policy), models, prompt)
        expected = exit_answer(models.naive, prompt, NEW_TOKENS, rule, propagate=policy == "propagate")
        assert len(set(expected.exits)) > 2
        wrong = _planned_logits(models, prompt, expected, other)
        assert (logged.target_logits - wrong).abs().max() > 1e-3


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_reported_are_those_the_target_ran(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Counted where layers run; keys and values alone, of a row that left early, are no layer."""
    ran: list[int] = []
    run_layers = Target.run

    def counting(target: Target, rows: Tensor, cache: Cache, first: int, last: int, layout: Layout) -> Tensor:
        ran.append((last - first) * rows.shape[0])
        return run_layers(target, rows, cache, first, last, layout)

    monkeypatch.setattr(Target, "run", counting)
    rule = ExitRule(EVERY, threshold=0.3)
    generation = run(_label("min_exit=1", rule, policy), pair("llama").target, prompt_of(13), NEW_TOKENS)
    assert len(set(generation.layers)) > 2
    assert max(generation.layers) > LAYERS or policy == "propagate"
    assert sum(ran) == sum(generation.layers) + LAYERS * 12


@pytest.mark.parametrize("confidence", ["softmax_gap", "softmax_max"])
def test_confidence_equal_to_the_threshold_leaves(confidence: Literal["softmax_gap", "softmax_max"]) -> None:
    """Two tokens alike, gap 0 and maximum 0.5: so a threshold of 0 leaves at the first exit whatever the logits."""
    models = pair("llama")
    state = torch.zeros(1, 1, dtype=torch.float64)
    view = View(1, (state,), lambda _state: torch.zeros(1, 2, dtype=torch.float64))
    context = Context(models.target, Stream(models.target, 1), [3], 1, 1, Sampling(), Sampling().generator())
    reached = 0.0 if confidence == "softmax_gap" else 0.5
    assert EarlyExit(confidence=confidence, threshold=reached).decide(context, view)
    assert not EarlyExit(confidence=confidence, threshold=reached + 1e-9).decide(context, view)
