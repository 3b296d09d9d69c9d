"""mixture_of_depths: who goes around which block, against one pass over the whole text; and how that is learnt."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fixtures_training import BATCHES, COMMON, done, with_target
from plain_depths import (
    Plan,
    assert_one_pass,
    divergence,
    plan_of_routers,
    planned_states,
    router_says,
    said_by,
    with_adapters,
)
from runs import LAYERS, MODELS, Pair, pair, prompt_of, run
from target_batches import answered, batch_of, learn
from tiny_training import CountingRows, TinyModule, TinyObjective, tiny_settings
from torch import Tensor, nn
from untrained import untrained, untrained_as

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.adapters import distil_losses
from benchctl.decoding.modules.folders import read_facts
from benchctl.decoding.modules.losses import CE_SHARE
from benchctl.decoding.modules.trainable import TrainingBatch
from benchctl.methods.mixture_of_depths import MixtureOfDepths, bound_of
from benchctl.methods.mixture_of_depths.routers import RoutedDepth, most_weighty, routed_blocks, routed_texts
from benchctl.registry import build
from benchctl.training.modules.frozen import BatchMaker, ModuleObjective
from benchctl.training.trainer import Data, Trainer

NAME = "mixture_of_depths"


def fresh(method: MixtureOfDepths, models: Pair) -> RoutedDepth:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = method.build(models.target.info, models.target.lm_head.weight)
    assert isinstance(module, RoutedDepth)
    return module


def truth(models: Pair, threshold: float) -> tuple[Any, Plan]:
    """Transformers' model with the adapters of the untrained module, and who passes by its predictors."""
    module = untrained_as(RoutedDepth, MixtureOfDepths(), models.target).double()
    return with_adapters(models.model, module.adapters), plan_of_routers(dict(module.routers.state_dict()), threshold)


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("prompt_tokens", [1, 13])
def test_tokens_layers_logits_and_cache_are_those_of_one_pass_over_the_text(
    monkeypatch: pytest.MonkeyPatch, prompt_tokens: int, threshold: float, family: str, seed: int
) -> None:
    models, prompt = pair(family, seed), prompt_of(prompt_tokens, seed)
    model, plan = truth(models, threshold)
    label = f"{NAME}[threshold={threshold}]"
    layers = assert_one_pass(monkeypatch, label, models.target, prompt, model, lambda tokens: plan)
    assert prompt_tokens == 1 or len(set(layers)) > 1


def test_at_nought_every_token_passes_and_at_one_none_does() -> None:
    target = pair("llama").target
    for threshold, layers in ((0, 4), (1, 2)):
        assert set(run(f"{NAME}[threshold={threshold}]", target, prompt_of(13), 20).layers) == {layers}
    assert [bound_of(chance) for chance in (0, 0.5, 1)] == [-math.inf, 0, math.inf]
    assert bound_of(0.9) == pytest.approx(math.log(9))


def test_the_most_weighty_of_the_docstring() -> None:
    weights, real = torch.tensor([[3.0, 1.0, 2.0, 5.0]]), torch.tensor([[True, True, True, False]])
    for share, expected in ((0.5, [0, 2]), (1.0, [0, 1, 2]), (0.01, [0]), (0.4, [0])):
        assert most_weighty(weights, real, torch.tensor(share))[0].nonzero().flatten().tolist() == expected
    assert not most_weighty(weights, real & False, torch.tensor(1.0)).any()
    rows = torch.tensor([[9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]])  # each has its own
    chosen = most_weighty(rows, torch.ones(2, 4, dtype=torch.bool), torch.tensor(0.5))
    assert chosen.tolist() == [[True, True, False, False], [False, False, True, True]]


def test_capacity_falls_from_all_tokens_in_the_first_half_of_training() -> None:
    module = fresh(MixtureOfDepths(capacity=0.2), pair("llama"))
    shares = []
    for progress in (0.0, 0.125, 0.25, 0.5, 0.9):
        MixtureOfDepths(capacity=0.2).pace(module, progress)
        shares.append(float(module.share()))
    assert shares == pytest.approx([1, 0.8, 0.6, 0.2, 0.2])
    module.pace(0.0)
    assert float(module.eval().share()) == pytest.approx(0.2)


def test_the_trainer_tells_how_far_it_is_before_each_step(tmp_path: Path) -> None:
    told: list[float] = []

    class Pacing(TinyObjective):
        def pace(self, module: nn.Module, progress: float) -> None:
            told.append(progress)

    data = Data([CountingRows(8), CountingRows(16)], {}, torch.ones(13, dtype=torch.int64))
    Trainer(TinyModule(), Pacing(), data, tiny_settings(steps=4), tmp_path, lambda: 0.0).train()
    assert told == [0, 0.25, 0.5, 0.75]


def test_the_objective_of_a_method_tells_the_method() -> None:
    models, method = pair("llama"), MixtureOfDepths(capacity=0.2)
    module = fresh(method, models)
    ModuleObjective(method, BatchMaker(models.model, torch.device("cpu"))).pace(module, 0.25)
    assert float(module.taken) == pytest.approx(0.6)


