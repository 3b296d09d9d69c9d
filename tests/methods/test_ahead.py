"""m2r2_prefetch: the accelerated state is asked which experts come, at the right moment and for the right layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from offloading import recorded_visits
from oracles import autoregressive
from runs import Pair, pair, prepared, prompt_of
from target_batches import answered, batch_of, learn
from tiny import tiny_target
from torch import Tensor
from two_streams import accelerated_states
from untrained import untrained_as

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.m2r2.gates import Interval
from benchctl.methods.m2r2.training import COSINE_SHARE, TwoStreams, slow_state
from benchctl.methods.m2r2_prefetch import M2R2Prefetch, StreamPredictor, coming
from benchctl.registry import build, canonical_label, parse_label

TOP_K = 2
OPTIONS = "gates=1+3,rate=2"


def aot() -> M2R2Prefetch:
    return M2R2Prefetch(gates="1+3", rate=2.0)


@cache
def streams(models: Pair) -> TwoStreams:
    return untrained_as(TwoStreams, aot(), models.target)


def test_each_state_is_asked_for_the_layers_it_newly_stands_for() -> None:
    """The example of the docstring, a second interval, and a state that is carried to the end at once."""
    assert [list(coming(Interval(0, 4, 8, 2.0), layer)) for layer in (1, 2, 3, 4)] == [[1], [2, 3], [4, 5], [6, 7]]
    assert [list(coming(Interval(4, 7, 8, 2.0), layer)) for layer in (5, 6, 7)] == [[5], [6, 7], []]
    assert list(coming(Interval(0, 1, 4), 1)) == [1, 2, 3]


def test_by_default_one_interval_up_to_half_of_the_depth_stands_for_all_layers() -> None:
    assert M2R2Prefetch().intervals(8) == [Interval(0, 4, 8, 2.0)]
    assert M2R2Prefetch(gates="1+3", rate=4.0).intervals(8) == [Interval(0, 1, 8, 4.0), Interval(1, 3, 8, 4.0)]
    assert M2R2().intervals(8) == [Interval(0, 1, 8), Interval(1, 2, 8), Interval(2, 4, 8)]
    info = pair("mixtral", 3).target.info
    assert M2R2Prefetch().unsupported(replace(info, layers=1)) == "gate 1 is not below the target's 1 layers"


def test_only_layers_of_experts_ask_and_are_asked_for() -> None:
    """In an interval over layers 0 .. 3, of which 1, 3 and 5 have experts: what layer 0 could ask for, layer 1 does."""
    blocks = tiny_target("qwen3_moe_every_second", layers=6).blocks
    predictor, state = StreamPredictor(blocks, [Interval(0, 3, 6, 2.0)], TOP_K), torch.randn(1, 32).double()
    found = {}
    for layer in (1, 3, 5):
        predictor.note(state)
        found[layer] = sorted(predictor(layer, state))
    assert found == {1: [3], 3: [], 5: []}


def gate_logits(models: Pair, text: Sequence[int]) -> Tensor:
    """[layers, experts] what transformers' own gates say of the last token: of what their layers' second norm gives."""
    normed: dict[int, Tensor] = {}
    handles = [
        layer.post_attention_layernorm.register_forward_hook(
            lambda _module, _inputs, output, index=index: normed.update({index: output.flatten(0, -2)})
        )
        for index, layer in enumerate(models.model.model.layers)
    ]
    with torch.no_grad():
        models.model(torch.tensor([list(text)]))
    for handle in handles:
        handle.remove()
    gates = [layer.mlp.gate.weight for layer in models.model.model.layers]
    return torch.stack([gate @ normed[index][-1] for index, gate in enumerate(gates)])


def predicted_logits(models: Pair, text: Sequence[int]) -> Mapping[int, Tensor]:
    """By index of the layer predicted, [experts]: its norm and gate of the accelerated state that is asked for it."""
    module, layers, found = streams(models), models.model.model.layers, {}
    for interval in module.intervals:
        trail = accelerated_states(models.naive, module, list(text), interval.first, interval.gate)
        for layer in range(interval.first + 1, interval.gate + 1):
            for ahead in coming(interval, layer):
                normed = layers[ahead].post_attention_layernorm(trail[layer - interval.first])
                found[ahead] = layers[ahead].mlp.gate.weight @ normed
    return found


@torch.no_grad()
@pytest.mark.parametrize("spare", [0, 1])
def test_the_experts_fetched_ahead_are_those_the_definition_names(spare: int) -> None:
    """Every visit of decoding, by full recomputation; the prompt's rows are not predicted for."""
    models, prompt = pair("mixtral", 3), prompt_of(9)
    method = prepared(f"m2r2_prefetch[{OPTIONS},capacity=8,spare={spare}]", models.target)
    with recorded_visits() as visits:
        got = decode(method, models.target, DecodeRequest(prompt, 6))
    assert list(got.token_ids) == autoregressive(models.naive, prompt, 6)
    layers = models.target.layers
    assert len(visits) == layers * 6 and not any(visit.predicted for visit in visits[:layers])
    for number, visit in enumerate(visits[layers:], layers):
        text = [*prompt, *got.token_ids[: number // layers]]
        expected = predicted_logits(models, text)
        assert set(visit.experts) == set(gate_logits(models, text)[visit.layer].topk(TOP_K).indices.tolist())
        for ahead, experts in visit.predicted.items():
            assert list(experts) == expected[ahead].topk(TOP_K + spare).indices.tolist()
    by_layer = {visit.layer: tuple(visit.predicted) for visit in visits[layers:]}
    assert by_layer == {0: (1,), 1: (2,), 2: (3,), 3: ()}


def test_no_prediction_survives_its_prompt() -> None:
    """Nor does a state that nobody was asked for, as after a failure: a prompt of one token begins without any."""
    models = pair("mixtral", 3)
    method = prepared("m2r2_prefetch", models.target)
    assert isinstance(method, M2R2Prefetch)
    found = []
    for prompt_tokens in (13, 1, 13, 1):
        with recorded_visits() as visits:
            got = decode(method, models.target, DecodeRequest(prompt_of(prompt_tokens, 3), 8))
        found.append((got.token_ids, visits))
        assert not any(predicted for _, _, predicted in visits[: models.target.layers])
        method._predictor.note(torch.zeros(1, models.target.info.hidden_size, dtype=torch.float64))
    assert found[:2] == found[2:]


@torch.no_grad()
def test_the_loss_is_the_divergence_of_choices_and_the_distance_to_the_trajectory() -> None:
    models, method = pair("mixtral", 3), aot()
    module, text, weights = streams(models), [5, 6, 7, 8], [1.0, 0.0, 1.0, 0.5]
    expected = torch.zeros((), dtype=torch.float64)
    for at in (1, 2):
        seen = text[: at + 1]
        true, predicted = gate_logits(models, seen), predicted_logits(models, seen)
        states = models.naive.last_states(seen)
        for interval in module.intervals:
            trail = accelerated_states(models.naive, module, seen, interval.first, interval.gate)
            passed = range(interval.first + 1, interval.gate + 1)
            asked = [ahead for layer in passed for ahead in coming(interval, layer)]
            found = [F.kl_div(predicted[a].log_softmax(0), true[a].softmax(0), reduction="sum") for a in asked]
            wanted = [slow_state(list(states.double()), interval.reaches(layer)) for layer in passed]
            cosines = [F.cosine_similarity(p, h.double(), dim=0) for p, h in zip(trail[1:], wanted, strict=True)]
            loss = torch.stack(found).mean() + COSINE_SHARE * (1 - torch.stack(cosines).mean())
            expected += weights[at + 1] * loss
    got = method.loss(module, batch_of(models.naive, [text], [weights]))
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_recall_is_the_share_of_needed_experts_that_were_named() -> None:
    models, text = pair("mixtral", 3), prompt_of(12)
    found = aot().yardsticks(streams(models), batch_of(models.naive, [text]))
    hits: dict[int, float] = {1: 0.0, 2: 0.0, 3: 0.0}
    for at in range(len(text) - 1):
        true, predicted = gate_logits(models, text[: at + 1]), predicted_logits(models, text[: at + 1])
        for ahead in hits:
            needed = set(true[ahead].topk(TOP_K).indices.tolist())
            hits[ahead] += len(needed & set(predicted[ahead].topk(TOP_K).indices.tolist())) / TOP_K
    for ahead, share in hits.items():
        assert found[f"recall_{ahead + 1}"].right == pytest.approx(share)
    assert found["recall"].of == 3 * (len(text) - 1)
    assert found["recall_slow"].share != found["recall"].share


@pytest.mark.slow
def test_training_names_more_of_the_needed_experts_than_the_slow_state_does() -> None:
    models, method = pair("mixtral", 3), aot()
    batch = batch_of(models.naive, answered(models.naive, 8, 30))
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    learn(method.loss, module, batch, 60)
    found = method.yardsticks(module, batch)
    assert found["recall"].share > found["recall_slow"].share + 0.1


def test_its_usual_rate_of_two_stays_out_of_the_label() -> None:
    for text, label in (("m2r2_prefetch", "m2r2_prefetch"), ("m2r2_prefetch[rate=2]", "m2r2_prefetch[rate=2.0]")):
        assert canonical_label(build(text), parse_label(text)) == label
