"""Training the accelerated stream: its pass over texts is the one that decodes, its loss is learnt, exits are even."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles import autoregressive
from runs import NEW_TOKENS, Pair, answer, pair, prompt_of
from target_batches import batch_of, learn
from tiny import FAMILIES
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from two_streams import accelerated_states, exit_states
from untrained import facts_of, untrained

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.modules.exits import CE_SHARE
from benchctl.decoding.modules.trainable import save_modules
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.m2r2.gates import Interval, intervals_between
from benchctl.methods.m2r2.training import (
    COSINE_SHARE,
    Trajectories,
    TwoStreams,
    slow_state,
)
from benchctl.registry import build

KINDS = ("lora", "bottleneck", "hybrid")


def streams_of(method: M2R2, models: Pair) -> TwoStreams:
    module = untrained(method, models.target)
    assert isinstance(module, TwoStreams)
    return module


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral_window", "llama_biases"])
def test_the_pass_over_whole_texts_gives_the_states_of_the_definition(family: str, kind: str) -> None:
    """At every token of texts of different lengths, for a float32 batch to seven digits of its states' size."""
    models, method = pair(family), M2R2(gates="1+3", adapters=kind, rank=5, alpha=7.0)
    module, texts = streams_of(method, models), [prompt_of(9), prompt_of(4, 1)]
    trajectories = Trajectories(module, batch_of(models.naive, texts))
    with torch.no_grad():
        for interval in module.intervals:
            trail = torch.stack(trajectories.along(interval), 2)
            for row, text in enumerate(texts):
                for at in range(len(text)):
                    expected = accelerated_states(models.naive, module, text[: at + 1], interval.first, interval.gate)
                    torch.testing.assert_close(trail[row, at].double(), expected, rtol=1e-4, atol=1e-4)


def test_the_trajectory_reaches_the_last_layer_at_each_gate() -> None:
    """R_k = (N - E_{k-1}) / (E_k - E_{k-1}); the example of the docstring, and a fixed rate, which ends there too."""
    first, second = intervals_between((4, 8), 16)
    assert (first, second) == (Interval(0, 4, 16), Interval(4, 8, 16))
    assert [first.reaches(layer) for layer in (1, 2, 3, 4)] == [4, 8, 12, 16]
    assert [second.reaches(layer) for layer in (5, 6, 7, 8)] == [7, 10, 13, 16]
    assert [Interval(4, 12, 16, 2.0).reaches(layer) for layer in (5, 8, 10, 12)] == [6, 12, 16, 16]


def test_between_two_layers_the_trajectory_is_their_mean_by_nearness() -> None:
    states = [torch.tensor([0.0]), torch.tensor([10.0]), torch.tensor([30.0])]
    assert [float(slow_state(states, depth)) for depth in (0, 1, 1.25, 2)] == [0, 10, 15, 30]


def _logits(models: Pair, states: Tensor) -> Tensor:
    return models.naive.logits(states)


@torch.no_grad()
def test_the_loss_is_the_sum_over_gates_of_divergence_cross_entropy_and_cosine() -> None:
    """By hand, from full recomputation, for the last two tokens; the first one's successor has no weight."""
    models, method = pair("llama"), M2R2(gates="1+3")
    module, text, weights = streams_of(method, models), [5, 6, 7, 8], [1.0, 0.0, 1.0, 0.5]
    batch = batch_of(models.naive, [text], [weights])
    expected = torch.zeros((), dtype=torch.float64)
    for at in (1, 2):
        seen, states = text[: at + 1], models.naive.last_states(text[: at + 1])
        final = _logits(models, states[-1]).log_softmax(-1)
        for interval in module.intervals:
            trail = accelerated_states(models.naive, module, seen, interval.first, interval.gate)
            exits = (
                _logits(models, trail[-1]),
                models.model.lm_head(exit_states(models.naive, module, seen, interval.gate)),
            )
            loss = torch.zeros((), dtype=torch.float64)
            for logits in exits:
                said = logits.log_softmax(-1)
                loss += (final.exp() * (final - said)).sum() - CE_SHARE * said[text[at + 1]]
            passed = range(interval.first + 1, interval.gate + 1)
            wanted = [slow_state(list(states.double()), interval.reaches(layer)) for layer in passed]
            cosines = [F.cosine_similarity(p, h.double(), dim=0) for p, h in zip(trail[1:], wanted, strict=True)]
            expected += weights[at + 1] * (loss + COSINE_SHARE * (1 - torch.stack(cosines).mean()))
    torch.testing.assert_close(method.loss(module, batch).double(), expected, rtol=1e-4, atol=1e-4)


def test_the_loss_needs_no_value_of_its_tensors() -> None:
    """What a training would cost is estimated on shapes alone."""
    batch, method = batch_of(pair("llama").naive, [[5, 6, 7, 8]]), M2R2()
    module = untrained(method, pair("llama").target)
    assert method.loss(module, batch).isfinite()  # reads the layers, which fake tensors cannot
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert method.loss(module, batch).shape == ()