@torch.no_grad()
def test_at_capacity_one_the_fresh_modules_are_the_target() -> None:
    models = pair("llama")
    module = fresh(MixtureOfDepths(), models)
    module.pace(0.0)
    batch = batch_of(models.naive, [prompt_of(9), prompt_of(5, 1)])
    torch.testing.assert_close(routed_texts(module, batch).state[0], batch.states[-1][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(routed_texts(module, batch).state[1, :5], batch.states[-1][1, :5], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_loss_is_divergence_and_the_cross_entropy_of_the_predictors() -> None:
    """By hand, from one pass over the text in which the half of most weight passes each routed block."""
    models, text, weights = pair("llama"), prompt_of(8), [0.0, 0.3, 1, 1, 1, 0.5, 1, 1]
    method = MixtureOfDepths(capacity=0.5)
    module = untrained_as(RoutedDepth, method, models.target)
    batch = batch_of(models.naive, [text, text[:3]], [weights, [0.0] * 3])
    parts, errors = [], []
    model = with_adapters(models.model, module.adapters.double())
    routers = dict(module.routers.state_dict())

    def plan(index: int, states: Tensor) -> tuple[Tensor, Tensor]:
        if index not in routed_blocks(LAYERS):
            return torch.ones(len(states), dtype=torch.bool), torch.ones(len(states), dtype=torch.float64)
        scores, shares = router_says(routers, index, states)
        chosen = shares >= shares.sort(descending=True).values[round(0.5 * len(states)) - 1]
        errors.append(F.binary_cross_entropy_with_logits(scores, chosen.double(), reduction="sum"))
        return chosen, shares

    final = said_by(models.model, models.naive.states(text))
    said = said_by(model, planned_states(model, text, plan))
    planned_states(model, text[:3], plan)
    for at in range(7):
        parts.append(weights[at + 1] * divergence(model, final[at], said[at], text[at + 1], CE_SHARE))
    assert len(errors) == 4
    foreseen = torch.stack(errors).sum() / 2 / 11
    expected = torch.stack(parts).sum() + foreseen * sum(weights)
    module.float()
    torch.testing.assert_close(method.loss(module, batch).double(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_yardsticks_are_those_of_what_is_decoded() -> None:
    models, text, threshold = pair("llama"), prompt_of(12), 0.6
    method = MixtureOfDepths(threshold=threshold)
    found = method.yardsticks(untrained(method, models.target).eval(), batch_of(models.naive, [text]))
    model, plan = truth(models, threshold)
    states = planned_states(model, text, plan)
    final, said = said_by(models.model, models.naive.states(text)), said_by(model, states)
    assert found["agreement"].right == float((final.argmax(-1) == said.argmax(-1))[:11].sum())
    assert (found["depth"].right, found["depth"].of) == (
        sum(int(plan(i, states[i])[0][:11].sum()) for i in range(LAYERS)),
        44,
    )
    for index in routed_blocks(LAYERS):
        passed, shares = plan(index, states[index])
        among = shares >= shares.sort(descending=True).values[1]  # 0.125 of 12 tokens: two
        assert found[f"block_{index + 1}_passed"].right == float(passed.sum())
        assert found[f"block_{index + 1}_foreseen"].right == float((passed == among).sum())


def test_the_predictors_learn_from_their_cross_entropy_alone_and_teach_nothing_else() -> None:
    models, method = pair("llama"), MixtureOfDepths(capacity=0.5)
    batch = batch_of(models.naive, [prompt_of(12)])
    whole, without = (untrained_as(RoutedDepth, method, models.target) for _ in range(2))
    method.loss(whole, batch).backward()
    divergences = distil_losses(batch, routed_texts(without, batch).state)
    (divergences * batch.ahead(1).weights).sum().backward()  # type: ignore[no-untyped-call]
    others = dict(without.named_parameters())
    for name, weight in whole.named_parameters():
        other = others[name].grad
        assert weight.grad is not None and weight.grad.any(), name
        assert (other is None) == ("foresee" in name)
        assert other is None or torch.allclose(weight.grad, other, rtol=1e-5)
    assert all(weight.grad is None for weight in models.model.parameters())


@pytest.mark.slow
def test_training_lowers_the_loss_and_the_predictors_foresee_who_is_chosen() -> None:
    """Capacity falls meanwhile, so the loss is compared at the same capacity, that of decoding."""
    models, method = pair("llama"), MixtureOfDepths(capacity=0.25, threshold=0.5)
    batch = batch_of(models.naive, answered(models.naive, 12))
    module = fresh(method, models)
    with torch.no_grad():
        before = float(method.loss(module.eval(), batch))
    module.train()
    steps = count()

    def paced(module: nn.Module, batch: TrainingBatch) -> Tensor:
        method.pace(module, next(steps) / 80)
        loss: Tensor = method.loss(module, batch)
        return loss

    learn(paced, module, batch, 80)
    with torch.no_grad():
        after = float(method.loss(module.eval(), batch))
        shares = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert after < 0.6 * before
    assert shares["agreement"] > 0.8 and shares["depth"] < 0.7
    for number in (2, 4):
        assert shares[f"block_{number}_foreseen"] > 0.82
        assert 0.1 < shares[f"block_{number}_passed"] < 0.4


# A predictor that has hardly learnt anything yet gives every token a chance of 0.7.
@pytest.mark.parametrize(
    "label", ["mixture_of_depths[rank=4,capacity=0.5,threshold=0.95]", "skip_decode[rank=4,fall_tokens=16]"]
)
def test_the_command_line_trains_what_decoding_then_runs(tmp_path: Path, label: str) -> None:
    """From records as they are, in packed rows of several documents."""
    words = (*with_target(tmp_path, layers=4), "--out", tmp_path / "made")
    told = done("train", label, *words, "--self-distil", 0, "--steps", 4, *BATCHES, *COMMON)
    name = label.partition("[")[0]
    assert f"--method '{name}[modules={tmp_path / 'made'}," in told
    target = Target.load(tmp_path / "target")
    method = build(f"{label[:-1]},modules={tmp_path / 'made'}]")
    method.prepare(target)
    found = decode(method, target, DecodeRequest(prompt_of(9), 12))
    assert len(found.layers) == len(found.token_ids) and min(found.layers) < 4
    shares = read_facts(str(tmp_path / "made")).yardsticks
    assert 0 < shares["agreement"] <= 1 and 0.5 <= shares["depth"] < 1
