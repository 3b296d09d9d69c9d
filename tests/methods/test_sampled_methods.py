"""Whole sampled generations have the target's distribution: every draw of every method enumerated, loop and all."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from runs import prepared
from tiny import tiny_model, tiny_target

from benchctl.conformance.distributions import distribution, total_variation
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling

VOCABULARY = 5
PROMPT = (1, 3, 0, 1, 3)  # its tail occurred before, so prompt lookup finds something
SAMPLING = Sampling(temperature=1.5, top_k=2)
TOKENS = 5

LABELS = (
    "autoregressive",
    "two_model[draft_tokens=2]",
    "two_model[confidence=0.4,draft_tokens=3]",
    "prompt_lookup[draft_tokens=2]",
    "early_exit[mode=draft,threshold=0,exits=1,draft_tokens=2]",
    "early_exit[mode=draft,threshold=0.3,draft_tokens=3]",
    "early_exit[mode=draft,confidence=classifier,threshold=0.5,exits=1]",
    "early_exit[threshold=2]",
    "medusa[heads=2,tree=2x2]",
    "medusa[heads=2,tree=1x1]",
    "medusa[nodes=6]",
    "lookahead[ngram=2,window=3]",
    "lookahead[ngram=3,window=3,prompt_pool=true]",
    "lookahead[ngram=3,window=2,prompt_pool=true,bonus=false]",
    "m2r2[draft_tokens=2]",
    "m2r2[draft_tokens=3,confidence=0.4]",
    "m2r2[draft_tokens=2,width=2]",
    "m2r2[draft_tokens=2,width=3,source=exit,confidence=0.2]",
    "m2r2_dynamic[threshold=2]",
)


@cache
def model(seed: int) -> Target:
    return tiny_target("llama", seed=seed, layers=2, vocab_size=VOCABULARY)


def generate(label: str, target: Target | None = None, draft: Target | None = None) -> tuple[int, ...]:
    """An answer of model 1, with model 2 as draft model, or of others."""
    target = target or model(1)
    method = prepared(label, target, draft or model(2))
    generation = decode(method, target, DecodeRequest(PROMPT, TOKENS, SAMPLING))
    return generation.token_ids


@cache
def truth() -> dict[tuple[int, ...], float]:
    """Probability of every answer, by passes over the whole text."""
    with torch.inference_mode():
        return {answer: _chance_of(answer) for answer in itertools.product(range(VOCABULARY), repeat=TOKENS)}


@cache
def _next_probs(answer: tuple[int, ...]) -> list[float]:
    probs: list[float] = SAMPLING.probs(model(1).next_logits([*PROMPT, *answer])[None])[0].tolist()
    return probs


def _chance_of(answer: tuple[int, ...]) -> float:
    chance = 1.0
    for place, token in enumerate(answer):
        if chance > 0.0:
            chance *= _next_probs(answer[:place])[token]
    return chance


def test_there_are_many_answers() -> None:
    assert sum(chance > 0.001 for chance in truth().values()) > 20
    assert sum(truth().values()) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_exact_method_samples_from_the_target_s_distribution(label: str) -> None:
    found = distribution(lambda chance: generate(label))
    assert total_variation(found, truth()) < 1e-9


def padded(seed: int, padding_logit: float) -> Target:
    """The model of this seed with two more ids, whose logits are raised by ``padding_logit``."""
    model = tiny_model("llama", seed=seed, layers=2, dtype=torch.float64, vocab_size=VOCABULARY).requires_grad_(False)
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    model.model.embed_tokens.weight = torch.nn.Parameter(torch.cat((embedding, embedding[:2])))
    model.lm_head.weight = torch.nn.Parameter(torch.cat((head, head[:2])))
    raised = torch.tensor([0.0] * VOCABULARY + [padding_logit] * 2, dtype=torch.float64)
    model.lm_head.bias = torch.nn.Parameter(raised)
    return Target(model, None)


@pytest.mark.slow
@pytest.mark.parametrize("wider", ["draft", "target"])
def test_heads_padded_to_different_widths_leave_the_distribution_alone(wider: str) -> None:
    """A trained target never says its padding; what a draft model says of its own must not matter."""
    target = padded(1, -1e4) if wider == "target" else model(1)
    draft = padded(2, 1.0) if wider == "draft" else model(2)
    found = distribution(lambda chance: generate(LABELS[1], target, draft))
    assert total_variation(found, truth()) < 1e-9


@pytest.mark.parametrize(
    "label",
    [
        "early_exit[threshold=0,exits=1]",
        "early_exit[threshold=0.3]",
        "medusa[accept=typical]",
        "m2r2_dynamic[threshold=0]",
    ],
)
def test_lossy_method_does_not(label: str) -> None:
    """Or this file would find nothing."""
    found = distribution(lambda chance: generate(label))
    assert total_variation(found, truth()) > 0.05
