"""Trained exits, of early_exit and of DEED: they say what their definition says, learn, and are used as they were."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles import ExitRule, Naive, exit_answer, exit_drafter, replay
from runs import LAYERS, MODELS, NEW_TOKENS, Pair, answer, generate, pair, prepared, prompt_of, rounds_of, run
from target_batches import answered, batch_of, learn
from tiny import tiny_model
from torch import Tensor, nn
from untrained import facts_of, untrained_as

from benchctl.decoding.method import Method
from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.exits import ExitHead, ExitModule, Exits, decayed
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.losses import CE_SHARE, balanced_loss, exit_losses, exit_yardsticks
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch
from benchctl.methods.deed import Deed
from benchctl.methods.early_exit import EarlyExit
from benchctl.registry import build

# Label without threshold and policy, and by what it is confident.
POLICIES = (
    ("early_exit[head=trained,rank=5", "softmax_gap"),
    ("early_exit[head=trained,exits=1+3,confidence=softmax_max", "softmax_max"),
    ("early_exit[head=trained,exits=1+3,confidence=state_cosine", "state_cosine"),
    ("early_exit[head=trained,exits=1+3,confidence=classifier", "classifier"),
    ("early_exit[exits=1+3,confidence=classifier", "classifier"),
    ("deed[rank=5", "softmax_max"),
)
THRESHOLDS = {"softmax_gap": 0.2, "softmax_max": 0.4, "state_cosine": 0.7, "classifier": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("label", "confidence"), POLICIES)
def test_exits_are_those_of_the_plain_rule(label: str, confidence: str, family: str, seed: int, tmp_path: Path) -> None:
    """By full recomputation: what leaves, where, and what later tokens see of it."""
    models, module, left = pair(family, seed), noisy_exits(f"{label}]", pair(family, seed)), set[int]()
    for share in (0.6, 1.0, 1.4):
        threshold = share * THRESHOLDS[confidence]
        policies = ("deferred_exact",) if label.startswith("deed") else ("propagate", "deferred_exact")
        for policy in policies:
            option = "" if len(policies) == 1 else f",kv_policy={policy}"
            method = with_modules(f"{label},threshold={threshold}{option}]", models, module, tmp_path)
            got = generate(method, models, prompt_of(13, seed))
            rule = rule_of(models.naive, module, confidence, threshold)
            expected = exit_answer(models.naive, prompt_of(13, seed), NEW_TOKENS, rule, policy == "propagate")
            assert (list(got.token_ids), list(got.layers)) == (expected.tokens, expected.ran)
            left |= set(expected.exits[1:])
    assert len(left) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("label", "confidence"), POLICIES)
def test_drafts_take_the_steps_of_replay(label: str, confidence: str, family: str, seed: int, tmp_path: Path) -> None:
    models, text = pair(family, seed), answer(family, seed, 13)
    module = noisy_exits(f"{label}]", models)
    for share in (0.5, 1.0):
        threshold = share * THRESHOLDS[confidence]
        method = with_modules(f"{label},threshold={threshold},mode=draft]", models, module, tmp_path)
        got = generate(method, models, prompt_of(13, seed))
        drafter = exit_drafter(models.naive, rule_of(models.naive, module, confidence, threshold), 4)
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay(prompt_of(13, seed), text, len(text), drafter)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma", "olmoe"])
@pytest.mark.parametrize("label", ["early_exit[head=trained]", "deed"])
def test_an_exit_says_the_same_in_decoding_in_training_and_in_plain_algebra(label: str, family: str) -> None:
    models, module = pair(family), noisy_exits(label, pair(family))
    text = prompt_of(9)
    states, batch = models.naive.states(text), batch_of(models.naive, [text])
    for layer in module.layers:
        expected = torch.stack([speaker(models.naive, module)(layer, state) for state in states[layer]])
        said = module.heads(models.target.final_norm, models.target.lm_head)[layer](states[layer])
        torch.testing.assert_close(said, expected, rtol=1e-9, atol=1e-9)
        learnt = batch.head(module.float().normed(batch, layer))[0].double()
        torch.testing.assert_close(learnt, expected, rtol=1e-4, atol=1e-4)
        module.double()


@torch.inference_mode()
def test_an_exit_in_half_precision_keeps_to_what_it_says_in_double() -> None:
    """Its gain is multiplied into the norm's, which Gemma keeps in float32."""
    double, half = (Target(tiny_model("gemma", dtype=dtype), None) for dtype in (torch.float64, torch.bfloat16))
    states = torch.randn(3, double.info.hidden_size, generator=torch.Generator().manual_seed(0))
    trained = ExitModule(double.info.hidden_size, 4, torch.device("cpu"))
    torch.nn.init.normal_(trained.change.up.weight, std=0.1, generator=torch.Generator().manual_seed(1))
    exact = ExitHead(copy.deepcopy(trained).double(), double.final_norm, double.lm_head)(states.double())
    rounded = ExitHead(trained.bfloat16(), half.final_norm, half.lm_head)(states.bfloat16())
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.double() - exact).square().mean().sqrt()) < 0.03 * float(exact.std())


