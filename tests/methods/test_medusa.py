"""Medusa: heads see the row they should, trees are measured and walked off the first branch too, the loss is learnt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Naive, TreeDrafter, heads_drafter
from refusals import refused
from runs import MODELS, answer, check_tree, generate, pair, prompt_of
from target_batches import answered, batch_of, learn
from torch import Tensor, nn
from untrained import facts_of, untrained

from benchctl.conformance.checks import sampled
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import random_models
from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import FACTS, save_modules, trained_options
from benchctl.decoding.modules.trainable import Tally
from benchctl.decoding.sampling import Sampling
from benchctl.methods.medusa import Medusa
from benchctl.methods.medusa.heads import path_shares, sparse_plan, tree_findings

WIDTHS = ((1, 1, 1), (6, 4), (3, 2, 2, 1), (24,))


def _heads_drafter(naive: Naive, heads: nn.Module, widths: Sequence[int]) -> TreeDrafter:
    """By the definition: W2 (h + SiLU(W1 h + b)) of the state h before the root."""

    def said(head: nn.Module, final: Tensor) -> Tensor:
        w1, bias, w2 = (weight.double() for weight in head.parameters())
        return w2 @ (final + F.silu(w1 @ final + bias))

    return heads_drafter(naive, widths, lambda final: [said(head, final) for head in heads.children()])


def test_a_fresh_shared_head_leaves_the_state_alone_and_has_no_lm_head() -> None:
    """For width 32 a head has one block of 32 * 33 parameters; its logits are those of the target's LM head."""
    models, method = pair("llama"), Medusa(heads=2, head="shared")
    module = method.build(models.target.info, models.target.lm_head.weight)
    assert {name: weight.numel() for name, weight in module.state_dict().items()} == {
        **{f"{head}.0.linear.weight": 32 * 32 for head in range(2)},
        **{f"{head}.0.linear.bias": 32 for head in range(2)},
    }
    final = torch.randn(2, 32)
    assert all(torch.equal(head(final), final) for head in module.children())


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("widths", WIDTHS)
def test_steps_equal_replay(widths: Sequence[int], family: str, seed: int) -> None:
    models, rows = pair(family, seed), [0, *accumulate(accumulate(widths, mul))]
    draft = _heads_drafter(models.naive, untrained(Medusa(heads=len(widths)), models.target), widths)
    label = f"medusa[heads={len(widths)},tree={'x'.join(map(str, widths))}]"
    steps = check_tree(label, draft, family, seed)
    assert [step.rows for step in steps] == [1 + rows[step.drafted] for step in steps]


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


def test_shared_heads_learn_the_same_through_the_target_s_lm_head_which_stays() -> None:
    """A head of its own that starts as the target's LM head has the same loss, and its block the same gradient."""
    models, batch = pair("llama"), batch_of(pair("llama").naive, [prompt_of(12)])
    lm_head = models.target.lm_head.weight
    grown: dict[str, tuple[Tensor, list[Tensor]]] = {}
    for head in ("own", "shared"):
        method = Medusa(heads=2, head=head)
        module = method.build(models.target.info, lm_head)
        with torch.no_grad():
            for name, weight in module.named_parameters():
                if "linear" in name:
                    weight.copy_(torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight))
        loss = method.loss(module, batch)
        loss.backward()
        gradients = [weight.grad for name, weight in module.named_parameters() if "linear" in name]
        grown[head] = loss, [gradient for gradient in gradients if gradient is not None]
    assert len(grown["shared"][1]) == 4
    torch.testing.assert_close(grown["own"], grown["shared"], rtol=1e-4, atol=1e-6)
    assert lm_head.grad is None


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


@pytest.mark.parametrize(("head", "lowered", "gained"), [("own", 0.6, 0.2), ("shared", 0.9, 0.05)])
def test_training_lowers_the_loss_and_the_trained_heads_are_right_more_often(
    head: Any, lowered: float, gained: float
) -> None:
    """On the target's own answers."""
    models, method = pair("llama"), Medusa(head=head)
    batch = batch_of(models.naive, answered(models.naive, 12))
    module = method.build(models.target.info, models.target.lm_head.weight)
    before = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    losses = learn(method.loss, module, batch, 60)
    after = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert losses[-1] < lowered * losses[0]
    assert all(after[f"head_{number}_top1"] > before[f"head_{number}_top1"] + gained for number in (1, 2, 3))


