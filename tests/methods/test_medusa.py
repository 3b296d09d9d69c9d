"""Medusa: its heads see the row they should, its trees are walked off the first branch too, and its loss is learnt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mutants import LateMedusa
from oracles import Naive, Rounds, TreeDrafter, autoregressive, replay_tree
from runs import CONTEXT_TOKENS, NEW_TOKENS, VOCABULARY, Pair, answer, pair, pair_of, prepared, prompt_of, rounds_of
from target_batches import batch_of, learn
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from untrained import facts_of, untrained, untrained_folder

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Method, Outcome
from benchctl.decoding.modules.trainable import Tally, save_modules
from benchctl.decoding.sampling import Sampling
from benchctl.methods.medusa import Medusa
from benchctl.registry import build

MODELS = (("llama", 0), ("qwen3", 2), ("mistral_window", 4))
WIDTHS = ((1, 1, 1), (6, 4), (3, 2, 2, 1), (24,))


def _label(widths: Sequence[int]) -> str:
    return f"medusa[heads={len(widths)},tree={'x'.join(map(str, widths))}]"


def _heads_drafter(naive: Naive, heads: nn.Module, widths: Sequence[int]) -> TreeDrafter:
    """Branches by the definition: W2 (h + SiLU(W1 h + b)) of the state before the root, by full recomputation."""

    def ranking(head: nn.Module, final: Tensor) -> list[int]:
        w1, bias, w2 = (weight.double() for weight in head.parameters())
        ranked: list[int] = (w2 @ (final + F.silu(w1 @ final + bias))).argsort(descending=True).tolist()
        return ranked

    def draft(text: list[int], budget: int) -> list[list[int]]:
        final = naive.model.model.norm(naive.last_states(text[:-1])[-1])
        picks = [ranking(head, final) for head in heads.children()]
        return [
            [picks[depth][rank] for depth, rank in enumerate(ranks[: max(budget, 0)])]
            for ranks in product(*map(range, widths))
        ]

    return draft


def _expected_rounds(family: str, seed: int, prompt_tokens: int, widths: Sequence[int]) -> Rounds:
    models = pair(family, seed)
    text = answer(family, seed, prompt_tokens)
    heads = untrained(Medusa(heads=len(widths)), models.target)
    return replay_tree(prompt_of(prompt_tokens, seed), text, len(text), _heads_drafter(models.naive, heads, widths))


def _generate(method: Method, models: Pair, prompt: list[int]) -> Generation:
    return decode(method, models.target, DecodeRequest(prompt, NEW_TOKENS))


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("widths", WIDTHS)
def test_steps_equal_replay(widths: Sequence[int], family: str, seed: int) -> None:
    for prompt_tokens in (1, 13, CONTEXT_TOKENS - 7):
        method = prepared(_label(widths), pair(family, seed).target)
        got = _generate(method, pair(family, seed), prompt_of(prompt_tokens, seed))
        assert list(got.token_ids) == answer(family, seed, prompt_tokens)
        assert rounds_of(got) == _expected_rounds(family, seed, prompt_tokens, widths)
        rows = [0, *accumulate(accumulate(widths, mul))]
        assert [step.rows for step in got.steps] == [1 + rows[step.drafted] for step in got.steps]


def test_branches_other_than_the_first_are_accepted_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing here would show that rows of a tree see their own branch and are committed from where they lie."""
    paths: list[tuple[int, ...]] = []
    observe = Medusa.observe

    def watching(method: Medusa, context: Context, outcome: Outcome) -> None:
        paths.append(outcome.verdict.path)
        observe(method, context, outcome)

    monkeypatch.setattr(Medusa, "observe", watching)
    for family, seed in MODELS:
        models = pair(family, seed)
        _generate(prepared(_label((6, 4)), models.target), models, prompt_of(13, seed))
    assert () in paths
    assert any(path[0] == 0 for path in paths if path)
    # Of a 6x4 tree, rows 0 to 5 are the first head's picks, and the row of a second pick says how it ranks.
    assert any(path[0] > 0 and (path[1] - 6) % 4 > 0 for path in paths if len(path) == 2)


def test_replay_exposes_heads_that_read_another_row_though_the_text_is_right() -> None:
    models, widths = pair("llama"), (6, 4)
    method = LateMedusa(heads=2, tree="6x4")
    method.modules = str(untrained_folder(_label(widths), method, models.target))
    method.prepare(models.target)
    got = _generate(method, models, prompt_of(13))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert rounds_of(got) != _expected_rounds("llama", 0, 13, widths)


def test_renaming_every_token_renames_what_is_drafted_and_changes_no_count(tmp_path: Path) -> None:
    """Published code loses tokens to padding with id 0, and a pick from another head's list has another name."""
    models, module = pair("llama"), untrained(Medusa(), pair("llama").target)
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(3))
    names = order.argsort().tolist()
    model, renamed_module = copy.deepcopy(models.model), copy.deepcopy(module)
    heads = [list(head.parameters())[-1] for head in renamed_module.children()]
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight, *heads):
        weight.data = weight.data[order]
    before, drafts = _watched(tmp_path / "before", module, models, prompt_of(13))
    prompt = [names[token] for token in prompt_of(13)]
    after, renamed_drafts = _watched(tmp_path / "after", renamed_module, pair_of(model, model), prompt)
    assert renamed_drafts == [[names[token] for token in draft] for draft in drafts]
    assert list(after.token_ids) == [names[token] for token in before.token_ids]
    assert rounds_of(after) == rounds_of(before)
    assert len(drafts) > 5 and {0} & set().union(*renamed_drafts) and {names[0]} & set().union(*renamed_drafts)