def test_the_decayed_threshold_is_that_of_the_paper() -> None:
    """clip(0.9 lambda + 0.1 exp(-tau t / T)), by hand; the docstring's example among them."""
    assert decayed(0.5, 4, 0, 10) == pytest.approx(0.55)
    assert decayed(0.5, 4, 10, 10) == pytest.approx(0.45 + 0.1 * math.exp(-4)) == pytest.approx(0.4518, abs=1e-4)
    assert decayed(0.8, 4, 5, 20) == pytest.approx(0.72 + 0.1 * math.exp(-1))
    assert decayed(1.0, 4, 0, 10) == 1.0
    assert decayed(0.0, 4, 10, 10) == pytest.approx(0.1 * math.exp(-4))


@pytest.mark.parametrize("base", [0.15, 0.2, 0.25, 0.35])
@pytest.mark.parametrize("draft", [False, True])
def test_the_threshold_decays_with_the_place_in_the_answer(draft: bool, base: float) -> None:
    """A drafted token has the threshold of its own place. Token t is made by the row of the token before it."""
    models, prompt, text = pair("qwen3", 2), prompt_of(13, 2), answer("qwen3", 2, 13)

    def lowered(tokens: int) -> float:
        return 0.9 * base + 0.1 * math.exp(-9 * (tokens - len(prompt)) / NEW_TOKENS)

    rule = ExitRule((1, 2, 3), "softmax_max", lowered=lowered)
    label = f"early_exit[exits=1+2+3,confidence=softmax_max,threshold={base},decay=9{',mode=draft' if draft else ''}]"
    got = run(label, models.target, prompt, NEW_TOKENS)
    constant = replace(rule, lowered=None, threshold=base)
    if draft:
        steps = replay(prompt, text, len(text), exit_drafter(models.naive, rule, 4))
        assert (list(got.token_ids), rounds_of(got)) == (text, steps)
        return
    expected = exit_answer(models.naive, prompt, NEW_TOKENS, rule, propagate=True)
    assert (list(got.token_ids), list(got.layers)) == (expected.tokens, expected.ran)
    assert base != 0.25 or exit_answer(models.naive, prompt, NEW_TOKENS, constant, True).exits != expected.exits


def _by_hand(models: Pair, module: Exits, text: list[int], weights: list[float]) -> dict[int, Tensor]:
    """For each exit the loss of a text, token by token."""
    states, speak = models.naive.states(text), speaker(models.naive, module)
    losses = {layer: torch.zeros((), dtype=torch.float64) for layer in module.layers}
    for at in range(len(text) - 1):
        final = models.naive.logits(states[-1, at]).log_softmax(-1)
        for layer in losses:
            said = speak(layer, states[layer, at]).log_softmax(-1)
            loss = (final.exp() * (final - said)).sum() - CE_SHARE * said[text[at + 1]]
            losses[layer] += weights[at + 1] * loss
    return losses


