"""The simulator against times worked out by hand, and against a real run whose loading is throttled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from offloading import HandTimer, visit
from tiny import tiny_target

from benchctl.decoding.experts.policies import POLICIES
from benchctl.decoding.experts.trace import Generation as Visits
from benchctl.decoding.experts.trace import Trace
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.errors import UserError
from benchctl.measuring.clock import Timer
from benchctl.methods.expert_offload import ExpertOffload
from benchctl.offload.forecast import OLMOE, Question, balanced_mb_s, forecast
from benchctl.offload.made_up import Guessing, Routing, Shape, made_up_predictions, made_up_trace
from benchctl.offload.simulator import PolicyChoice, Prefetch, Setting, Simulated, simulate

SLOW = 1.0  # MB/s, so an expert of 1,000,000 bytes takes a second


def _trace(*generations: Visits, layers: int = 2, experts: int = 4, top_k: int = 1) -> Trace:
    return Trace("by hand", False, layers, experts, top_k, 1_000_000, generations)


def _simulate(
    trace: Trace, policy: PolicyChoice = "lru", prefetch: Prefetch = "none", capacity: int = 4
) -> list[float]:
    found = simulate(trace, Setting(policy, prefetch, capacity, SLOW))
    return [found.decode_s, found.counts.stall_s, found.counts.loads]


PREFILL = (visit(0, 0, before_s=0.5, experts_s=0.5), visit(1, 0, before_s=0.5, experts_s=0.5))


def test_what_is_there_costs_only_its_computing() -> None:
    assert _simulate(_trace((*PREFILL, *PREFILL))) == [2.0, 0.0, 0.0]


def test_what_is_missing_is_waited_for() -> None:
    missing = (visit(0, 1, before_s=0.5, experts_s=0.5), visit(1, 1, before_s=0.5, experts_s=0.5))
    assert _simulate(_trace((*PREFILL, *missing))) == [4.0, 2.0, 2.0]


def test_the_second_missing_expert_of_a_layer_arrives_while_the_first_is_computed() -> None:
    both = (visit(0, 1, 2, before_s=0.5, experts_s=0.5), visit(1, 0, before_s=0.5, experts_s=0.5))
    assert _simulate(_trace((*PREFILL, *both), top_k=2)) == [0.5 + 1.0 + 1.0 + 0.25 + 1.0, 1.75, 2.0]


def test_blocking_computes_nothing_before_all_experts_of_a_layer_are_there() -> None:
    both = (visit(0, 1, 2, before_s=0.5, experts_s=0.5), visit(1, 0, before_s=0.5, experts_s=0.5))
    assert _simulate(_trace((*PREFILL, *both), top_k=2), prefetch="blocking") == [0.5 + 2.0 + 0.5 + 1.0, 2.0, 2.0]


def test_fetching_ahead_hides_what_is_computed_meanwhile() -> None:
    """Layer 1's expert is asked for when layer 0 is reached, half a second before it is: half a second is left."""
    token = (
        replace(visit(0, 0, before_s=0.5, experts_s=0.25), predicted={1: (1,)}, predict_s=0.0),
        visit(1, 1, before_s=0.25, experts_s=0.5),
    )
    assert _simulate(_trace((*PREFILL, *token)), prefetch="recorded") == [2.0, 0.5, 1.0]
    assert _simulate(_trace((*PREFILL, *token))) == [2.5, 1.0, 1.0]


def test_a_wrong_guess_delays_the_demand_behind_it() -> None:
    token = (
        replace(visit(0, 0, before_s=0.5, experts_s=0.25), predicted={1: (2,)}),
        visit(1, 1, before_s=0.25, experts_s=0.5),
    )
    assert _simulate(_trace((*PREFILL, *token)), prefetch="recorded") == [3.0, 1.5, 2.0]