def _watched(folder: Path, module: nn.Module, models: Pair, prompt: list[int]) -> tuple[Generation, list[list[int]]]:
    """An answer by these modules, and the tokens of every draft on the way to it."""
    drafts: list[list[int]] = []
    draft = Medusa.draft

    def watching(method: Medusa, context: Context, budget: int) -> Draft:
        drafted: Draft = draft(method, context, budget)
        drafts.append(list(drafted.tokens))
        return drafted

    save_modules(folder, module, facts_of("medusa", Medusa(), models.target))
    method = Medusa(modules=str(folder))
    method.prepare(models.target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Medusa, "draft", watching)
        return _generate(method, models, prompt), drafts


@pytest.mark.parametrize("seed", range(8))
def test_any_heads_and_any_target_give_the_target_s_own_tokens(seed: int) -> None:
    models = pair("llama", seed)
    for number, label in enumerate(("medusa", "medusa[nodes=40]", "medusa[heads=5,tree=2x2x2x2x2]")):
        method = build(label)
        assert isinstance(method, Medusa)
        method.modules = str(untrained_folder(label, method, models.target, seed=10 * seed + number))
        method.prepare(models.target)
        assert list(_generate(method, models, prompt_of(13, seed)).token_ids) == answer("llama", seed, 13)


def test_a_fresh_head_says_what_the_lm_head_says() -> None:
    models = pair("llama")
    final = torch.randn(2, models.target.info.hidden_size)
    for head in Medusa().build(models.target.info, models.target.lm_head.weight).children():
        assert torch.equal(head(final), F.linear(final, models.target.lm_head.weight.float()))


def test_heads_share_no_weights_with_one_another_nor_with_the_target() -> None:
    """Published code repeats one block object n times, which makes its copies one."""
    lm_head = pair("llama").target.lm_head.weight.float()
    heads = list(Medusa().build(pair("llama").target.info, lm_head).children())
    places = {weight.untyped_storage().data_ptr() for head in heads for weight in head.parameters()}
    assert len(heads) == 3 and len(places) == 9
    assert lm_head.untyped_storage().data_ptr() not in places