@pytest.mark.parametrize(
    ("label", "shares"),
    [
        ("early_exit[head=trained]", {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}),
        ("deed[exits=1+3]", {1: 1 / 2, 3: 1 / 2}),  # its loss but for scale and constants
    ],
)
def test_the_loss_is_a_mean_over_exits(label: str, shares: dict[int, float]) -> None:
    models, weights, method = pair("llama"), [float(number % 3) for number in range(20)], build(label)
    assert isinstance(method, EarlyExit | Deed)
    module, batch = noisy_exits(label, models), batch_of(models.naive, [prompt_of(20)], [weights])
    losses = _by_hand(models, module, prompt_of(20), weights)
    expected = torch.stack([share * losses[layer] for layer, share in shares.items()]).sum()
    got = method.loss(module.float(), batch).double()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", [EarlyExit(head="trained", rank=8), Deed(rank=8)], ids=["early_exit", "deed"])
def test_training_lowers_the_loss_and_lifts_agreement_above_the_bare_exits(method: EarlyExit | Deed) -> None:
    """On text that was not learnt from, at every exit."""
    models = pair("llama")
    texts = answered(models.naive, 32)
    batch, held_out = batch_of(models.naive, texts[:24]), batch_of(models.naive, texts[24:])
    module = method.build(models.target.info, models.target.lm_head.weight)
    losses = learn(method.loss, module, batch, 60)
    assert losses[-1] < 0.8 * losses[0]
    found = {name: tally.share for name, tally in method.yardsticks(module, held_out).items()}
    for layer in (1, 2, 3):
        assert found[f"exit_{layer}_top1"] > found[f"exit_{layer}_bare_top1"]
    assert found["exit_1_top1"] > found["exit_1_bare_top1"] + 0.1


def test_yardsticks_of_fresh_modules_are_those_of_the_bare_exits() -> None:
    models = pair("llama")
    method = Deed(exits="1+3")
    module = method.build(models.target.info, models.target.lm_head.weight)
    text = prompt_of(20)
    found = method.yardsticks(module, batch_of(models.naive, [text]))
    states = models.naive.states(text)[:, :-1]
    said = {layer: models.naive.logits(states[layer]).argmax(-1) for layer in (1, 3, LAYERS)}
    for layer in (1, 3):
        right = float((said[layer] == said[LAYERS]).sum())
        for name in ("top1", "bare_top1"):
            assert (found[f"exit_{layer}_{name}"].right, found[f"exit_{layer}_{name}"].of) == (right, 19)


def test_classifiers_of_trained_exits_are_a_second_stage() -> None:
    """Only they learn, and their labels are what the trained exits say, not what the bare ones do."""
    models = pair("llama")
    batch = batch_of(models.naive, answered(models.naive, 4))
    method = EarlyExit(head="trained", confidence="classifier", exits="1+3")
    stage = method.second_stage
    assert stage is not None and (stage.part, stage.needed) == ("classifier", True)
    module = untrained_as(Exits, method, models.target)
    learning = {name for name, weight in module.named_parameters() if weight.requires_grad}
    assert learning == {name for name in module.state_dict() if name.startswith("classifier.")}
    bare = Exits({}, {layer: module.classifier.of(layer) for layer in (1, 3)})
    assert float(method.loss(module, batch).detach()) != pytest.approx(float(method.loss(bare, batch).detach()))
    learn(method.loss, module, batch, 40)
    found = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert min(found[f"exit_{layer}_found"] + found[f"exit_{layer}_held"] for layer in (1, 3)) > 1.1


def test_exits_are_chosen_among_those_trained(tmp_path: Path) -> None:
    """A folder for exits 1 and 3 serves 3 alone, and by default both; 2 it has not learnt."""
    models, target = pair("llama"), pair("llama").target
    for name in ("deed", "early_exit"):
        head = "head=trained," if name == "early_exit" else ""
        label, folder = f"{name}[{head}exits=1+3]", tmp_path / name
        module = noisy_exits(label, models)
        save_modules(folder, module, facts_of(label, build(label), target))
        expected = generate(with_modules(label, models, module, tmp_path / "same"), models, prompt_of(13))
        assert generate(prepared(f"{name}[{head}modules={folder}]", target), models, prompt_of(13)) == expected
        only = generate(prepared(f"{name}[{head}modules={folder},exits=3,threshold=0]", target), models, prompt_of(13))
        assert {layer for step in only.steps for layer in step.layers} == {3}


