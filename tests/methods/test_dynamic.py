"""m2r2_dynamic against full recomputation: who leaves where, what it says, what later tokens see of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from gate_exits import GateAnswer, GateRule, gate_answer
from runs import LAYERS, NEW_TOKENS, Pair, answer, pair, prepared, prompt_of, run
from streams import assert_cached_as_if_fresh
from torch import Tensor
from untrained import facts_of, untrained

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context
from benchctl.decoding.modules.trainable import save_modules
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.methods.m2r2 import M2R2
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


@dataclass(frozen=True)
class Logged:
    """A generation and the logits [tokens, vocabulary] each of its tokens was chosen by."""

    generation: Generation
    logits: Tensor


def label_of(rule: GateRule, gates: str, more: str = "") -> str:
    options = f"router={rule.router},threshold={rule.threshold},kv_fill={rule.kv_fill}"
    return f"m2r2_dynamic[gates={gates},{options}{more}]"


def streams_of(label: str, models: Pair) -> TwoStreams:
    method = build(label)
    assert isinstance(method, M2R2Dynamic)
    module = untrained(method, models.target).double()
    assert isinstance(module, TwoStreams)
    return module


def logged(monkeypatch: pytest.MonkeyPatch, label: str, models: Pair, prompt: list[int], limit: int) -> Logged:
    seen: list[Tensor] = []
    pick = Context.pick

    def noting(context: Context, logits: Tensor) -> int:
        seen.append(logits.clone())
        return pick(context, logits)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "pick", noting)
        return Logged(run(label, models.target, prompt, limit), torch.cat(seen))


def truth(
    models: Pair, rule: GateRule, gates: str, prompt: list[int], limit: int = NEW_TOKENS, more: str = ""
) -> GateAnswer:
    with torch.inference_mode():
        return gate_answer(models.naive, streams_of(label_of(rule, gates, more), models), rule, prompt, limit)


def assert_as_told(found: Logged, expected: GateAnswer) -> None:
    assert list(found.generation.token_ids) == expected.tokens
    assert list(found.generation.layers) == expected.ran
    assert (found.logits - expected.logits).abs().max() < 1e-9


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
            assert_as_told(logged(monkeypatch, label_of(rule, "1+3"), models, prompt, NEW_TOKENS), expected)
            left |= set(expected.exits[1:])
    assert left == {1, 3, LAYERS}


@pytest.mark.parametrize("router", ["linear", "softmax_gap", "softmax_max", "state_cosine"])
def test_every_router_decides_as_its_formula_says(monkeypatch: pytest.MonkeyPatch, router: str) -> None:
    models, left = pair("llama"), set()
    for threshold in THRESHOLDS[router]:
        rule = GateRule(router, threshold, "rate_map")
        expected = truth(models, rule, "1+3", prompt_of(13))
        assert_as_told(logged(monkeypatch, label_of(rule, "1+3"), models, prompt_of(13), NEW_TOKENS), expected)
        left |= set(expected.exits[1:])
    assert len(left) > 1


def test_stand_ins_of_a_slower_trajectory_end_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """rate=1.2 reaches slow depth 2.4 at gate 2; what would arrive at layer 4, depth 3, is beyond."""
    models, rule, more = pair("llama"), GateRule("arla", 0.4, "rate_map"), ",rate=1.2,adapters=hybrid,rank=5"
    expected = truth(models, rule, "2", prompt_of(13), more=more)
    assert 2 in expected.exits
    assert_as_told(logged(monkeypatch, label_of(rule, "2", more), models, prompt_of(13), NEW_TOKENS), expected)


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


@pytest.mark.slow
def test_nothing_of_one_prompt_is_left_for_the_next() -> None:
    models = pair("llama")
    for fill in FILLS:
        label = label_of(GateRule("arla", 0.4, fill), "1+3")
        method = prepared(label, models.target)
        again = [decode(method, models.target, DecodeRequest(prompt_of(tokens), NEW_TOKENS)) for tokens in (13, 2, 13)]
        assert again[0] == again[2]
        assert again[1].token_ids == run(label, models.target, prompt_of(2), NEW_TOKENS).token_ids


def test_a_mixture_of_experts_leaves_too() -> None:
    models = pair("mixtral", 3)
    found = run(label_of(GateRule("arla", 0.5, "rate_map"), "1+3"), models.target, prompt_of(13), NEW_TOKENS)
    assert len(set(found.layers)) > 1


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


@pytest.mark.parametrize("router", ["arla", "linear"])
def test_a_folder_without_a_router_serves_what_needs_none_and_says_how_to_get_one(tmp_path: Path, router: str) -> None:
    models, method = pair("llama"), M2R2(gates="1+3")
    folder = tmp_path / "adapters"
    save_modules(folder, untrained(method, models.target), facts_of("m2r2", method, models.target))
    for options in ("m2r2[", "m2r2_dynamic[router=softmax_gap,", "m2r2_dynamic[router=state_cosine,"):
        served = build(f"{options}gates=1+3,modules={folder}]")
        served.prepare(models.target)
    asking = build(f"m2r2_dynamic[router={router},gates=1+3,modules={folder}]")
    with pytest.raises(UserError) as refusal:
        asking.prepare(models.target)
    said = str(refusal.value)
    assert f"{folder}: holds no router; train one" in said
    assert f"benchctl train 'm2r2_dynamic[router={router},modules={folder}]' --model MODEL --out NEW" in said


def test_a_folder_with_a_router_serves_every_mode_but_another_router(tmp_path: Path) -> None:
    models, method = pair("llama"), M2R2Dynamic(gates="1+3")
    save_modules(tmp_path / "both", untrained(method, models.target), facts_of("m2r2_dynamic", method, models.target))
    for options in ("m2r2[", "m2r2_dynamic[", "m2r2_dynamic[router=softmax_max,"):
        served = build(f"{options}gates=1+3,modules={tmp_path / 'both'}]")
        served.prepare(models.target)
    other = build(f"m2r2_dynamic[router=linear,gates=1+3,modules={tmp_path / 'both'}]")
    with pytest.raises(UserError, match="they were trained with router=arla"):
        other.prepare(models.target)


@pytest.mark.parametrize("option", ["rate=2.0", "alpha=9.0"])
def test_adapters_trained_for_another_rate_or_scale_are_refused(tmp_path: Path, option: str) -> None:
    """No shape tells, and they would serve worse than they can without a word."""
    models, method = pair("llama"), M2R2(gates="1+3")
    save_modules(tmp_path / "m", untrained(method, models.target), facts_of("m2r2", method, models.target))
    other = build(f"m2r2[gates=1+3,{option},modules={tmp_path / 'm'}]")
    with pytest.raises(UserError, match=f"trained with {option.partition('=')[0]}="):
        other.prepare(models.target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("threshold=-0.1", "threshold is -0.1; it must not be negative"),
        ("router=oracle", "it takes arla or linear or softmax_gap"),
        ("kv_fill=copy", "it takes rate_map or copy_p or copy_h or deferred_exact or absent"),
        ("mode=exit", "no option 'mode'"),
        ("width=3", "no option 'width'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(f"m2r2_dynamic[{options}]")


@pytest.mark.parametrize(
    ("label", "option"),
    [("m2r2[threshold=0.1]", "threshold"), ("m2r2[mode=dynamic,width=3]", "width"), ("m2r2[mode=aot,exit=1]", "exit")],
)
def test_an_option_of_another_set_up_is_refused(label: str, option: str) -> None:
    with pytest.raises(UserError, match=f"no option '{option}'"):
        build(label)


def test_each_mode_claims_what_it_keeps() -> None:
    speculative, dynamic = build("m2r2[width=3]"), build("m2r2_dynamic[threshold=0.1]")
    assert (speculative.exactness, speculative.reason) == ("exact", "")
    assert dynamic.exactness == "lossy" and "not verified" in dynamic.reason