def test_a_prediction_takes_its_time_and_a_run_without_prefetch_does_not_pay_for_it() -> None:
    token = (replace(PREFILL[0], predict_s=0.25), PREFILL[1])
    assert _simulate(_trace((*PREFILL, *token)))[0] == 2.0
    assert _simulate(_trace((*PREFILL, *token)), prefetch="recorded")[0] == 2.25


def test_every_generation_begins_with_an_empty_fast_tier() -> None:
    once = (*PREFILL, *PREFILL)
    assert _simulate(_trace(once, once)) == [4.0, 0.0, 0.0]
    assert simulate(_trace(once, once), Setting("lru", "none", 4, SLOW)).tpot_s == 2.0


def test_a_capacity_below_a_tokens_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="below the 2 experts"):
        simulate(_trace(PREFILL, top_k=2), Setting("lru", "none", 1, SLOW))


def _made_up(tokens: int = 12) -> Trace:
    return made_up_trace(
        Shape("toy", 4, 8, 2, 1_000_000, 0.001), Routing(0.5, 0.5), tokens=tokens, prompt_tokens=4, seed=3
    )


def test_a_made_up_trace_says_so_and_has_the_shape_asked_for() -> None:
    trace = _made_up()
    assert trace.synthetic and "synthetic routing" in trace.source and trace.tokens == 12
    (generation,) = trace.generations
    assert [found.layer for found in generation] == [0, 1, 2, 3] * 13
    assert {len(found.experts) for found in generation[4:]} == {2}
    assert all(found.experts == tuple(sorted(set(found.experts))) for found in generation)
    assert _made_up() == trace


def test_persistence_makes_experts_stay() -> None:
    shape = Shape("toy", 1, 64, 8, 1, 0.001)
    stays = made_up_trace(shape, Routing(0.0, 1.0), tokens=5, prompt_tokens=1, seed=0).generations[0]
    assert {found.experts for found in stays} == {stays[0].experts}


@pytest.mark.parametrize(("recall", "spare"), [(1.0, 0), (0.0, 0), (0.6, 2)])
def test_made_up_predictions_have_the_recall_asked_for(recall: float, spare: int) -> None:
    trace = _made_up(tokens=400)
    (generation,) = made_up_predictions(trace, "next", Guessing(recall, spare))
    pairs = [
        (set(one.predicted[one.layer + 1]), set(two.experts))
        for one, two in zip(generation[4:], generation[5:], strict=False)
        if one.predicted
    ]
    assert {len(guess) for guess, _ in pairs} == {2 + spare}
    found = sum(len(guess & needed) for guess, needed in pairs) / sum(len(needed) for _, needed in pairs)
    assert found == pytest.approx(recall, abs=0.03)


def test_an_accelerated_stream_predicts_up_to_twice_its_layer() -> None:
    (generation,) = made_up_predictions(_made_up(), "aot", Guessing(1.0))
    assert [sorted(found.predicted) for found in generation[4:8]] == [[1], [2, 3], [], []]
    assert all(not found.predicted for found in generation[:4])  # prefill
    assert generation[5].predicted[3] == generation[7].experts


def test_perfect_foresight_and_overlap_gain_at_most_twofold_where_loading_takes_as_long_as_computing() -> None:
    """METHODS 9.7: with the same transfers, (compute + load) / max(compute, load) <= 2."""
    trace = _made_up(tokens=60)
    question = Question(("lru",), ("blocking", "none", "next", "aot"), capacities=(8,), guesses=(Guessing(1.0),))
    blocking, none, ahead, aot = forecast(trace, question)
    assert blocking.stall_ms == pytest.approx(blocking.compute_ms)
    assert 1.0 < none.speedup_over_blocking < ahead.speedup_over_blocking < 2.0
    assert none.loaded_mb * 1e6 / (none.bandwidth_mb_s * 1e6) * 1e3 == pytest.approx(none.compute_ms)
    assert 1.0 < ahead.speedup_over_lru <= 2.0 and 1.0 < aot.speedup_over_lru <= 2.0