def test_default_exits_are_those_of_the_papers() -> None:
    """LITE's 8, 12, .. 28 of 32 layers; every layer for DEED; from the middle on for exits that nobody trained."""
    info = replace(pair("llama").target.info, layers=32)
    assert EarlyExit(head="trained").exit_layers(info) == (8, 12, 16, 20, 24, 28)
    assert EarlyExit(head="trained", min_exit=13).exit_layers(info) == (13, 17, 21, 25, 29)
    assert Deed().exit_layers(info) == tuple(range(1, 32))
    assert EarlyExit().exit_layers(info) == tuple(range(16, 32))


def test_either_class_counts_by_the_share_of_the_other() -> None:
    """The example of the docstring: 3 of 4 agree; and a token of weight 0 counts for nothing."""
    agrees = torch.tensor([[True, True, False, True, True]])
    weights = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    scores = torch.tensor([[0.0, 2.0, 1.0, -1.0, 9.0]])
    chance = scores.sigmoid()[0]
    right = -(chance[0].log() + chance[1].log() + chance[3].log()) * 0.25
    wrong = -(1 - chance[2]).log() * 0.75
    torch.testing.assert_close(balanced_loss(scores, agrees, weights), right + wrong)


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


def test_training_lowers_the_loss_and_teaches_where_to_leave() -> None:
    """Trained classifiers tell agreement better than by chance."""
    models = pair("llama")
    method = EarlyExit(confidence="classifier", min_exit=1)
    batch = batch_of(models.naive, answered(models.naive, 12))
    module = untrained_as(Exits, method, models.target)
    losses = learn(method.loss, module, batch, 150, rate=3e-2)
    assert losses[-1] < 0.6 * losses[0]
    found = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert min(found[f"exit_{layer}_found"] + found[f"exit_{layer}_held"] for layer in range(1, LAYERS)) > 1.2
    right = {1: module.agreements(batch)[1]}
    careless = exit_yardsticks({1: torch.ones(batch.tokens.shape)}, batch, right)["agreement"].share
    assert found["agreement"] > careless + 0.2 and found["depth"] < 1.0


ALPHA = 256.0  # the methods' default


