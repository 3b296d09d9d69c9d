"""Whole sampled generations have the target's distribution: every draw of every method enumerated, loop and all."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from chances import distribution, total_variation
from tiny import tiny_target

from benchctl.decoding.loop import Limits, decode
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.target import Target
from benchctl.registry import build

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
    "early_exit[threshold=2]",
)


@cache
def model(seed: int) -> Target:
    return tiny_target("llama", seed=seed, layers=2, vocab_size=VOCABULARY)


def generate(label: str) -> tuple[int, ...]:
    method = build(label)
    method.prepare(model(1), lambda name: model(2), "the other")
    generation = decode(method, model(1), PROMPT, Limits(TOKENS), SAMPLING, lambda: 0.0)
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


@pytest.mark.parametrize("label", LABELS)
def test_exact_method_samples_from_the_target_s_distribution(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = distribution(lambda chance: generate(label), monkeypatch)
    assert total_variation(found, truth()) < 1e-9


@pytest.mark.parametrize("label", ["early_exit[threshold=0,exits=1]", "early_exit[threshold=0.3]"])
def test_lossy_method_does_not(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or this file would find nothing."""
    found = distribution(lambda chance: generate(label), monkeypatch)
    assert total_variation(found, truth()) > 0.05
