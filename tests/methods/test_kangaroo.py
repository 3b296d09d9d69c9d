"""Kangaroo: steps equal a replay without a cache, its cache equals a fresh one, and training runs what decoding runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Drafter, Naive, replay
from refusals import refused
from runs import CONTEXT_TOKENS, FIRST_FAST, Pair, answer, pair, prompt_of, rounds_of
from target_batches import answered, batch_of, learn
from torch import Tensor
from untrained import facts_of, untrained

from benchctl.decoding.drafting.side import SideLayers
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary, write_draft_vocabulary
from benchctl.decoding.modules.trainable import save_modules
from benchctl.methods.kangaroo import Kangaroo
from benchctl.methods.kangaroo.adapter import Adapter

IDS = torch.tensor([0, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23])


@dataclass(frozen=True)
class NaiveKangaroo:
    """The adapter over a whole text, in float64; keys are rotated by the formula, pair by pair."""

    naive: Naive
    weights: dict[str, Tensor]
    exit: int
    ids: Tensor | None = None

    def normed(self, text: Sequence[int]) -> Tensor:
        """[tokens, width] what the head reads of each token."""
        model, x = self.naive.model, self.naive.states(text)[self.exit]
        rows, inner = len(text), self.weights["out.weight"].shape[1]
        rotary = model.model.rotary_emb
        head_dim = 2 * rotary.inv_freq.numel()
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weights["norm.weight"]
        queries, keys, values = F.linear(normed, self.weights["qkv.weight"]).split(inner, -1)
        angles = torch.arange(rows, dtype=torch.float64)[:, None] * rotary.inv_freq.double()
        mixed = []
        for start in range(0, inner, head_dim):
            query, key = (self._rotated(each[:, start : start + head_dim], angles) for each in (queries, keys))
            scores = query @ key.T / head_dim**0.5
            scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
            mixed.append(scores.softmax(-1) @ values[:, start : start + head_dim])
        attended: Tensor = x + F.linear(torch.cat(mixed, -1), self.weights["out.weight"])
        head_input: Tensor = model.model.norm(attended) * self.weights["gain"]
        return head_input

    @staticmethod
    def _rotated(x: Tensor, angles: Tensor) -> Tensor:
        first, second, turned = x[:, 0::2], x[:, 1::2], torch.empty_like(x)
        turned[:, 0::2] = first * angles.cos() - second * angles.sin()
        turned[:, 1::2] = second * angles.cos() + first * angles.sin()
        return turned

    def logits(self, text: Sequence[int]) -> Tensor:
        """[k] for the next token."""
        logits: Tensor = self.naive.model.lm_head(self.normed(text)[-1])
        return logits if self.ids is None else logits[self.ids]

    def drafter(self, draft_tokens: int, confidence: float) -> Drafter:
        """The likeliest token, until one had a lower probability than ``confidence``; that one is verified too."""

        def draft(text: list[int], budget: int) -> list[int]:
            proposal: list[int] = []
            for _ in range(min(draft_tokens, budget)):
                probs = self.logits([*text, *proposal]).softmax(-1)
                place = int(probs.argmax())
                proposal.append(place if self.ids is None else int(self.ids[place]))
                if float(probs[place]) < confidence:
                    break
            return proposal

        return draft


@cache
@torch.inference_mode(False)
def adapter_of(family: str, seed: int) -> Adapter:
    """Away from its start, gains included, and sure of some tokens."""
    module: Adapter = untrained(Kangaroo(), pair(family, seed).target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        module.norm.weight.add_(0.3 * torch.randn(module.norm.weight.shape, generator=generator))
        module.gain.mul_(3.0).add_(0.3 * torch.randn(module.gain.shape, generator=generator))
    return module


def naive_of(method: Kangaroo, module: Adapter, models: Pair, ids: Tensor | None = None) -> NaiveKangaroo:
    weights = {name: weight.detach().double() for name, weight in module.state_dict().items()}
    return NaiveKangaroo(models.naive, weights, method.exit_layer(models.target.layers), ids)


def with_modules(method: Kangaroo, module: Adapter, models: Pair, folder: Path) -> Kangaroo:
    save_modules(folder, module, facts_of("kangaroo", method, models.target))
    method = replace(method, modules=str(folder))
    method.prepare(models.target)
    return method


def check_steps(method: Kangaroo, naive: NaiveKangaroo, models: Pair, family: str, seed: int) -> list[tuple[int, int]]:
    """Answers and steps are the replay's, which are returned."""
    every = []
    for prompt_tokens in (1, 13, CONTEXT_TOKENS - 7):
        prompt, text = prompt_of(prompt_tokens, seed), answer(family, seed, prompt_tokens)
        got = decode(method, models.target, DecodeRequest(prompt, len(text)))
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay(prompt, text, len(text), naive.drafter(method.draft_tokens, method.confidence))
        every += rounds_of(got)
    return every


@pytest.mark.parametrize("confidence", [0.0, 0.6])
@pytest.mark.parametrize("exit_layer", [0, 3])
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_without_a_cache(
    family: str, seed: int, exit_layer: int, confidence: float, tmp_path: Path
) -> None:
    models, module = pair(family, seed), adapter_of(family, seed)
    method = with_modules(Kangaroo(exit=exit_layer, confidence=confidence), module, models, tmp_path)
    rounds = check_steps(method, naive_of(method, module, models), models, family, seed)
    drafted = {drafted for drafted, _ in rounds}
    assert sum(accepted for _, accepted in rounds) > 0
    assert max(drafted) == 6 if confidence == 0 else len(drafted) > 1