def test_heads_that_nobody_measured_are_taken_to_be_worse_the_further_ahead_they_look() -> None:
    """A second pick for the next token (0.1) before the third token of the first branch: 0.5 * 0.4 * 0.32."""
    assert Medusa(nodes=3)._plan({}, 100) == ((0,), (1,), (0, 0))
    assert Medusa(nodes=6)._plan({}, 2) == Medusa(nodes=6)._plan({"tree": {}}, 2)
    assert max(map(max, Medusa(nodes=256)._plan({}, 2))) == 1


def test_no_tree_has_more_picks_than_there_are_tokens() -> None:
    assert Medusa(tree="9x1")._plan({}, 2) == ((0,), (1,), (0, 0), (1, 0))


@pytest.mark.parametrize(("delta", "path"), [(0.5, (0,)), (0.7, ())])
def test_typical_acceptance_lowers_the_bar_where_the_target_is_unsure(delta: float, path: tuple[int, ...]) -> None:
    """Of chances 0.2, 0.4 and 0.4: the bar is delta exp(-H) = 0.348 delta, whatever epsilon above it is."""
    sampling, target = Sampling(1.0), pair("llama").target
    context = Context(target, Stream(target, 8), [3], 1, 4, sampling, sampling.generator())
    method = Medusa(accept="typical", epsilon=1.0, delta=delta)
    assert method.verify(context, Draft((0,), (ROOT,)), torch.tensor([[0.2, 0.4, 0.4]] * 2).log()).path == path


TOLD = {"0": 0.6, "0 1": 0.5, "0 1 0": 0.4, "1": 0.2, "1 2": 0.1}  # ends in second and third picks


def test_a_path_is_right_where_all_its_picks_are() -> None:
    """Counted by hand on two texts, the second of which is too short for any place to have three tokens ahead."""
    models, heads = pair("llama"), untrained(Medusa(heads=2), pair("llama").target)
    texts = [prompt_of(40), [7, 8, 9]]
    batches = [batch_of(models.naive, texts), batch_of(models.naive, [prompt_of(25, 1)])]
    right: Counter[tuple[int, ...]] = Counter()
    places = 0
    for batch, text in ((batches[0], texts[0]), (batches[1], prompt_of(25, 1))):
        first, second = (one(batch.final[0]).argsort(-1, descending=True)[:, :10].tolist() for one in heads.children())
        for at in range(len(text) - 3):
            places += 1
            if text[at + 2] in first[at]:
                rank = first[at].index(text[at + 2])
                right[(rank,)] += 1
                if text[at + 3] in second[at]:
                    right[(rank, second[at].index(text[at + 3]))] += 1
    assert len(right) > 10
    assert path_shares(heads, batches) == pytest.approx({path: count / places for path, count in right.items()})


def test_a_place_counts_as_much_as_the_least_of_the_tokens_it_has_to_predict() -> None:
    """Weights 0, 0, 0, 1, 0.5: of the five tokens' two places, the first weighs 0 and the second a half."""
    models, heads = pair("llama"), untrained(Medusa(heads=2), pair("llama").target)
    batch = batch_of(models.naive, [[5, 6, 7, 8, 9]], [[0.0, 0.0, 0.0, 1.0, 0.5]])
    first, second = (head(batch.final[0, 1]).argsort(descending=True).tolist() for head in heads.children())
    ranks = first.index(8), second.index(9)
    wanted = {ranks[:depth]: 1.0 for depth in (1, 2) if max(ranks[:depth]) < 10}
    assert path_shares(heads, [batch]) == wanted


def test_nothing_measured_is_nothing_told() -> None:
    heads = untrained(Medusa(heads=2), pair("llama").target)
    assert tree_findings(path_shares(heads, [])) == {}
    assert path_shares(heads, [batch_of(pair("llama").naive, [[5, 6]])]) == {}


