"""Sequential heads: steps equal a replay by the papers' formulas, and training runs what decoding runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from naive_eagle import NaiveEagle, Path
from oracles import TreeDrafter
from runs import FIRST_FAST, IDS, Pair, check_tree, generate, pair, prompt_of
from target_batches import assert_learnt, batch_of, kl_inside, learnt, saved
from torch import Tensor
from untrained import untrained

from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Context
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.methods.sequential import Sequential
from benchctl.methods.sequential.heads import Heads, steps

KINDS = ("hydra", "redrafter")
TREES: dict[str, Any] = {
    "chain": {"tree": "1x1x1"},
    "static": {"tree": "3x2x2"},
    "dynamic": {"width": 3, "heads": 3, "nodes": 7, "confidence": 0.0},
    "confident": {"width": 3, "confidence": 0.2},
}


@dataclass(frozen=True)
class NaiveHeads(NaiveEagle):
    """Scores behind a text and drafted tokens by the formulas of the papers; ``weights`` by their published names."""

    kind: str = "hydra"
    blocks: int = 1
    _known: dict[tuple[Path, Path], Tensor] = field(default_factory=dict)

    def block(self, name: str, x: Tensor) -> Tensor:
        kept = self.product(f"{name}.res_connection", x) if f"{name}.res_connection.weight" in self.weights else x
        return kept + F.silu(self.product(f"{name}.linear", x))

    def read(self, text: Path, drafted: Path) -> Tensor:
        """[width] of what the LM head reads."""
        model = self.naive.model.model
        final = model.norm(self.naive.last_states(text[:-1])[-1])
        path = model.embed_tokens(torch.tensor(text[-1:] + drafted))
        if self.kind == "hydra":
            x, name = torch.cat((final, *path)), f"hydra_mlp.{len(drafted)}"
        else:
            state = torch.zeros_like(final)
            for token in path:
                state = F.silu(self.product("rnn_w", token) + self.product("rnn_u", state))
            x, name = self.product("input_proj", torch.cat((final, state))), "lm_head"
        for number in range(self.blocks):
            x = self.block(f"{name}.{number}", x)
        return x

    def logits(self, text: Path, drafted: Path = ()) -> Tensor:
        if (text, drafted) not in self._known:
            logits = self.naive.model.lm_head(self.read(text, drafted))
            self._known[text, drafted] = logits if self.ids is None else logits[self.ids]
        return self._known[text, drafted]


@cache
@torch.inference_mode(False)
def module_of(kind: Any, family: str, seed: int, blocks: int = 1) -> Heads:
    """Loud enough that paths differ in their scores."""
    module: Heads = untrained(Sequential(kind=kind, blocks=blocks), pair(family, seed).target)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.endswith(("rnn_w.weight", "linear.weight", "input_proj.weight")):
                weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))
    return module


def naive_of(kind: str, module: Heads, models: Pair, ids: Tensor | None = None, blocks: int = 1) -> NaiveHeads:
    weights: Mapping[str, Tensor] = {name: weight.double() for name, weight in module.state_dict().items()}
    return NaiveHeads(models.naive, weights, ids=ids, kind=kind, blocks=blocks)


def drafter_of(method: Sequential, naive: NaiveHeads) -> TreeDrafter:
    if method.tree == "dynamic":
        return naive.dynamic(method.width, method.heads, method.nodes, method.confidence)
    return naive.shaped(list(map(int, method.tree.split("x"))))


with_modules = partial(saved, "sequential", tree="dynamic", heads=4)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_of_the_formulas(family: str, seed: int, kind: Any, tree: str, tmp_path: FilePath) -> None:
    models, module = pair(family, seed), module_of(kind, family, seed)
    method = with_modules(Sequential(kind=kind, **TREES[tree]), module, models, tmp_path)
    taken = check_tree(method, drafter_of(method, naive_of(kind, module, models)), family, seed)
    assert any(step.accepted for step in taken) or family != "llama"


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_over_a_draft_vocabulary_and_with_more_blocks_too(kind: Any, tmp_path: FilePath) -> None:
    models, module = pair("llama"), module_of(kind, "llama", 0, 2)
    method = with_modules(Sequential(kind=kind, blocks=2, width=3), module, models, tmp_path)
    write_draft_vocabulary(tmp_path, IDS)
    whole = replace(method, draft_vocabulary="whole")
    for each, ids in ((method, IDS), (whole, None)):
        draft = drafter_of(method, naive_of(kind, module, models, ids, 2))
        assert any(step.accepted for step in check_tree(each, draft))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_scores_of_a_grown_level_are_those_of_each_path_alone(
    kind: Any, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a tree's nodes, not only those that a run happens to accept."""
    models, module = pair("llama"), module_of(kind, "llama", 0)
    method = with_modules(Sequential(kind=kind, width=4, nodes=30, heads=3, confidence=0.0), module, models, tmp_path)
    method.prepare(models.target)
    drafts, original = list[tuple[list[int], Draft]](), Sequential.draft

    def draft(given: Sequential, context: Context, budget: int) -> Draft:
        drafts.append((list(context.tokens), original(given, context, budget)))
        return drafts[-1][1]

    monkeypatch.setattr(Sequential, "draft", draft)
    generate(method, models, prompt_of(13), 12)
    naive = naive_of(kind, module, models)
    for text, grown in drafts:
        budget = 13 + 12 - len(text) - 1
        expected = naive.dynamic(4, 3, 30)(text, budget)
        assert sorted(grown.paths) == sorted(tuple(path) for path in expected if path)
    assert len(drafts) > 2


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode(False)
def test_training_steps_are_those_of_a_draft_that_is_always_right(kind: Any) -> None:
    models, module = pair("llama"), module_of(kind, "llama", 0)
    naive, texts = naive_of(kind, module, models), [prompt_of(14), prompt_of(9)]
    batch = batch_of(models.naive, texts)
    with torch.no_grad():
        every = list(steps(module, batch, 3))
    for row, text in enumerate(texts):
        for number, read in enumerate(every):
            for at in range(len(text) - 1 - number):
                expected = naive.read(tuple(text[: at + 2]), tuple(text[at + 2 : at + 2 + number]))
                torch.testing.assert_close(read[row, at].double(), expected, rtol=0.0, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [None, IDS])