def test_the_oracle_stalls_least_of_all_policies_that_fetch_nothing_ahead() -> None:
    lines = list(forecast(_made_up(40), Question((*POLICIES, "oracle"), ("none",), capacities=(10,))))
    assert min(lines, key=lambda line: line.loads).policy == "oracle"
    assert all(line.simulation == "synthetic trace" for line in lines)


def test_the_shape_of_olmoe() -> None:
    assert (OLMOE.layers, OLMOE.experts, OLMOE.top_k) == (16, 64, 8)
    assert OLMOE.expert_bytes / 1e6 == pytest.approx(12.6, abs=0.05)


@pytest.mark.parametrize(
    ("trace", "question", "message"),
    [
        (_trace(PREFILL), Question(("lru",), ("none",)), "no decoded tokens"),
        (_trace((*PREFILL, *PREFILL)), Question(("lru",), ("recorded",)), "no predictions"),
        (_trace((*PREFILL, *PREFILL), top_k=2), Question(("lru",), ("none",), (1,)), "capacity 1 is below the 2"),
    ],
)
def test_questions_without_an_answer(trace: Trace, question: Question, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(forecast(trace, question))


def test_no_balance_where_nothing_is_loaded() -> None:
    with pytest.raises(UserError, match="nothing to load"):
        balanced_mb_s(_trace((*PREFILL, *PREFILL)), 4)


def _real_and_simulated(
    policy: PolicyChoice, prefetch: str, transfer_s: float, tokens: int, timer: HandTimer | Timer
) -> tuple[Generation, Simulated]:
    """A tiny mixture decoded out of 7 slots over a link on which an expert takes ``transfer_s``, then simulated."""
    target = tiny_target("olmoe", layers=3)
    options: dict[str, object] = {"blocking": True} if prefetch == "blocking" else {"prefetch": prefetch}
    bandwidth = 4 * 2 * 3 * 32 * 48 / 1e6 / transfer_s
    method = ExpertOffload(policy=policy, capacity=7, bandwidth_mb_s=bandwidth, **options)
    method.prepare(target)
    real = decode(method, target, DecodeRequest([5, 6, 7, 8], 1 + tokens, timer=timer, clock=timer.now_s))
    trace = Trace("tiny", False, 3, 6, 2, method.offload.expert_bytes, (method.offload.visits,))
    ways: dict[str, Prefetch] = {"next_gate": "recorded", "none": "none", "blocking": "blocking"}
    found = simulate(trace, Setting(policy, ways[prefetch], 7, bandwidth))
    assert found.tokens == len(real.step_s) == tokens
    return real, found


@pytest.mark.parametrize("policy", ["on_demand", "lru", "lfu", "least_stale"])
@pytest.mark.parametrize("prefetch", ["blocking", "none", "next_gate"])
def test_it_is_a_real_run_on_a_machine_that_computes_in_no_time(policy: PolicyChoice, prefetch: str) -> None:
    """The real loader with its thread, under a clock that moves only while experts are waited for: equal in all."""
    real, found = _real_and_simulated(policy, prefetch, 0.5, 24, HandTimer())
    assert found.decode_s == pytest.approx(sum(real.step_s))
    simulated = found.counts.as_numbers()
    assert {name: real.counters[name] for name in simulated} == pytest.approx(simulated)


@pytest.mark.parametrize(("policy", "prefetch"), [("lru", "none"), ("least_stale", "next_gate")])
def test_it_agrees_with_the_clock_where_the_throttle_dominates(policy: PolicyChoice, prefetch: str) -> None:
    """An expert takes 15 ms, far more than a tiny model computes: what else runs on the machine hardly matters."""
    real, found = _real_and_simulated(policy, prefetch, 0.015, 12, Timer())
    assert found.decode_s == pytest.approx(sum(real.step_s), rel=0.1)
    assert found.counts.stall_s == pytest.approx(real.counters["stall_s"], rel=0.1)
