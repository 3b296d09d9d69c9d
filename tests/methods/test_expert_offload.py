"""Decoding out of a fast tier: the resident model's output to the bit, whatever the policy, capacity and speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from fixtures_run import make_folder, make_settings, measure_file, measured
from offloading import HandTimer, Simulation, recorded_visits
from tiny import tiny_folder, tiny_target
from torch import Tensor

from benchctl.decoding.experts.fast_tier import FastTier, Key, Lru, PolicyName, policy_of
from benchctl.decoding.experts.offload import (
    Loader,
    MemoryTier,
    Offload,
    OffloadSettings,
    Slots,
    Timer,
    mixtures_of,
    next_gate,
    rank_experts,
)
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.layers import ExpertWeights
from benchctl.decoding.model.target import Target
from benchctl.measuring.clock import Timer as RealTimer
from benchctl.methods.autoregressive import Autoregressive
from benchctl.methods.expert_offload import ExpertOffload
from benchctl.registry import build

PROMPT = [5, 9, 17, 4, 33, 21, 8, 60, 12, 13]  # more rows than few experts can serve
NEW_TOKENS = 10
LAYERS, EXPERTS, TOP_K = 3, 6, 2


@cache
def target(family: str = "olmoe", dtype: torch.dtype = torch.float32) -> Target:
    return tiny_target(family, layers=LAYERS, dtype=dtype)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "expert loader"] == []


def _decode(method: Method, on: Target, prompt: Sequence[int] = PROMPT, timer: Timer | None = None) -> Generation:
    method.prepare(on)
    timer = timer or RealTimer()
    return decode(method, on, DecodeRequest(prompt, NEW_TOKENS, timer=timer, clock=timer.now_s))


def _logits(on: Target) -> Tensor:
    return torch.stack([on.next_logits(PROMPT), on.next_logits(PROMPT, one_by_one=True)])


@pytest.mark.parametrize("policy", get_args(PolicyName))
@pytest.mark.parametrize("capacity", [TOP_K, 5, LAYERS * EXPERTS])
@pytest.mark.parametrize("prefetch", ["none", "next_gate"])
def test_logits_are_the_resident_models_to_the_bit(policy: str, capacity: int, prefetch: str) -> None:
    on = target()
    method = build(f"expert_offload[policy={policy},capacity={capacity},prefetch={prefetch}]")
    method.prepare(on)
    with method.serve(on, None) as view:
        assert torch.equal(_logits(view), _logits(on))


@pytest.mark.parametrize(
    "family", ["qwen3_moe", "qwen3_moe_every_second", "qwen3_moe_dense_first_window", "qwen2_moe", "gpt_oss"]
)
def test_other_mixtures_keep_their_logits_too(family: str) -> None:
    """With dense layers in between, a shared expert, or biases of experts, all of which stay in memory."""
    on = tiny_target(family, layers=4, dtype=torch.float64)
    method = build("expert_offload[prefetch=next_gate,capacity=3]")
    method.prepare(on)
    with method.serve(on, None) as view:
        torch.testing.assert_close(_logits(view), _logits(on), rtol=0.0, atol=1e-12)


def test_the_next_gate_passes_over_dense_layers() -> None:
    on = tiny_target("qwen3_moe_every_second", layers=5)
    state = torch.randn(1, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert [sorted(next_gate(on, 2)(layer, state)) for layer in (1, 3)] == [[3], []]


def test_a_view_runs_only_while_it_is_served() -> None:
    offload = Offload(target(), OffloadSettings())
    with offload.serve(None):
        offload.view.next_logits(PROMPT)
    with pytest.raises(RuntimeError, match="inside serve"):
        offload.view.next_logits(PROMPT)


def test_what_is_counted_is_what_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    fill = Slots.fill

    def watched(slots: Slots, slot: int, weights: ExpertWeights) -> None:
        moved.append(weights.gate_up.nbytes + weights.down.nbytes)
        fill(slots, slot, weights)

    monkeypatch.setattr(Slots, "fill", watched)
    counters = _decode(ExpertOffload(capacity=7, prefetch="next_gate", spare=1), target()).counters
    assert sum(moved) == (counters["loads"] + counters["prefill_loads"]) * counters["expert_bytes"]


def test_the_next_gate_ranks_by_the_next_layers_own_norm_and_router() -> None:
    on = target()
    state = torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    block = on.blocks[1]
    order = (block.mlp_norm(state) @ mixtures_of(on)[1].router.T)[0].argsort(descending=True)
    assert rank_experts(block, state, 4) == order[:4].tolist()
    assert next_gate(on, 4)(0, state) == {1: order[:4].tolist()}
    assert next_gate(on, 4)(LAYERS - 1, state) == {}


def test_what_has_arrived_meanwhile_is_not_waited_for() -> None:
    """By a timer that stands still while the model computes, so that every second is one of waiting."""
    timer = HandTimer()
    with _loader(timer, capacity=4) as loader:
        loader.need(0, [0])
        loader.wait_for(Key(0, 0))
        loader.want(1, [3, 4])
        with loader._changed:  # a copy takes no time of this timer, so it must not be overtaken by it
            loader._changed.wait_for(lambda: loader._copied)
        timer.compute(1.5)
        loader.need(1, [3])
        loader.wait_for(Key(1, 3))
        assert timer.now_s() == pytest.approx(2.5)
        loader.need(2, [5])  # behind the guess that is half way
        loader.wait_for(Key(2, 5))
        assert timer.now_s() == pytest.approx(4.0)


def test_a_limited_bandwidth_needs_a_timer() -> None:
    method = ExpertOffload(bandwidth_mb_s=5.0)
    method.prepare(target())
    with pytest.raises(ValueError, match="needs a timer"), method.serve(target(), None):
        pass


def _loader(timer: Timer, capacity: int) -> Loader:
    """Of a link on which an expert takes a second."""
    mixtures = mixtures_of(target())
    slots = Slots(mixtures[0], capacity)
    return Loader(FastTier(capacity, Lru()), MemoryTier(mixtures), slots, slots.expert_bytes, timer)


def test_a_failure_of_the_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(MemoryTier, "read", fail)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        _decode(ExpertOffload(), target())


def test_the_thread_ends_where_the_method_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ExpertOffload, "step", fail)
    with pytest.raises(ZeroDivisionError):
        _decode(ExpertOffload(), target())


def test_without_a_timer_there_is_no_stall_rather_than_a_wrong_one() -> None:
    method = ExpertOffload()
    method.prepare(target())
    counters = decode(method, target(), DecodeRequest(PROMPT, 3)).counters
    assert "stall_s" not in counters and counters["loads"] > 0


def test_the_slow_tier_gives_each_expert_as_it_is() -> None:
    mixtures = mixtures_of(target())
    tier = MemoryTier(mixtures)
    for layer, expert in ((0, 0), (2, 5), (1, 3)):
        found = tier.read(Key(layer, expert))
        assert torch.equal(found.gate_up, mixtures[layer].gate_up[expert])
        assert torch.equal(found.down, mixtures[layer].down[expert])


def test_the_fast_tier_holds_a_quarter_by_default_and_never_more_than_all() -> None:
    assert Offload(target(), OffloadSettings()).capacity == LAYERS * EXPERTS // 4
    assert Offload(target(), OffloadSettings(capacity=999)).capacity == LAYERS * EXPERTS


def test_a_run_writes_the_counters_into_the_rows(tmp_path: Path) -> None:
    folder, label = make_folder(tmp_path / "run"), "expert_offload[capacity=4,bandwidth_mb_s=50.0]"
    tiny_folder(folder / "target", "olmoe")
    settings = replace(make_settings(folder, tmp_path / "out.jsonl"), methods=(label,))
    rows = [row for row in measured(measure_file(settings)) if row.label != "autoregressive"]
    assert rows and {row.verdict for row in rows} == {"identical"}
    assert all(row.counters["bandwidth_mb_s"] == 50 and row.counters["stall_s"] > 0 for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("capacity", [TOP_K, 6])
def test_on_a_gpu_copies_run_beside_the_computing_and_change_nothing(capacity: int) -> None:
    from tiny import tiny_model

    on = Target(tiny_model("olmoe", layers=LAYERS).to("cuda"), None)
    for prefetch in ("none", "next_gate"):
        method = build(f"expert_offload[capacity={capacity},prefetch={prefetch}]")
        assert _decode(method, on).token_ids == _decode(Autoregressive(), on).token_ids
        with method.serve(on, None) as view:
            assert torch.equal(_logits(view), _logits(on))


@pytest.mark.parametrize("policy", get_args(PolicyName))
@pytest.mark.parametrize("options", [{"blocking": True}, {}, {"prefetch": "next_gate"}])
def test_the_loader_does_what_a_simulated_link_does(policy: PolicyName, options: dict[str, Any]) -> None:
    """The real loader with its thread, under a clock that moves only while experts are waited for: equal in all."""
    on, timer, tokens = target(), HandTimer(), 24
    expert_bytes = 4 * 3 * 32 * 48
    method = ExpertOffload(policy, capacity=7, bandwidth_mb_s=expert_bytes / 1e6 / 0.5, **options)
    method.prepare(on)
    with recorded_visits() as visits:
        real = decode(method, on, DecodeRequest([5, 6, 7, 8], 1 + tokens, clock=timer.now_s, timer=timer))
    tier = FastTier(7, policy_of(policy, LAYERS))
    Simulation(tier, 0.5, together=7 if options.get("blocking") else 1).run(visits)
    expected = tier.decode.as_numbers()
    assert {name: real.counters[name] for name in expected} == pytest.approx(expected)
    assert sum(real.step_s) == pytest.approx(expected["stall_s"])
