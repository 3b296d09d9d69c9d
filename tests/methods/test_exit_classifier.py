"""Trained exits: the classifier decides where early_exit leaves, and learns where a layer agrees with the last one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracles import ExitRule, Naive, autoregressive, exit_answer, exit_drafter, replay
from runs import LAYERS, NEW_TOKENS, Pair, answer, pair, prompt_of, rounds_of, run
from target_batches import batch_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from untrained import facts_of, untrained

from benchctl.decoding.model.layers import Layer
from benchctl.decoding.modules.exits import Exits, balanced_loss, exit_yardsticks
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, save_modules
from benchctl.errors import UserError
from benchctl.methods.early_exit import EarlyExit
from benchctl.registry import build

MODELS = (("llama", 0), ("qwen3", 2))
EXITS = (1, 3)
OPTIONS = "confidence=classifier,exits=1+3"


def _rule(models: Pair, threshold: float) -> ExitRule:
    """The same untrained classifiers, in plain algebra."""
    module = untrained(EarlyExit(confidence="classifier", exits="1+3"), models.target)
    weights = {name: value.double() for name, value in module.state_dict().items()}

    def classify(layer: int, state: Tensor) -> float:
        score = weights[f"classifier.{layer}.weight"][0] @ state + weights[f"classifier.{layer}.bias"][0]
        return float(1 / (1 + torch.exp(-score)))

    return ExitRule(EXITS, "classifier", threshold, classify)


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("policy", ["propagate", "deferred_exact"])
def test_tokens_and_exits_are_those_of_the_plain_rule(policy: str, family: str, seed: int) -> None:
    models, left = pair(family, seed), set()
    for threshold in (0.3, 0.5, 0.7):
        label = f"early_exit[{OPTIONS},threshold={threshold},kv_policy={policy}]"
        got = run(label, models.target, prompt_of(13), NEW_TOKENS)
        rule = _rule(models, threshold)
        expected = exit_answer(models.naive, prompt_of(13), NEW_TOKENS, rule, policy == "propagate")
        assert (list(got.token_ids), list(got.layers)) == (expected.tokens, expected.ran)
        left |= set(expected.exits[1:])
    assert left == {*EXITS, LAYERS}


@pytest.mark.parametrize(("family", "seed"), MODELS)
def test_drafts_of_the_exits_take_the_steps_of_replay(family: str, seed: int) -> None:
    models, text = pair(family, seed), answer(family, seed, 13)
    for threshold in (0.3, 0.6):
        label = f"early_exit[mode=draft,{OPTIONS},threshold={threshold}]"
        got = run(label, models.target, prompt_of(13, seed), NEW_TOKENS)
        drafter = exit_drafter(models.naive, _rule(models, threshold), 4)
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay(prompt_of(13, seed), text, len(text), drafter)


def test_either_class_counts_by_the_share_of_the_other() -> None:
    """The example of the docstring: 3 of 4 agree; and a token of weight 0 counts for nothing."""
    agrees = torch.tensor([[True, True, False, True, True]])
    weights = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    scores = torch.tensor([[0.0, 2.0, 1.0, -1.0, 9.0]])
    chance = scores.sigmoid()[0]
    right = -(chance[0].log() + chance[1].log() + chance[3].log()) * 0.25
    wrong = -(1 - chance[2]).log() * 0.75
    torch.testing.assert_close(balanced_loss(scores, agrees, weights), right + wrong)


def test_the_loss_is_that_of_every_exit_weighted_by_the_token_to_predict() -> None:
    models, weights = pair("llama"), [float(number % 3) for number in range(20)]
    batch = batch_of(models.naive, [prompt_of(20)], [weights])
    method = EarlyExit(confidence="classifier", exits="1+3")
    module, last = untrained(method, models.target), batch.head(batch.final).argmax(-1)
    expected = torch.zeros(())
    for layer in EXITS:
        scores = module.get_submodule(f"classifier.{layer}")(batch.states[layer])[..., 0]
        agrees = batch.head(batch.norm(batch.states[layer])).argmax(-1) == last
        expected = expected + balanced_loss(scores, agrees, torch.tensor([[*weights[1:], 0.0]]))
    assert float(expected.detach()) > 0
    torch.testing.assert_close(method.loss(module, batch), expected)


def _literal_batch() -> TrainingBatch:
    """A target of two layers and two tokens whose head reads the state itself: token 0 where its first number wins.

    By layer 1 tokens 0 and 1 say 0 0, tokens 2 and 3 say 1 1; by layer 2 it is 0 1 1 0: layer 1 is right on 0 and 2.
    """
    zero, one = [1.0, 0.0], [0.0, 1.0]
    states = [
        torch.zeros(1, 5, 2),
        torch.tensor([[zero, zero, one, one, one]]),
        torch.tensor([[zero, one, one, zero, one]]),
    ]
    flat = torch.zeros(1, 5, dtype=torch.int64)
    same = lambda rows: rows  # noqa: E731
    texts = (flat, torch.ones(1, 5), flat, torch.arange(5)[None])
    return TrainingBatch(*texts, states, states[2], norm=same, head=same, layer=_unasked, rotary=same)


def _unasked(index: int) -> Layer:
    raise AssertionError(f"nobody asks for layer {index}")


def test_a_layer_speaks_through_the_final_norm() -> None:
    """A norm that exchanges the two tokens, as one with a gain may: layer 1 is then right where it was wrong."""
    batch = replace(_literal_batch(), norm=lambda states: 1 - states)
    classified = Exits({}, {1: nn.Linear(2, 1)})
    assert classified.agreements(batch)[1].tolist() == [[False, True, False, True, False]]


def test_yardsticks_tell_what_is_let_go_and_what_is_held_back() -> None:
    """Of the four tokens with one ahead, 0 and 2 may leave at layer 1; the score lets 0, 1 and 2 go."""
    right = {1: torch.tensor([[True, False, True, False, False]])}
    found = exit_yardsticks({1: torch.tensor([[1.0, 1.0, 1.0, -1.0, 1.0]])}, _literal_batch(), right)
    assert found["exit_1_found"] == Tally(2, 2)
    assert found["exit_1_held"] == Tally(1, 2)
    assert found["agreement"] == Tally(3, 4)
    assert found["depth"] == Tally(3 * 1 + 2, 4 * 2)


def test_a_token_leaves_at_the_first_exit_that_lets_it() -> None:
    """A second exit, here the last state itself, gets only what the first held back."""
    batch = _literal_batch()
    three = replace(batch, states=[*batch.states, batch.states[2]])
    right = Exits({}, {layer: nn.Linear(2, 1) for layer in (1, 2)}).agreements(three)
    scores = {1: torch.tensor([[1.0, -1.0, -1.0, -1.0, 0.0]]), 2: torch.tensor([[-1.0, 1.0, 1.0, -1.0, 0.0]])}
    found = exit_yardsticks(scores, three, right)
    assert found["agreement"] == Tally(4, 4)
    assert found["depth"] == Tally(1 + 2 + 2 + 3, 12)


def _texts(naive: Naive) -> list[list[int]]:
    return [[*prompt_of(6, seed), *autoregressive(naive, prompt_of(6, seed), 40)] for seed in range(12)]


def test_training_lowers_the_loss_and_teaches_where_to_leave(tmp_path: Path) -> None:
    """Trained classifiers tell agreement better than by chance, and run from the folder they were saved to."""
    models = pair("llama")
    method = EarlyExit(confidence="classifier", min_exit=1)
    batch = batch_of(models.naive, _texts(models.naive))
    module = untrained(method, models.target)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-2)
    losses = []
    for _ in range(150):
        loss = method.loss(module, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    found = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert min(found[f"exit_{layer}_found"] + found[f"exit_{layer}_held"] for layer in range(1, LAYERS)) > 1.2
    assert isinstance(module, Exits)
    right = {1: module.agreements(batch)[1]}
    careless = exit_yardsticks({1: torch.ones(batch.tokens.shape)}, batch, right)["agreement"].share
    assert found["agreement"] > careless + 0.2 and found["depth"] < 1.0
    save_modules(tmp_path, module, facts_of("early_exit", method, models.target))
    trained = build(f"early_exit[confidence=classifier,min_exit=1,threshold=0.5,modules={tmp_path}]")
    trained.prepare(models.target)


def test_the_loss_needs_no_value_of_its_tensors() -> None:
    """What a training would cost is estimated on shapes alone."""
    method = EarlyExit(confidence="classifier")
    module = untrained(method, pair("llama").target)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert method.loss(module, batch_of(pair("llama").naive, [[5, 6, 7, 8]])).shape == ()


def test_each_exit_has_its_own_classifier() -> None:
    info = pair("llama").target.info
    head = pair("llama").target.lm_head.weight
    module = EarlyExit(confidence="classifier").build(info, head)
    assert {name: tuple(weight.shape) for name, weight in module.named_parameters()} == {
        "classifier.2.weight": (1, 32),
        "classifier.2.bias": (1,),
        "classifier.3.weight": (1, 32),
        "classifier.3.bias": (1,),
    }


def test_what_has_nothing_to_train_says_what_has() -> None:
    target = pair("llama").target
    assert [EarlyExit(confidence=name).needs_modules for name in ("softmax_gap", "classifier")] == [False, True]
    with pytest.raises(
        UserError, match=r"confidence=softmax_gap has nothing to train; early_exit\[head=trained\] and early_exit"
    ):
        EarlyExit().build(target.info, target.lm_head.weight)
    with pytest.raises(UserError, match="exit 9 is not below the target's 4 layers"):
        EarlyExit(confidence="classifier", exits="9").build(target.info, target.lm_head.weight)
    with pytest.raises(ValueError, match="confidence=softmax_max has no modules"):
        EarlyExit(confidence="softmax_max", modules="somewhere")