@torch.inference_mode(False)
def test_the_loss_is_the_weighted_sum_over_steps(kind: Any, ids: Tensor | None) -> None:
    """Sum of 0.8^i w KL(target || step) by definition; over a draft vocabulary by the mass inside."""
    models, module = pair("llama"), module_of(kind, "llama", 0)
    naive, text, weights = naive_of(kind, module, models, ids), prompt_of(8), [0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 1.0]
    batch = batch_of(models.naive, [text], [weights], ids)
    said = models.naive.logits(models.naive.states(text)[-1]).log_softmax(-1)[:, slice(None) if ids is None else ids]
    total = 0.0
    for number in range(3):
        for at in range(len(text) - 2 - number):
            log_probs = naive.logits(tuple(text[: at + 2]), tuple(text[at + 2 : at + 2 + number])).log_softmax(-1)
            total += 0.8**number * weights[at + 2 + number] * float(kl_inside(said[at + 1 + number], log_probs))
    method = Sequential(kind=kind, heads=3)
    assert float(method.loss(module, batch).detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode(False)
def test_a_fresh_step_hands_on_the_target_s_state(kind: Any) -> None:
    models = pair("llama")
    batch = batch_of(models.naive, [prompt_of(9)])
    with torch.no_grad():
        for read in steps(
            Sequential(kind=kind, blocks=2).build(models.target.info, models.target.lm_head.weight), batch, 3
        ):
            torch.testing.assert_close(read, batch.final)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode(False)
def test_what_was_learnt_is_accepted(kind: Any, tmp_path: FilePath) -> None:
    got = learnt("sequential", Sequential(kind=kind, heads=3, tree="1x1x1"), pair("llama"), tmp_path)
    assert list(got.after) == [f"token_{number}_top1" for number in (1, 2, 3)]
    assert_learnt(got, "token_1_top1")
