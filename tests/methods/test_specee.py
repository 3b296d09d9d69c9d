"""SpecEE leaves where a naive plan says: from residuals of full recomputation, and the modules' weights in algebra."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from oracles import ExitRule, Naive, exit_answer
from runs import FIRST_FAST, NEW_TOKENS, pair, prepared, prompt_of
from target_batches import answered, batch_of, learn
from torch import Tensor
from untrained import untrained_folder

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.methods.specee import SpecEE
from benchctl.methods.specee.guided import Guided
from benchctl.registry import build


@dataclass(frozen=True)
class Predicted(ExitRule):
    """Leave where the predictor gives at least ``threshold`` and the likeliest token is one of four drafted ones."""

    module: Guided | None = None
    guide: int = 1
    asks_always: bool = False

    def drafted(self, naive: Naive, states: Tensor) -> list[int]:
        assert self.module is not None
        exit, norm, state = self.module.guide.exits.of(self.guide), naive.model.model.norm, states[self.guide]
        inner = exit.change.down.weight @ norm(state)
        changed = state + 4.0 * (exit.change.up.weight @ (inner * inner.sigmoid()))
        logits: list[float] = (naive.model.lm_head.weight @ (cast(Tensor, exit.gain) * norm(changed))).tolist()
        return sorted(range(len(logits)), key=lambda token: -logits[token])[:4]

    def seen(self, naive: Naive, states: Tensor) -> dict[int, list[float]]:
        """The twelve features at each exit."""
        drafted, before, seen = self.drafted(naive, states), [0.0] * 4, dict[int, list[float]]()
        for layer in self.layers:
            logits = naive.logits(states[layer])[drafted]
            probs = (logits.exp() / logits.exp().sum()).tolist()
            changes = [new - old for new, old in zip(probs, before, strict=True)] if seen else [0.0] * 4
            seen[layer], before = [*logits.tolist(), *probs, *changes], probs
        return seen

    def sure(self, layer: int, features: list[float]) -> bool:
        if self.asks_always:
            return True
        assert self.module is not None
        first, _, last = cast(Sequence[Any], self.module.predictor.of(layer))
        inner = (first.weight @ torch.tensor(features, dtype=torch.float64) + first.bias).clamp(min=0)
        return float((last.weight @ inner + last.bias).sigmoid()) >= self.threshold

    def choose(self, naive: Naive, text: Sequence[int], depths: Sequence[int] | None = None) -> tuple[int, int]:
        states = naive.last_states(text, None if depths is None else [*depths, naive.layers])
        drafted = self.drafted(naive, states)
        for layer, features in self.seen(naive, states).items():
            token = int(naive.logits(states[layer]).argmax())
            if token in drafted and self.sure(layer, features):
                return token, layer
        return int(naive.logits(states[-1]).argmax()), naive.layers


def rule_of(method: SpecEE, guide: int, layers: tuple[int, ...]) -> Predicted:
    asks_always = method.predictor == "none"
    return Predicted(layers, threshold=method.threshold, module=method._module, guide=guide, asks_always=asks_always)


@pytest.mark.parametrize("kv_policy", ["propagate", "deferred_exact"])
@pytest.mark.parametrize(
    ("options", "guide", "layers"),
    [
        ("threshold=0.5", 1, (2, 3)),
        ("threshold=0.8", 1, (2, 3)),
        ("exits=3,guide=2", 2, (3,)),
        ("predictor=none", 1, (2, 3)),
    ],
)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_tokens_leave_where_the_plan_says(
    family: str, seed: int, options: str, guide: int, layers: tuple[int, ...], kv_policy: str
) -> None:
    models = pair(family, seed)
    method = cast(SpecEE, prepared(f"specee[{options},kv_policy={kv_policy}]", models.target))
    exits = set[int]()
    for tokens in (13, 1):
        prompt = prompt_of(tokens, seed)
        got = decode(method, models.target, DecodeRequest(prompt, NEW_TOKENS))
        plan = exit_answer(models.naive, prompt, NEW_TOKENS, rule_of(method, guide, layers), kv_policy == "propagate")
        assert list(got.token_ids) == plan.tokens
        assert list(got.layers) == plan.ran
        exits.update(plan.exits)
    assert len(exits) > 1 or family != "llama"


def test_training_sees_what_decoding_sees() -> None:
    """Features, labels and drafted tokens of a batch are those of the plan, token by token."""
    models = pair("llama")
    method = cast(SpecEE, prepared("specee", models.target))
    rule, text = rule_of(method, 1, (2, 3)), answered(models.naive, 1, 12)[0]
    looks = copy.deepcopy(method._module).float().looks(batch_of(models.naive, [text]))
    assert list(looks) == [2, 3]
    for at in range(len(text)):
        states = models.naive.last_states(text[: at + 1])
        drafted = rule.drafted(models.naive, states)
        last = int(models.naive.logits(states[-1]).argmax())
        for layer, features in rule.seen(models.naive, states).items():
            torch.testing.assert_close(looks[layer][0, at].double(), torch.tensor(features).double(), atol=1e-4, rtol=0)
            token = int(models.naive.logits(states[layer]).argmax())
            assert bool(looks.agrees[layer][0, at]) == (token == last)
            assert bool(looks.named[layer][0, at]) == (token in drafted)


def fresh(label: str) -> tuple[SpecEE, Guided]:
    method, target = cast(SpecEE, build(label)), pair("llama").target
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return method, method.build(target.info, target.lm_head.weight.float())


def test_drafter_and_predictors_are_trained_one_after_the_other() -> None:
    batch = batch_of(pair("llama").naive, answered(pair("llama").naive, 6))
    method, module = fresh("specee[predictor=none]")
    assert not module.predictor
    before = method.yardsticks(module, batch)["guide_top4"].share
    losses = learn(method.loss, module, batch, 40)
    assert losses[-1] < losses[0]
    assert method.yardsticks(module, batch)["guide_top4"].share > before
    second, both = fresh("specee")
    both.load_state_dict(module.state_dict(), strict=False)
    assert {name.split(".")[0] for name, weight in both.named_parameters() if weight.requires_grad} == {"predictor"}
    losses = learn(second.loss, both, batch, 60)
    assert losses[-1] < losses[0]
    measured = second.yardsticks(both, batch)
    assert measured["depth"].share < 1
    assert measured["agreement"].share > 0.5


def test_without_a_choice_the_exits_are_those_of_the_modules(tmp_path: Path) -> None:
    target = pair("llama").target
    folder = untrained_folder("specee[exits=3]", build("specee[exits=3]"), target)
    method = cast(SpecEE, build(f"specee[modules={folder}]"))
    method.prepare(target)
    assert method.exit_layers(target) == (3,)


def test_exits_lie_above_the_guide_and_below_the_last_layer() -> None:
    info = pair("llama").target.info
    assert "3" in str(build("specee").unsupported(replace(info, vocabulary=3)))
    for options in ("guide=2,exits=2", "exits=4", "guide=3", "exits=1"):
        assert build(f"specee[{options}]").unsupported(info) is not None
    assert build("specee").unsupported(info) is None