def test_the_likeliest_paths_are_told_first_and_no_more_than_are_kept() -> None:
    shares: dict[tuple[int, ...], float] = {}
    shares |= {(first, second): 0.9 - 0.01 * (10 * first + second) for first in range(9) for second in range(9)}
    shares |= {(*path, third): share / 2 for path, share in shares.items() for third in range(4)}
    shares |= {(first,): 0.95 for first in range(9)}
    told = tree_findings(shares)
    assert len(told) == 256 and list(told.values()) == sorted(told.values(), reverse=True)
    assert list(told)[:11] == [*map(str, range(9)), "0 0", "0 1"]
    assert len(sparse_plan(told, 3, 256, 100)) == 256


def test_what_is_told_makes_the_tree_of_any_nodes_and_heads() -> None:
    assert sparse_plan(TOLD, 3, 5, 100) == ((0,), (1,), (0, 1), (1, 2), (0, 1, 0))
    assert sparse_plan(TOLD, 3, 3, 100) == ((0,), (0, 1), (0, 1, 0))
    assert sparse_plan(TOLD, 2, 3, 100) == ((0,), (1,), (0, 1))
    assert sparse_plan(TOLD, 1, 15, 100) == ((0,), (1,))


def _saved(folder: Path, heads: nn.Module, target: Target, tree: Any) -> str:
    trained = Medusa(heads=len(list(heads.children())))
    save_modules(folder, heads, facts_of("medusa", trained, target, findings={"tree": tree}))
    return str(folder)


def test_the_tree_beside_the_heads_is_the_one_drafted(tmp_path: Path) -> None:
    models, heads = pair("llama"), untrained(Medusa(), pair("llama").target)
    method = Medusa(modules=_saved(tmp_path, heads, models.target, TOLD), nodes=15)
    method.prepare(models.target)
    got = generate(method, models, prompt_of(13))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert {(step.rows, step.drafted) for step in got.steps[:-3]} == {(6, 3)}


def test_fewer_heads_than_were_trained_are_the_first_ones(tmp_path: Path) -> None:
    models, heads = pair("llama"), untrained(Medusa(), pair("llama").target)
    fewer = nn.ModuleList(list(heads.children())[:2])
    told = {path: share for path, share in TOLD.items() if len(path.split()) < 3}
    steps = []
    for folder in (
        _saved(tmp_path / "3", heads, models.target, TOLD),
        _saved(tmp_path / "2", fewer, models.target, told),
    ):
        method = Medusa(modules=folder, heads=2)
        method.prepare(models.target)
        steps.append(generate(method, models, prompt_of(13)).steps)
    assert steps[0] == steps[1]


@pytest.mark.parametrize("told", [TOLD, {"0": 0.5, "1": 0.4, "2": 0.3, "2 0": 0.2, "2 3": 0.1}])
def test_sampled_answers_have_the_target_s_distribution_whatever_the_tree(
    told: Mapping[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Siblings are tried in the order of their rows, below second and third picks too."""
    with_tree = partial(facts_of, findings={"tree": told})
    monkeypatch.setattr("benchctl.conformance.method_under_test.facts_of", with_tree)
    assert sampled(MethodUnderTest("medusa", tmp_path), random_models("llama")) is None


@pytest.mark.parametrize(
    "tree",
    [
        {"0 0": 0.1},
        {"": 0.1},
        {"10": 0.1},
        {"-1": 0.1},
        {"first": 0.1},
        {"0": 0.1, "0 0": 0.2},
        {"0": float("nan")},
        {"0": None},
        ["0"],
    ],
)
def test_a_tree_that_training_cannot_have_written_is_refused(tmp_path: Path, tree: Any) -> None:
    target = pair("llama").target
    method = Medusa(modules=_saved(tmp_path, untrained(Medusa(), target), target, tree))
    with refused("no_tree", "modules.json"):
        method.prepare(target)


def test_heads_of_before_there_were_two_forms_have_lm_heads_of_their_own(tmp_path: Path) -> None:
    target = pair("llama").target
    own = _saved(tmp_path, untrained(Medusa(), target), target, {})
    facts = json.loads((tmp_path / FACTS).read_text())
    del facts["options"]["head"]
    (tmp_path / FACTS).write_text(json.dumps(facts))
    trained_options(Medusa(), "medusa", own)
    with refused("trained_with_other_option", own, "head=own"):
        trained_options(Medusa(head="shared"), "medusa", own)