def test_what_one_head_learns_moves_no_other() -> None:
    """Of three tokens, only the first head has one to predict."""
    models, method = pair("llama"), Medusa()
    module = untrained(method, models.target)
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    method.loss(module, batch_of(models.naive, [[5, 6, 7]])).backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    moved = {name for name, weight in module.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved == {"0.0.linear.weight", "0.0.linear.bias", "0.1.weight"}


def test_the_loss_is_the_weighted_divergence_of_each_head_from_what_the_target_says_there() -> None:
    """Head 1 learns what is said of the token after next, at 0.8, head 2 of the one after that, at 0.64; weight 0
    teaches nothing."""
    models, method = pair("llama"), Medusa(heads=2)
    text, weights = [5, 6, 7, 8, 9], [0.0, 0.0, 0.0, 1.0, 0.5]
    batch = batch_of(models.naive, [text, text[:2]], [weights, [1.0, 1.0]])
    module = untrained(method, models.target)
    first, second = (head(batch.final[0]).log_softmax(-1) for head in module.children())
    said = models.naive.model.lm_head(batch.final[0].double()).log_softmax(-1)

    def divergence(head: Tensor, at: int, number: int) -> Tensor:
        return sum((p * (p.log() - q) for p, q in zip(said[at + number].exp(), head[at], strict=True)), torch.zeros(()))

    expected = 0.8 * (divergence(first, 1, 1) + 0.5 * divergence(first, 2, 1))
    expected = (expected + 0.64 * (divergence(second, 0, 2) + 0.5 * divergence(second, 1, 2))).float()
    torch.testing.assert_close(method.loss(module, batch), expected, rtol=1e-5, atol=0.0)


def test_the_loss_needs_no_value_of_its_tensors() -> None:
    """What a training would cost is estimated on shapes alone."""
    batch = batch_of(pair("llama").naive, [[5, 6, 7, 8]])
    module = untrained(Medusa(), pair("llama").target)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert Medusa().loss(module, batch).shape == ()


def test_yardsticks_count_how_often_a_token_is_among_the_first_picks() -> None:
    models, method = pair("llama"), Medusa(heads=2)
    text = prompt_of(20)
    batch = batch_of(models.naive, [text])
    module = untrained(method, models.target)
    found = method.yardsticks(module, batch)
    assert set(found) == {f"head_{head}_top{k}" for head in (1, 2) for k in (1, 2, 4, 8)}
    for number, head in enumerate(module.children(), 1):
        ranked = head(batch.final[0]).argsort(-1, descending=True).tolist()
        for k in (1, 2, 4, 8):
            hits = sum(text[at + number + 1] in ranked[at][:k] for at in range(len(text) - number - 1))
            assert found[f"head_{number}_top{k}"] == Tally(hits, len(text) - number - 1)


def _texts(models: Pair, count: int) -> list[list[int]]:
    return [[*prompt_of(6, seed), *autoregressive(models.naive, prompt_of(6, seed), 40)] for seed in range(count)]


def test_training_lowers_the_loss_and_the_trained_heads_draft_better(tmp_path: Path) -> None:
    """On the target's own answers; the shares measured afterwards shape the tree."""
    models, method = pair("llama"), Medusa()
    batch = batch_of(models.naive, _texts(models, 12))
    module = method.build(models.target.info, models.target.lm_head.weight)
    before = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    losses = learn(method, module, batch, 60)
    after = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert losses[-1] < 0.6 * losses[0]
    assert all(after[f"head_{number}_top1"] > before[f"head_{number}_top1"] + 0.2 for number in (1, 2, 3))
    findings = dict(method.findings(module, [batch]))
    save_modules(tmp_path / "trained", module, facts_of("medusa", method, models.target, findings=findings))
    trained = build(f"medusa[modules={tmp_path / 'trained'}]")
    trained.prepare(models.target)
    assert list(_generate(trained, models, prompt_of(13)).token_ids) == answer("llama", 0, 13)
    fresh = prepared("medusa", models.target)
    steps = [
        sum(len(_generate(one, models, prompt_of(6, seed)).steps) for seed in range(4)) for one in (fresh, trained)
    ]
    assert steps[1] < 0.7 * steps[0]


def test_heads_that_nobody_measured_are_taken_to_be_worse_the_further_ahead_they_look() -> None:
    """A second pick for the next token (0.1) before the third token of the first branch: 0.5 * 0.4 * 0.32."""
    assert Medusa(nodes=3)._plan({}, 100) == ((0,), (1,), (0, 0))
    assert Medusa(nodes=6)._plan({}, 2) == Medusa(nodes=6)._plan({"tree": {}}, 2)
    assert max(map(max, Medusa(nodes=256)._plan({}, 2))) == 1


def test_no_tree_has_more_picks_than_there_are_tokens() -> None:
    assert Medusa(tree="9x1")._plan({}, 2) == ((0,), (1,), (0, 0), (1, 0))


@pytest.mark.parametrize("tree", ["wide", "2x", "0x2", "2x2x2x2", "-1", ""])
def test_a_tree_that_cannot_be_is_refused(tree: str) -> None:
    with pytest.raises(ValueError, match="it takes sparse, or up to 3 widths joined by x"):
        Medusa(tree=tree)


def test_a_tree_deeper_than_there_are_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="tree is '2x2x2'; it takes sparse, or up to 2 widths joined by x"):
        Medusa(heads=2, tree="2x2x2")


def test_a_tree_of_more_nodes_than_were_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="nodes is 257; a sparse tree may have 256"):
        Medusa(nodes=257)


@pytest.mark.parametrize("option", ["heads", "nodes", "epsilon", "delta"])
def test_options_must_be_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 0; it must be positive"):
        Medusa(**{option: 0})


@pytest.mark.parametrize("option", ["epsilon", "delta"])
def test_no_bar_of_a_probability_is_above_1(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 1.5; it must be at most 1"):
        Medusa(accept="typical", **{option: 1.5})
    assert getattr(Medusa(**{option: 1.0}), option) == 1.0


def test_typical_acceptance_is_called_lossy_and_keeps_more() -> None:
    models = pair("llama")
    typical = build("medusa[accept=typical]")
    assert (typical.exactness, typical.reason != "") == ("lossy", True)
    assert (build("medusa").exactness, build("medusa").reason) == ("exact", "")
    accepted = [
        sum(step.accepted for seed in range(4) for step in _sample(label, models, seed).steps)
        for label in ("medusa", "medusa[accept=typical]", "medusa[accept=typical,epsilon=1e-9]")
    ]
    assert accepted[0] < accepted[2]
    assert accepted[1] < accepted[2]


@pytest.mark.parametrize(("delta", "path"), [(0.5, (0,)), (0.7, ())])
def test_typical_acceptance_lowers_the_bar_by_delta_where_the_target_is_unsure(
    delta: float, path: tuple[int, ...]
) -> None:
    """Of chances 0.2, 0.4 and 0.4: the bar is delta exp(-H) = 0.348 delta, whatever epsilon above it is."""
    sampling, target = Sampling(1.0), pair("llama").target
    context = Context(target, Stream(target, 8), [3], 1, 4, sampling, sampling.generator())
    method = Medusa(accept="typical", epsilon=1.0, delta=delta)
    assert method.verify(context, Draft((0,), (ROOT,)), torch.tensor([[0.2, 0.4, 0.4]] * 2).log()).path == path


def _sample(label: str, models: Pair, seed: int) -> Generation:
    method = prepared(label, models.target)
    return decode(method, models.target, DecodeRequest(prompt_of(13), 20, Sampling(1.0, seed=seed)))
