"""Pseudo-rows: steps equal a replay without a cache, and training runs the rows of decoding."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from naive_eagle import NaiveEagle
from oracles import Rounds, _agreement
from runs import FIRST_FAST, IDS, Pair, check_replayed, generate, pair, prompt_of
from target_batches import assert_learnt, batch_of, kl_inside, learnt, saved
from torch import Tensor
from untrained import untrained

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.methods.pseudo import Pseudo
from benchctl.methods.pseudo.rows import PseudoRows, Riders
from benchctl.methods.pseudo.training import RidingRows

KINDS = ("prompt", "transfer", "streaming")
TREES: dict[str, Any] = {
    "chain": {"tree": "1x1x1"},
    "static": {"tree": "3x2"},
    "dynamic": {"width": 3, "nodes": 7, "confidence": 0.0},
    "shallow": {"width": 3, "nodes": 7, "confidence": 0.0, "depth": 0},
    "confident": {"rows": 2, "width": 2, "confidence": 0.1, "depth": 1},
}


@cache
@torch.inference_mode(False)
def module_of(kind: Any, family: str, seed: int, noise: int = 0) -> PseudoRows:
    """Each pseudo-row with a product of its own, and adapters that are heard."""
    module: PseudoRows = untrained(Pseudo(kind=kind), pair(family, seed).target, noise)
    generator = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return module.double()


class NaivePseudo(NaiveEagle):
    """transformers' own model over a text and pseudo-rows; the target's rows are computed alone, without any."""

    module: PseudoRows

    @classmethod
    def of(cls, models: Pair, module: PseudoRows, ids: Tensor | None = None) -> NaivePseudo:
        made = cls(models.naive, {}, ids=ids)
        object.__setattr__(made, "module", module)
        return made

    @torch.no_grad()
    def pseudo(self, text: Sequence[int], number: int) -> Tensor:
        """[width] what the LM head reads of pseudo-row ``number`` = 1, 2, .. behind the last token of a text."""
        model, module, n = self.naive.model, self.module, len(text)
        state = self.naive.last_states(tuple(text))[module.layer]
        begun = []
        for row in range(number):
            made = torch.zeros_like(state)
            if module.products is not None:
                width = len(state)
                made = made + module.products.weight[row * width : (row + 1) * width] @ state
            begun.append(made if module.vectors is None else made + module.vectors[row])

        def enter(_module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return torch.cat((inputs[0][:, :n], torch.stack(begun)[None]), 1), *inputs[1:]

        def add(adapter: Any, part: slice, heads: int, _module: Any, inputs: Any, output: Tensor) -> Tensor:
            more = adapter(inputs[0][:, n:])[..., part]
            if heads:  # ours has the two halves of each head by turns
                more = more.unflatten(-1, (heads, -1, 2)).mT.flatten(-3)
            return torch.cat((output[:, :n], output[:, n:] + more), 1)

        with ExitStack() as hooks:
            hooks.callback(model.model.layers[module.layer].register_forward_pre_hook(enter).remove)
            for index in module.adapters.numbers:
                layer, adapter, config = model.model.layers[index - 1], module.adapters.of(index), model.config
                size = layer.self_attn.q_proj.out_features
                kv, inner = layer.self_attn.k_proj.out_features, config.intermediate_size
                heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
                for product, trained, part, interleaved in (
                    (layer.self_attn.q_proj, adapter.qkv, slice(size), heads),
                    (layer.self_attn.k_proj, adapter.qkv, slice(size, size + kv), kv_heads),
                    (layer.self_attn.v_proj, adapter.qkv, slice(size + kv, size + 2 * kv), 0),
                    (layer.self_attn.o_proj, adapter.out, slice(None), 0),
                    (layer.mlp.gate_proj, adapter.gate_up, slice(inner), 0),
                    (layer.mlp.up_proj, adapter.gate_up, slice(inner, None), 0),
                    (layer.mlp.down_proj, adapter.down, slice(None), 0),
                ):
                    hooks.callback(product.register_forward_hook(partial(add, trained, part, interleaved)).remove)
            final: Tensor = model.model(torch.tensor([[*text, *[0] * number]]), use_cache=False).last_hidden_state
        return final[0, -1]

    def logits(self, text: tuple[int, ...], drafted: tuple[int, ...] = ()) -> Tensor:
        """Of the pseudo-row so deep behind the token before the root."""
        key = (text, (len(drafted),))
        if key not in self._states:
            logits = self.naive.model.lm_head(self.pseudo(text[:-1], len(drafted) + 1))
            self._states[key] = logits if self.ids is None else logits[self.ids]
        return self._states[key]


def rounds(method: Pseudo, naive: NaivePseudo, prompt: Sequence[int], said: Sequence[int]) -> Rounds:
    """The steps: nothing is drafted behind a candidate that carried no pseudo-rows."""
    if method.tree == "dynamic":
        draft = naive.dynamic(method.width, method.rows, method.nodes, method.confidence)
    else:
        draft = naive.shaped(list(map(int, method.tree.split("x"))))
    text, at, carried, steps = [*prompt, *said], len(prompt) + 1, True, Rounds()
    while at < len(text):
        branches = draft(text[:at], len(text) - at - 1) if carried else [[]]
        accepted = max(_agreement(branch, text[at:]) for branch in branches)
        steps.append((max(map(len, branches)), accepted))
        carried = accepted <= method.depth
        at += accepted + 1
    return steps


with_modules = partial(saved, "pseudo", tree="dynamic", rows=3)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_without_a_cache(family: str, seed: int, kind: Any, tree: str, tmp_path: Path) -> None:
    models, module = pair(family, seed), module_of(kind, family, seed)
    method = with_modules(Pseudo(kind=kind, **TREES[tree]), module, models, tmp_path)
    steps = check_replayed(method, family, seed, partial(rounds, method, NaivePseudo.of(models, module)))
    assert any(step.accepted for step in steps) or family != "llama" or tree == "confident"


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_over_a_draft_vocabulary_too(kind: Any, tmp_path: Path) -> None:
    models, module = pair("llama"), module_of(kind, "llama", 0)
    method = with_modules(Pseudo(kind=kind, width=3, confidence=0.0), module, models, tmp_path)
    write_draft_vocabulary(tmp_path, IDS)
    check_replayed(method, "llama", 0, partial(rounds, method, NaivePseudo.of(models, module, IDS)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_target_s_rows_do_not_see_pseudo_rows(kind: Any, dtype: torch.dtype) -> None:
    """Bit by bit the same whatever the pseudo-rows hold; without any, up to the rounding of other kernels."""
    target = pair("llama").target if dtype == torch.float64 else _in_float32()
    tokens, parents = [5, 7, 9, 4, 8], [0, 0, 1, 1, 3]
    states = []
    for noise in (0, 1, None):
        stream = Stream(target, 60)
        stream.push(prompt_of(13))
        stream.advance()
        stream.keep(range(13))
        stream.push([3])
        stream.push(tokens, parents)
        if noise is None:
            stream.advance()
        else:
            riders = Riders(copy.deepcopy(module_of(kind, "llama", 0, noise)).to(dtype), target)
            riders.run(stream, {row: 3 - row % 2 for row in range(6)})
            assert riders.behind(1).shape[0] == 2 and stream.rows == 6 + 15
            assert not torch.equal(riders.behind(0), riders.behind(2))
        states.append(stream.states[:6].clone())
    assert torch.equal(states[0], states[1])
    torch.testing.assert_close(states[0], states[2], rtol=0.0, atol=1e-12 if dtype == torch.float64 else 1e-4)


@cache
@torch.inference_mode(False)
def _in_float32() -> Target:
    return Target(copy.deepcopy(pair("llama").model).float(), None)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_each_pseudo_row_counts_as_a_row_of_the_pass(kind: Any, tmp_path: Path) -> None:
    """And no step carries more than the next draft can use: the last two steps carry none."""
    models = pair("llama")
    method = with_modules(Pseudo(kind=kind, tree="1x1x1"), module_of(kind, "llama", 0), models, tmp_path)
    method.prepare(models.target)
    got = generate(method, models, prompt_of(13))
    assert [step.passes for step in got.steps] == [1] * len(got.steps)
    left = 39
    for step in got.steps:
        depths = range(min(3, left - 1) + 1)
        assert step.rows == sum(1 + max(0, min(3, left - depth - 2)) for depth in depths)
        left -= len(step.tokens)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode(False)
def test_training_runs_the_rows_of_decoding(kind: Any) -> None:
    """Behind some tokens of two texts of different lengths, all in one pass."""
    models, module = pair("llama"), module_of(kind, "llama", 0)
    naive, texts = NaivePseudo.of(models, module), [prompt_of(14), prompt_of(9)]
    batch, places = batch_of(models.naive, texts), torch.tensor([0, 3, 5, 6])
    with torch.no_grad():
        final = RidingRows(module.float(), batch, places).final()
    module.double()
    for row, text in enumerate(texts):
        for at, place in enumerate(places.tolist()):
            for number in range(1, min(3, len(text) - 1 - place) + 1):
                expected = naive.pseudo(text[: place + 1], number)
                torch.testing.assert_close(final[row, at, number - 1].double(), expected, rtol=0.0, atol=5e-4)


@pytest.mark.parametrize("ids", [None, IDS])
@torch.inference_mode(False)
def test_the_loss_is_the_weighted_sum_over_pseudo_rows(ids: Tensor | None) -> None:
    models, module = pair("llama"), module_of("transfer", "llama", 0)
    naive, text, weights = NaivePseudo.of(models, module), prompt_of(8), [0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 1.0]
    batch, columns = batch_of(models.naive, [text], [weights], ids), slice(None) if ids is None else ids
    said = models.naive.logits(models.naive.states(text)[-1]).log_softmax(-1)[:, columns]
    total = 0.0
    for at in range(len(text)):
        for number in range(1, min(3, len(text) - 2 - at) + 1):
            log_probs = models.naive.model.lm_head(naive.pseudo(text[: at + 1], number))[columns].log_softmax(-1)
            total += 0.8 ** (number - 1) * weights[at + number + 1] * float(kl_inside(said[at + number], log_probs))
    loss_of_all = Pseudo(kind="transfer", share=1.0).loss(module.float(), batch)
    half = [float(Pseudo(kind="transfer", share=0.5).loss(module, batch).detach()) for _ in range(60)]
    module.double()
    assert float(loss_of_all.detach()) == pytest.approx(total, rel=1e-3)
    assert sum(half) / len(half) == pytest.approx(total, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode(False)
def test_what_was_learnt_is_accepted(kind: Any, tmp_path: Path) -> None:
    method = Pseudo(kind=kind, tree="1x1x1", share=0.5)
    got = learnt("pseudo", method, pair("llama"), tmp_path, steps=60, rate=3e-2 if kind == "prompt" else 1e-2)
    assert list(got.after) == [f"row_{number}_top1" for number in (1, 2, 3)]
    assert_learnt(got, "row_1_top1", loss=0.9, share=0.05, times=1)
