"""Exits with modules and drafts on a target with an encoder, against a plain decoder that knows no cache."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_t5 import ALPHA, LAYERS, START, PlainT5, Weights, spoken, tiny_t5
from untrained import facts_of, untrained

from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import Trainable, load_modules, save_modules
from benchctl.registry import build

SOURCES = ([7, 3, 19, 3, 11, 8, 2, 19, 1], [4])
NEW_TOKENS = 30  # beyond the 20 tokens where distances end to matter
THRESHOLDS = {  # by kind and tied: tokens leave at different layers within an answer
    ("relu", True): (0.2,),
    ("relu", False): (0.5, 0.8),
    ("gated-gelu", True): (0.26,),
    ("gated-gelu", False): (0.7, 0.9),
}
SPEAKS = "early_exit[head=trained,confidence=softmax_max,exits=1+3"


def modules_of(label: str, target: Target, folder: Path, change: float = 0.3) -> Weights:
    """Weights, in float64, of modules for a label, saved in ``folder``; by default they change the residual by much."""
    method = build(label)
    assert isinstance(method, Trainable)
    module = untrained(method, target)
    with torch.no_grad():
        for number, (name, weight) in enumerate(module.named_parameters()):
            weight.add_(change * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
            if name.endswith("up.weight"):
                weight.mul_(weight.shape[1] / ALPHA)
    save_modules(folder, module, facts_of(label, method, target))
    kept = load_modules(method, label.split("[")[0], target, str(folder)).state_dict()
    return {name: weight.double() for name, weight in kept.items()}


def generate(label: str, target: Target, source: list[int], folder: Path) -> Generation:
    method = build(label)
    method.modules = str(folder)  # type: ignore[attr-defined]
    method.prepare(target)
    return decode(method, target, DecodeRequest(source, NEW_TOKENS))


def plain_answer(
    model: Any, weights: Weights, source: list[int], exits: tuple[int, ...], threshold: float, deferred: bool
) -> tuple[list[int], list[int]]:
    """Tokens and where each left. What is ``deferred`` is seen by later tokens as the full model computes it."""
    plain, text, depths = PlainT5(model), [START], [LAYERS]
    while len(text) <= NEW_TOKENS:
        states = plain.states(source, text, None if deferred else depths)[:, -1]
        said = {exit: spoken(model, weights, exit, states[exit]) for exit in exits if len(text) > 1}
        sure = [exit for exit, logits in said.items() if float(logits.softmax(-1).max()) >= threshold]
        depths[-1] = sure[0] if sure else LAYERS
        text.append(int((said[sure[0]] if sure else plain.logits(states[LAYERS])).argmax()))
        depths.append(LAYERS)
    return text[1:], depths[:-1]


def with_deferred(depths: list[int]) -> list[int]:
    """Layers run for each token: its own, and those of earlier tokens that it is the first to need."""
    held, run = list[int](), list[int]()
    for depth in depths:
        run.append(depth + sum(max(0, depth - there) for there in held))
        held = [*(max(depth, there) for there in held), depth]
    return run


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
@pytest.mark.parametrize(
    ("label", "exits", "deferred"),
    [
        ("deed[threshold={}]", (1, 2, 3), True),
        (SPEAKS + ",threshold={}]", (1, 3), False),
        (SPEAKS + ",threshold={},kv_policy=deferred_exact]", (1, 3), True),
    ],
)
def test_tokens_that_leave_by_trained_exits_are_those_of_the_plain_decoder(
    label: str, exits: tuple[int, ...], deferred: bool, kind: str, tied: bool, tmp_path: Path
) -> None:
    """Untied models have a head of their own, and do not scale what it reads."""
    model = tiny_t5(kind, tie_word_embeddings=tied)
    target, mixed = Target(model, None), 0
    weights = modules_of(label.format(0.5), target, tmp_path)
    for source, threshold in product(SOURCES, THRESHOLDS[kind, tied]):
        generation = generate(label.format(threshold), target, source, tmp_path)
        tokens, depths = plain_answer(model, weights, source, exits, threshold, deferred)
        assert list(generation.token_ids) == tokens
        assert list(generation.layers) == (with_deferred(depths) if deferred else depths)
        mixed = max(mixed, len(set(depths[1:])))
    assert mixed > 1


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
@pytest.mark.parametrize(
    "label", ["deed[mode=draft,exits=2+3,threshold=0.1]", SPEAKS.replace("1+3", "3") + ",mode=draft,threshold=0.1]"]
)
def test_what_trained_exits_draft_is_verified_to_the_answer_of_the_plain_decoder(
    label: str, kind: str, tmp_path: Path
) -> None:
    model = tiny_t5(kind)
    target, accepted, drafted = Target(model, None), 0, 0
    modules_of(label, target, tmp_path, change=0.02)
    for source in SOURCES:
        generation = generate(label, target, source, tmp_path)
        assert list(generation.token_ids) == PlainT5(model).answer(source, NEW_TOKENS)[0]
        drafted += sum(step.drafted for step in generation.steps)
        accepted += sum(step.accepted for step in generation.steps)
    assert 0 < accepted < drafted
