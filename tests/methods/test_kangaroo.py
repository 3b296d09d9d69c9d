"""Kangaroo: steps equal a replay without a cache, its cache equals a fresh one, and training runs the same layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles import Drafter, Naive
from runs import FIRST_FAST, IDS, Pair, answer, check_chain, generate, pair, prompt_of
from target_batches import assert_learnt, batch_of, kl_inside, learnt, saved
from torch import Tensor
from untrained import untrained

from benchctl.decoding.drafting.side import SideLayers
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.methods.kangaroo import Kangaroo
from benchctl.methods.kangaroo.adapter import Adapter


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
        queries, keys, values = torch.split(F.linear(normed, self.weights["qkv.weight"]), inner, -1)
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


with_modules = partial(saved, "kangaroo")


@pytest.mark.parametrize("confidence", [0.0, 0.6])
@pytest.mark.parametrize("exit_layer", [0, 3])
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_without_a_cache(
    family: str, seed: int, exit_layer: int, confidence: float, tmp_path: Path
) -> None:
    models, module = pair(family, seed), adapter_of(family, seed)
    method = with_modules(Kangaroo(exit=exit_layer, confidence=confidence), module, models, tmp_path)
    draft = naive_of(method, module, models).drafter(method.draft_tokens, confidence)
    steps = check_chain(method, draft, family, seed)
    drafted = {step.drafted for step in steps}
    assert any(step.accepted for step in steps)
    assert max(drafted) == 6 if confidence == 0 else len(drafted) > 1


@torch.inference_mode()
def test_over_a_draft_vocabulary_confidences_are_shares_of_it(tmp_path: Path) -> None:
    models, module = pair("llama"), adapter_of("llama", 0)
    write_draft_vocabulary(tmp_path, IDS)
    method = with_modules(Kangaroo(draft_tokens=3), module, models, tmp_path)
    draft = naive_of(method, module, models, IDS).drafter(method.draft_tokens, method.confidence)
    assert any(step.accepted for step in check_chain(method, draft))


@torch.inference_mode()
def test_the_adapter_s_cache_equals_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After rejected drafts, and after full acceptance, where it lacks a row until the next draft."""
    models, module = pair("llama"), adapter_of("llama", 0)
    method = with_modules(Kangaroo(exit=3, draft_tokens=2), module, models, tmp_path)
    method.prepare(models.target)
    text = [*prompt_of(13), *answer("llama", 0, 13)]
    exit_states, lengths, original = models.naive.states(text)[3], list[int](), SideLayers.truncate

    def truncate(side: SideLayers, length: int) -> None:
        original(side, length)
        if side is method._side:
            fresh = SideLayers([method._layer], models.target.rotary, exit_states, len(text))
            fresh.read(exit_states[:length])
            ours, theirs = (each.cache.kv[0][:, :length] for each in (side, fresh))
            assert (ours - theirs).abs().max() < 1e-12 and side.cache.lengths == [length]
            lengths.append(length)

    monkeypatch.setattr(SideLayers, "truncate", truncate)
    got = generate(method, models, prompt_of(13))
    full = [step.accepted == step.drafted > 0 for step in got.steps]
    assert list(got.token_ids) == text[13:]
    assert True in full and False in full and len(lengths) == len(got.steps) > 5


@torch.inference_mode(False)
def test_training_runs_what_decoding_runs(tmp_path: Path) -> None:
    """Of texts of two lengths what the head reads, and the loss by the formula; the last token teaches nothing."""
    models, module, method = pair("llama"), adapter_of("llama", 0), Kangaroo()
    naive, texts, total = naive_of(method, module, models), [prompt_of(14), prompt_of(9)], 0.0
    weights = [[1.0] * 14, [0.0, 0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]]
    batch = batch_of(models.naive, texts, weights)
    with torch.no_grad():
        found = module.normed(batch, 1)
    for row, text in enumerate(texts):
        normed = naive.normed(text)
        torch.testing.assert_close(found[row, : len(text)].double(), normed, rtol=0.0, atol=2e-4)
        wanted = models.naive.logits(models.naive.states(text)[-1]).log_softmax(-1)
        apart = kl_inside(wanted, models.naive.model.lm_head(normed).log_softmax(-1))
        total += float((apart[:-1] * torch.tensor(weights[row][1:])).sum())
    assert float(method.loss(module, batch).detach()) == pytest.approx(total, rel=1e-4)


def test_a_fresh_adapter_is_the_bare_exit() -> None:
    models = pair("llama")
    module, batch = (
        Kangaroo().build(models.target.info, models.target.lm_head.weight),
        batch_of(models.naive, [prompt_of(9)]),
    )
    with torch.no_grad():
        torch.testing.assert_close(module.normed(batch, 2), batch.norm(batch.states[2]))


@pytest.mark.slow
@torch.inference_mode(False)
def test_what_was_learnt_is_accepted(tmp_path: Path) -> None:
    got = learnt("kangaroo", Kangaroo(draft_tokens=3, confidence=0), pair("llama"), tmp_path)
    assert got.before["exit_1_top1"] == got.before["exit_1_bare_top1"] == got.after["exit_1_bare_top1"]
    assert_learnt(got, "exit_1_top1")


@pytest.mark.parametrize(("layers", "exit_layer"), [(32, 4), (30, 3), (12, 1), (4, 1), (2, 1)])
def test_the_exit_follows_from_the_depth(layers: int, exit_layer: int) -> None:
    assert Kangaroo().exit_layer(layers) == exit_layer and Kangaroo(exit=2).exit_layer(layers) == 2


def test_an_exit_that_leaves_no_layer_to_verify_is_refused() -> None:
    info = pair("llama").target.info
    assert "exit 4" in str(Kangaroo(exit=4).unsupported(info))
    assert Kangaroo(exit=3).unsupported(info) is None
    assert Kangaroo().unsupported(replace(info, layers=1)) is not None