def noisy_exits(label: str, models: Pair) -> Exits:
    """Modules of a label, in float64: no change is zero, no gain is one; their loudness makes up for alpha."""
    method = build(label)
    assert isinstance(method, Trainable)
    module = untrained_as(Exits, method, models.target).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for name, weight in module.named_parameters():
        if name.endswith(".up.weight"):
            weight.mul_(weight.shape[1] / ALPHA)
        if name.endswith(".gain"):
            weight.mul_(1 + 0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return module


def with_modules(label: str, models: Pair, module: nn.Module, folder: Path) -> Method:
    """The method of a label, ready, with these modules in a folder."""
    method = build(label)
    save_modules(folder, module, facts_of(label, method, models.target))
    assert isinstance(method, Trainable)
    method.modules = str(folder)
    method.prepare(models.target)
    return method


def speaker(naive: Naive, module: nn.Module) -> Callable[[int, Tensor], Tensor]:
    """Logits [vocabulary] for a layer and the state [width] after it: head(gain * norm(h + a/r U silu(D norm(h))))."""
    weights, norm = {name: value.double() for name, value in module.state_dict().items()}, naive.model.model.norm

    def speak(layer: int, state: Tensor) -> Tensor:
        down, up = (weights[f"exits.{layer}.change.{part}.weight"] for part in ("down", "up"))
        normed = norm(state + ALPHA / len(down) * (up @ F.silu(down @ norm(state))))
        gain = weights.get(f"exits.{layer}.gain", torch.ones_like(normed))
        logits: Tensor = naive.model.lm_head(normed * gain)
        return logits

    return speak


def classifier(module: nn.Module) -> Callable[[int, Tensor], float]:
    """Chance of agreement for a layer and the state [width] after it."""
    weights = {name: value.double() for name, value in module.state_dict().items()}

    def classify(layer: int, state: Tensor) -> float:
        score = weights[f"classifier.{layer}.weight"][0] @ state + weights[f"classifier.{layer}.bias"][0]
        return float(1 / (1 + torch.exp(-score)))

    return classify


def rule_of(naive: Naive, module: Exits, confidence: str, threshold: float) -> ExitRule:
    """Leaving by these modules, in plain algebra."""
    classify = classifier(module) if confidence == "classifier" else None
    return ExitRule(module.layers, confidence, threshold, classify, speaker(naive, module) if module.exits else None)


@pytest.mark.parametrize("ids", [None, [1, 4, 5, 9, 17, 20]])
@pytest.mark.parametrize("distance", [1, 2])
def test_losses_and_gradients_are_those_of_the_formula(ids: list[int] | None, distance: int) -> None:
    """mass * KL(restricted || exit's) + share * cross-entropy, written out with autograd and whole logits."""
    models = pair("llama")
    kept = torch.arange(models.target.vocabulary) if ids is None else torch.tensor(ids)
    batch = batch_of(models.naive, [prompt_of(9), prompt_of(14, 1)], ids=None if ids is None else kept)
    batch.tokens[0, 3:6] = torch.tensor([4, 22, 5])
    exits = [torch.randn_like(batch.final).requires_grad_() for _ in range(2)]
    wanted = batch.head(batch.final).softmax(-1)[..., kept].roll(1 - distance, 1)
    mass = wanted.sum(-1)
    tokens, weights = batch.ahead(distance)
    expected = []
    for state in exits:
        said = batch.head(state)[..., kept].log_softmax(-1)
        divergence = mass * (wanted / mass[..., None] * ((wanted / mass[..., None]).log() - said)).sum(-1)
        places = (tokens[..., None] == kept).int()
        expected.append(divergence - 0.1 * (said * places).sum(-1))
    losses = exit_losses(batch, exits, distance)
    assert losses.shape == (2, *tokens.shape) and not losses[:, weights == 0].any()
    torch.testing.assert_close(losses * weights, (torch.stack(expected) * weights).float(), rtol=1e-4, atol=1e-5)
    theirs = torch.autograd.grad((torch.stack(expected) * weights).sum(), exits)
    mine = torch.autograd.grad((losses * weights).sum(), exits)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("every", [1, 17])
def test_a_loss_over_drawn_tokens_is_that_of_a_vocabulary_of_them_and_the_likeliest(every: int) -> None:
    """All tokens drawn, it is the whole loss; the target's own states have nothing to learn from any draw."""
    models = pair("llama")
    batch = batch_of(models.naive, [prompt_of(9), prompt_of(14, 1)])
    exits, vocabulary = [torch.randn_like(batch.final)], models.target.vocabulary
    drawn = range(0, vocabulary, every)
    sampled = replace(batch, drawn=torch.tensor(drawn), head_rows=lambda ids: lambda x: batch.head(x)[..., ids])
    kept = torch.tensor(sorted({*drawn, *batch.teacher.top_tokens.flatten().tolist()}))
    over = replace(batch, draft_ids=kept, draft_rows=lambda normed: batch.head(normed)[..., kept])
    torch.testing.assert_close(exit_losses(sampled, exits), exit_losses(over, exits))
    assert (len(kept) < vocabulary) == (every > 1)
    if every == 1:
        torch.testing.assert_close(exit_losses(sampled, exits), exit_losses(batch, exits))
    own = batch.final.clone().requires_grad_()
    (pull,) = torch.autograd.grad(exit_losses(sampled, [own], ce_share=0.0).sum(), own)
    assert float(pull.abs().max()) < 1e-6


def test_places_in_a_draft_vocabulary() -> None:
    """The example of the docstring, and back."""
    batch = replace(_literal_batch(), draft_ids=torch.tensor([2, 5, 9]))
    assert batch.places_of(torch.tensor([5, 6, 9, 1, 10])).tolist() == [1, -1, 2, -1, -1]
    assert batch.ids_of(torch.tensor([1, 2])).tolist() == [5, 9]