def test_every_adapter_and_exit_learns() -> None:
    """Even those that start as zero get a gradient, or what feeds them does; the slow stream gets none."""
    models = pair("llama")
    batch = batch_of(models.naive, [prompt_of(12)])
    for kind in KINDS:
        method = M2R2(gates="1+3", adapters=kind)
        module = untrained(method, models.target)
        method.loss(module, batch).backward()
        assert all(weight.grad is not None and weight.grad.any() for weight in module.parameters())
    assert all(weight.grad is None for weight in models.model.parameters())


@pytest.mark.parametrize("family", [*FAMILIES, "mistral_window"])
def test_the_adapters_of_every_family_learn(family: str) -> None:
    """Norms of queries (Qwen3, OLMoE) were written over before the backward pass had read what they were given."""
    models, method = pair(family), M2R2(gates="1+3")
    module = untrained(method, models.target)
    method.loss(module, batch_of(models.naive, [prompt_of(12)])).backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in module.parameters())


def test_an_exit_has_as_many_parameters_as_the_adapters_of_its_interval() -> None:
    for kind in KINDS:
        method = M2R2(gates="1+3", rank=8, adapters=kind)
        module = streams_of(method, pair("llama"))
        for interval in module.intervals:
            below = [module.adapter(layer) for layer in range(interval.first + 1, interval.gate + 1)]
            adapters = sum(weight.numel() for adapter in below for weight in adapter.parameters())
            found = sum(weight.numel() for weight in module.exit(interval.gate).parameters())
            assert abs(found - adapters) <= pair("llama").target.info.hidden_size


@torch.no_grad()
def test_yardsticks_compare_streams_with_the_last_layer() -> None:
    models, method, text = pair("llama"), M2R2(gates="1+3"), prompt_of(20)
    module = streams_of(method, models)
    found = method.yardsticks(module, batch_of(models.naive, [text]))
    slow = models.naive.states(text)[:, :-1]
    final = _logits(models, slow[-1]).argmax(-1)
    for interval in module.intervals:
        prefixes = [text[: at + 1] for at in range(len(text) - 1)]
        trails = [accelerated_states(models.naive, module, seen, interval.first, interval.gate) for seen in prefixes]
        trail = torch.stack(trails, 1)
        exits = torch.stack([exit_states(models.naive, module, seen, interval.gate) for seen in prefixes])
        agree = {
            "slow": _logits(models, slow[interval.gate]).argmax(-1) == final,
            "accelerated": _logits(models, trail[-1]).argmax(-1) == final,
            "exit": models.model.lm_head(exits).argmax(-1) == final,
        }
        for name, right in agree.items():
            assert found[f"gate_{interval.gate}_{name}"].right == pytest.approx(float(right.sum()))
            assert found[f"gate_{interval.gate}_{name}"].of == len(text) - 1
        for layer in range(interval.first + 1, interval.gate + 1):
            state = trail[layer - interval.first]
            wanted = slow_state(list(slow), interval.reaches(layer)).double()
            cosines = {
                "slow": F.cosine_similarity(slow[layer], slow[-1], dim=-1),
                "accelerated": F.cosine_similarity(state, slow[-1], dim=-1),
                "target": F.cosine_similarity(state, wanted, dim=-1),
            }
            for name, cosine in cosines.items():
                assert found[f"cosine_{layer}_{name}"].share == pytest.approx(float(cosine.mean()), abs=1e-5)


def _texts(models: Pair, count: int) -> list[list[int]]:
    return [[*prompt_of(6, seed), *autoregressive(models.naive, prompt_of(6, seed), 40)] for seed in range(count)]


@pytest.mark.slow
def test_training_lowers_the_loss_and_the_trained_stream_drafts_better_than_the_slow_state(tmp_path: Path) -> None:
    models, method = pair("llama"), M2R2(gates="1+2")
    batch = batch_of(models.naive, _texts(models, 12))
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    losses = learn(method, module, batch, 60)
    shares = {name: tally.share for name, tally in method.yardsticks(module, batch).items()}
    assert losses[-1] < 0.5 * losses[0]
    assert shares["gate_1_accelerated"] > shares["gate_1_slow"] + 0.2
    assert shares["cosine_2_target"] > shares["cosine_2_slow"]
    save_modules(tmp_path / "trained", module, facts_of("m2r2", method, models.target, yardsticks=shares))
    steps = {}
    for source in ("accelerated", "slow"):
        trained = build(f"m2r2[modules={tmp_path / 'trained'},gates=1+2,source={source}]")
        trained.prepare(models.target)
        found = [decode(trained, models.target, DecodeRequest(prompt_of(6, seed), NEW_TOKENS)) for seed in range(4)]
        assert [list(one.token_ids) for one in found] == [answer("llama", 0, 6)] + [
            list(o.token_ids) for o in found[1:]
        ]
        steps[source] = sum(len(one.steps) for one in found)
    assert steps["accelerated"] < 0.8 * steps["slow"]
