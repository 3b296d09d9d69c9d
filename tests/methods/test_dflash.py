"""DFlash: steps equal a replay without a cache, its cache equals a fresh one, and training runs what decoding runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from naive_dflash import NaiveDflash
from runs import CONTEXT_TOKENS, FIRST_FAST, IDS, Pair, answer, check_chain, generate, pair, prompt_of
from target_batches import assert_learnt, batch_of, kl_inside, learnt, saved
from torch import Tensor
from untrained import untrained

from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary, write_draft_vocabulary
from benchctl.methods.dflash import Dflash
from benchctl.methods.dflash.drafter import Drafter
from benchctl.methods.dflash.layers import DflashModule, default_taps, own_taps
from benchctl.methods.dflash.training import Blocks

KINDS: dict[str, dict[str, Any]] = {
    "whole blocks": {"draft_tokens": 3, "confidence": 0.0},
    "one layer": {"layers": 1, "draft_tokens": 1},
    "confident": {"confidence": 0.01, "layers": 3},
    "markov": {"confidence": 0.002, "markov": 5},
}


@cache
@torch.inference_mode(False)
def module_of(layers: int, markov: int, family: str, seed: int) -> DflashModule:
    module: DflashModule = untrained(Dflash(layers=layers, markov=markov), pair(family, seed).target)
    return module


def naive_of(method: Dflash, module: DflashModule, models: Pair, ids: Tensor | None = None) -> NaiveDflash:
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    taps, mask = own_taps(models.target.layers, method.layers), weights.pop("mask")
    head_dim = models.target.info.head_dim
    return NaiveDflash(models.naive, weights, taps, mask, head_dim, ids=ids, context_tokens=CONTEXT_TOKENS)


with_modules = partial(saved, "dflash")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_without_a_cache(family: str, seed: int, kind: str, tmp_path: Path) -> None:
    models, method = pair(family, seed), Dflash(**KINDS[kind])
    module = module_of(method.layers, method.markov, family, seed)
    method = with_modules(method, module, models, tmp_path)
    naive = naive_of(method, module, models)
    logits = naive.logits(prompt_of(13), 4)
    assert not logits[0].allclose(logits[1], atol=1e-3)
    steps = check_chain(method, naive.drafter(method.draft_tokens, method.confidence), family, seed)
    assert any(step.accepted for step in steps) or family != "llama"


@pytest.mark.parametrize("markov", [0, 4])
@torch.inference_mode()
def test_over_a_draft_vocabulary_too(markov: int, tmp_path: Path) -> None:
    models, method = pair("llama"), Dflash(markov=markov, confidence=0.0)
    method.vocabulary = DraftVocabulary(IDS)
    module: DflashModule = untrained(method, models.target)
    assert module.markov is None or module.markov.after.weight.shape == (len(IDS), 4)
    method = with_modules(method, module, models, tmp_path)
    write_draft_vocabulary(tmp_path, IDS)
    draft = naive_of(method, module, models, IDS).drafter(method.draft_tokens, method.confidence)
    assert any(step.accepted for step in check_chain(method, draft))
    if not markov:
        whole = replace(method, draft_vocabulary="whole")
        draft = naive_of(method, module, models).drafter(method.draft_tokens, method.confidence)
        assert any(step.accepted for step in check_chain(whole, draft))


@torch.inference_mode()
def test_its_cache_equals_a_fresh_one_after_every_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, method = pair("llama"), Dflash(confidence=0.0)
    method = with_modules(method, module_of(2, 0, "llama", 0), models, tmp_path)
    method.prepare(models.target)
    fresh = replace(method)
    fresh.prepare(models.target)
    original, lengths = Drafter.__call__, list[int]()
    states = models.naive.states([*prompt_of(13), *answer("llama", 0, 13)])

    def call(drafter: Drafter, token: int) -> Tensor:
        length = drafter.length
        lengths.append(length)
        other = fresh._drafter
        other.start(length)
        other.read([states[tap][:length] for tap in fresh._taps])
        assert drafter._cache.lengths == [length] * 2
        for layer in range(2):
            ours, theirs = (each._cache.kv[layer][:, :length] for each in (drafter, other))
            assert (ours - theirs).abs().max() < 1e-12
        logits: Tensor = original(drafter, token)
        return logits

    monkeypatch.setattr(Drafter, "__call__", call)
    got = generate(method, models, prompt_of(13))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert lengths[0] == 13 and len(lengths) == len(set(lengths)) > 5


@pytest.mark.parametrize("markov", [0, 5])
@torch.inference_mode(False)
def test_training_and_its_loss_are_the_blocks_of_decoding(markov: int) -> None:
    """Two texts of one batch, one padded: states, weights and loss of each block by full recomputation."""
    models, method = pair("llama"), Dflash(markov=markov, draft_tokens=3, gamma=2.0)
    module = module_of(2, markov, "llama", 0)
    naive, texts = naive_of(method, module, models), [prompt_of(16), prompt_of(12)]
    weights = [[0.0] * 5 + [1.0, 0.5] + [1.0] * 9, [1.0] * 12]
    batch = batch_of(models.naive, texts, weights)
    with torch.no_grad():
        blocks = Blocks(module, batch, own_taps(4, 2), 4, chance=False)
        logits = blocks.draft_logits(blocks.states(), blocks.before)
    total, seen = 0.0, 0
    for row, text in enumerate(texts):
        said = models.naive.model.lm_head(models.naive.model.model.norm(models.naive.states(text)[-1])).log_softmax(-1)
        for place, anchor in enumerate(blocks._anchors[row].tolist()):
            if anchor + 1 >= len(text):
                continue
            rows = naive.logits(text[: anchor + 1], 4)
            for index in range(3):
                at, weight = anchor + 1 + index, 0.0
                if at < len(text) and anchor + 4 <= 16:
                    weight = weights[row][at]
                assert float(blocks.weights[row, place, index]) == weight
                if not weight:
                    continue
                expected = rows[index]
                if markov:
                    before = naive.weights["markov.before.weight"][text[at - 1]]
                    expected = expected + naive.weights["markov.after.weight"] @ before
                torch.testing.assert_close(logits[row, place, index].double(), expected, rtol=0.0, atol=2e-4)
                loss = kl_inside(said[at - 1], expected.log_softmax(-1))
                total, seen = total + exp(-index / 2.0) * weight * float(loss), seen + 1
    assert seen > 12
    assert float(method.loss(module.eval(), batch).detach()) == pytest.approx(total, rel=1e-4)
    shares = method.yardsticks(module, batch)
    assert list(shares) == ["token_1_top1", "token_2_top1", "token_3_top1"]
    assert sum(share.of for share in shares.values()) == float(blocks.weights.sum())


@torch.inference_mode(False)
def test_anchors_are_drawn_in_training_and_fixed_for_yardsticks() -> None:
    models = pair("llama")
    module, batch = module_of(2, 0, "llama", 0), batch_of(models.naive, [prompt_of(40)])
    drawn = {tuple(Blocks(module, batch, (2,), 4, chance=True)._anchors[0].tolist()) for _ in range(5)}
    fixed = {tuple(Blocks(module, batch, (2,), 4, chance=False)._anchors[0].tolist()) for _ in range(5)}
    assert len(drawn) == 5 and len(fixed) == 1 and len(set(next(iter(fixed)))) == 10


@pytest.mark.slow
@pytest.mark.parametrize("markov", [0, 8])
@torch.inference_mode(False)
def test_what_was_learnt_is_accepted(markov: int, tmp_path: Path) -> None:
    method = Dflash(markov=markov, draft_tokens=3, confidence=0.0)
    assert_learnt(learnt("dflash", method, pair("llama"), tmp_path), "token_1_top1")


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [
        (36, 5, (2, 10, 18, 26, 34)),
        (28, 5, (2, 8, 14, 20, 26)),
        (16, 3, (2, 8, 14)),
        (24, 1, (13,)),
        (30, 3, (2, 15, 28)),
    ],
)
def test_taps_are_those_of_published_drafters(layers: int, count: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers, count) == taps


@pytest.mark.parametrize(("layers", "taps"), [(16, (2, 8, 14)), (4, (2,)), (3, (1, 2)), (2, (1, 2)), (1, (1,))])
def test_taps_of_ours_exist_in_shallow_targets(layers: int, taps: tuple[int, ...]) -> None:
    assert own_taps(layers, 2) == taps
