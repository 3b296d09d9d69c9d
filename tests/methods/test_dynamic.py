"""m2r2_dynamic against full recomputation: who leaves where, what it says, what later tokens see of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gate_exits import GateAnswer, GateRule, gate_answer
from plain_depths import picked_from
from runs import LAYERS, NEW_TOKENS, Pair, answer, pair, prepared, prompt_of, run
from streams import assert_cached_as_if_fresh
from untrained import untrained

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context
from benchctl.decoding.sampling import Sampling
from benchctl.methods.m2r2.gates import Interval
from benchctl.methods.m2r2.training import TwoStreams
from benchctl.methods.m2r2_dynamic import M2R2Dynamic, trajectory_shares
from benchctl.registry import build

MODELS = (("llama", 0), ("qwen3", 2), ("mistral_window", 4))
FILLS = ("rate_map", "copy_p", "copy_h", "deferred_exact", "absent")
THRESHOLDS = {
    "arla": (0.4, 0.55),
    "linear": (0.5,),
    "softmax_gap": (0.1,),
    "softmax_max": (0.3,),
    "state_cosine": (0.8,),
}


def label_of(rule: GateRule, gates: str, more: str = "") -> str:
    options = f"router={rule.router},threshold={rule.threshold},kv_fill={rule.kv_fill}"
    return f"m2r2_dynamic[gates={gates},{options}{more}]"


def streams_of(label: str, models: Pair) -> TwoStreams:
    method = build(label)
    assert isinstance(method, M2R2Dynamic)
    module = untrained(method, models.target).double()
    assert isinstance(module, TwoStreams)
    return module


def truth(
    models: Pair, rule: GateRule, gates: str, prompt: list[int], limit: int = NEW_TOKENS, more: str = ""
) -> GateAnswer:
    with torch.inference_mode():
        return gate_answer(models.naive, streams_of(label_of(rule, gates, more), models), rule, prompt, limit)


def assert_decodes(
    monkeypatch: pytest.MonkeyPatch, label: str, models: Pair, prompt: list[int], expected: GateAnswer
) -> None:
    """Tokens, layers, and the logits that each token was chosen by."""
    with monkeypatch.context() as patch:
        picked = picked_from(patch)
        got = run(label, models.target, prompt, NEW_TOKENS)
    assert (list(got.token_ids), list(got.layers)) == (expected.tokens, expected.ran)
    assert (torch.cat(picked) - expected.logits).abs().max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("fill", FILLS)
def test_tokens_exits_and_logits_are_those_of_full_recomputation(
    monkeypatch: pytest.MonkeyPatch, fill: str, family: str, seed: int
) -> None:
    models, left = pair(family, seed), set()
    for threshold in THRESHOLDS["arla"]:
        rule = GateRule("arla", threshold, fill)
        for prompt_tokens in (1, 13):
            prompt = prompt_of(prompt_tokens, seed)
            expected = truth(models, rule, "1+3", prompt)
            assert_decodes(monkeypatch, label_of(rule, "1+3"), models, prompt, expected)
            left |= set(expected.exits[1:])
    assert left == {1, 3, LAYERS}


@pytest.mark.parametrize("router", ["linear", "softmax_gap", "softmax_max", "state_cosine"])
def test_every_router_decides_as_its_formula_says(monkeypatch: pytest.MonkeyPatch, router: str) -> None:
    models, left = pair("llama"), set()
    for threshold in THRESHOLDS[router]:
        rule = GateRule(router, threshold, "rate_map")
        expected = truth(models, rule, "1+3", prompt_of(13))
        assert_decodes(monkeypatch, label_of(rule, "1+3"), models, prompt_of(13), expected)
        left |= set(expected.exits[1:])
    assert len(left) > 1


def test_stand_ins_of_a_slower_trajectory_end_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """rate=1.2 reaches slow depth 2.4 at gate 2; what would arrive at layer 4, depth 3, is beyond."""
    models, rule, more = pair("llama"), GateRule("arla", 0.4, "rate_map"), ",rate=1.2,adapters=hybrid,rank=5"
    expected = truth(models, rule, "2", prompt_of(13), more=more)
    assert 2 in expected.exits
    assert_decodes(monkeypatch, label_of(rule, "2", more), models, prompt_of(13), expected)


@pytest.mark.slow
def test_what_is_filled_in_matters_to_what_comes_after() -> None:
    """So the comparison can fail: no two ways give the same logits, nor does the trajectory read half a layer late."""
    models, prompt = pair("llama"), prompt_of(13)
    rules = [GateRule("arla", 0.4, fill) for fill in FILLS]
    answers = [truth(models, rule, "1+3", prompt) for rule in (*rules, replace(rules[0], late=0.5))]
    for index, one in enumerate(answers):
        for other in answers[index + 1 :]:
            both = list(zip(one.tokens, other.tokens, strict=True))
            alike = next((place for place, (left, right) in enumerate(both) if left != right), len(both))
            assert (one.logits[: alike + 1] - other.logits[: alike + 1]).abs().max() > 1e-3


@pytest.mark.slow
def test_fills_say_different_things_in_the_end() -> None:
    models, told = pair("llama"), {}
    for fill in FILLS:
        rule = GateRule("arla", 0.4, fill)
        told[fill] = tuple(
            token
            for seed in range(3)
            for token in run(label_of(rule, "1+3"), models.target, prompt_of(13, seed), NEW_TOKENS).token_ids
        )
    assert len(set(told.values())) == len(FILLS)


@torch.inference_mode()
@pytest.mark.parametrize("fill", FILLS)
def test_a_token_that_left_is_done_with_unless_its_layers_are_put_off(fill: str) -> None:
    """Then the next row that runs all layers takes it along, and the cache is that of plain decoding."""
    models, stream = pair("llama"), Stream(pair("llama").target, 40)
    method = prepared(label_of(GateRule("arla", 0.4, fill), "1+3"), models.target)
    context = Context(models.target, stream, prompt_of(13), 13, 20, Sampling(), torch.Generator())
    context.tokens.append(method.start(context))
    for _ in range(12):
        context.tokens += method.step(context)
        assert stream.rows == 0 or fill == "deferred_exact"
    stream.push(context.tokens[-1:])
    stream.advance()
    stream.keep(range(stream.rows))
    assert any(stream.cache.absent) == (fill == "absent")
    if fill == "deferred_exact":
        assert_cached_as_if_fresh(stream, context.tokens)
    else:
        assert stream.cache.lengths == [26] * LAYERS


@pytest.mark.slow
def test_above_one_no_token_leaves_and_at_nought_each_does_at_the_first_gate() -> None:
    models, text = pair("llama"), answer("llama", 0, 13)
    for router in THRESHOLDS:
        for fill in ("rate_map", "deferred_exact"):
            never = run(label_of(GateRule(router, 2, fill), "2+3"), models.target, prompt_of(13), 12)
            always = run(label_of(GateRule(router, 0, fill), "2+3"), models.target, prompt_of(13), 12)
            assert (list(never.token_ids), never.layers) == (text[:12], (LAYERS,) * 12)
            assert always.layers == (LAYERS,) + (2,) * 11


def test_a_stand_in_is_where_the_trajectory_was_to_meet_the_skipped_state() -> None:
    """The examples of the docstrings; with rate 2 the gate at layer 2 reaches slow layer 4, and none above."""
    third = 1 / 3
    assert trajectory_shares(Interval(0, 2, 6)).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        pytest.approx([0, 0, 2 * third, third]),
        pytest.approx([0, 0, third, 2 * third]),
    ]
    assert trajectory_shares(Interval(0, 2, 6, 2.0)).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 0.5, 0.5],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]
    assert Interval(0, 4, 16).meets(6) == 1.5
    for interval in (Interval(0, 4, 16), Interval(4, 8, 16), Interval(2, 5, 12, 1.5)):
        for layer in range(interval.first, interval.gate + 1):
            assert interval.meets(interval.reaches(layer)) == pytest.approx(layer)
