"""The fast tier: what is fetched first, what may be evicted, what is counted, and which policy evicts what."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import get_args

import pytest
from offloading import Visits, drive, loads, settle, visits_of

from benchctl.decoding.experts.fast_tier import (
    Counts,
    FastTier,
    Key,
    LeastStale,
    Lfu,
    Lru,
    OnDemand,
    PolicyName,
)


def _tier(capacity: int) -> FastTier:
    return FastTier(capacity, Lru())


def test_a_demand_goes_before_what_is_fetched_ahead() -> None:
    tier = _tier(6)
    tier.need(0, [0])
    tier.want(1, [5, 6])
    assert settle(tier) == [(0, 0), (1, 5), (1, 6)]
    tier.want(2, [7, 8])
    tier.need(1, [4, 5])
    assert settle(tier) == [(1, 4), (2, 7), (2, 8)]


def test_a_transfer_under_way_is_finished_before_a_demand_begins() -> None:
    tier = _tier(4)
    tier.need(0, [0])
    settle(tier)
    tier.want(1, [5])
    assert tier.next() is not None
    tier.need(1, [4])
    assert tier.next() is None
    assert not tier.holds(Key(1, 5))
    tier.arrive()
    assert tier.holds(Key(1, 5))
    assert settle(tier) == [(1, 4)]


def test_a_later_prediction_of_a_layer_takes_the_place_of_an_earlier_one() -> None:
    """Both were fetched, and counted as one prediction of twice as many experts."""
    tier = _tier(8)
    tier.need(0, [0])
    settle(tier)
    tier.want(2, [4, 5])
    assert tier.next() is not None  # the first is on its way
    tier.want(2, [6, 5])
    tier.arrive()
    assert settle(tier) == [(2, 6), (2, 5)]
    tier.need(2, [5, 6])
    counts = tier.counts
    assert (counts.predicted, counts.predicted_needed, counts.foreseeable, counts.ready) == (2, 2, 2, 2)


def test_what_the_present_visit_needs_is_never_evicted_by_fetching_ahead() -> None:
    tier = _tier(2)
    tier.need(0, [0, 1])
    settle(tier)
    tier.want(1, [3])
    assert settle(tier) == []
    tier.need(1, [3])
    assert settle(tier) == [(1, 3)]


def test_fetching_ahead_evicts_nothing_that_is_itself_still_to_be_used_but_a_demand_may() -> None:
    tier = _tier(2)
    tier.need(0, [0])
    settle(tier)
    tier.want(2, [7])
    assert settle(tier) == [(2, 7)]
    tier.want(3, [8])
    assert settle(tier) == []
    tier.need(1, [4, 5])
    assert settle(tier) == [(1, 4), (1, 5)]
    assert tier.counts.evicted_unused == 1


def test_a_long_visit_lets_go_even_of_its_own_later_experts() -> None:
    """Four experts are needed, the last two are there, and there are two slots: keeping them would block the first."""
    tier = _tier(2)
    drive([(0, [2, 3])], tier)
    counts = drive([(1, [0]), (2, [0]), (0, [2, 3])], tier)
    before = counts.loads
    drive([(0, [0, 1, 2, 3])], tier)
    assert tier.counts.loads - before == 4


def test_without_a_cache_nothing_stays_but_what_was_fetched_for_later() -> None:
    tier = FastTier(4, OnDemand())
    tier.need(0, [0, 1])
    settle(tier)
    tier.want(1, [2])
    settle(tier)
    tier.need(1, [2, 3])
    assert [tier.holds(Key(0, expert)) for expert in (0, 1)] == [False, False]
    assert tier.holds(Key(1, 2))
    assert settle(tier) == [(1, 3)]
    tier.need(1, [2, 3])
    assert settle(tier) == [(1, 2), (1, 3)]


def test_counts_of_a_pass_with_known_predictions() -> None:
    """Layer 1 needs 2 3; predicted were 2 3 4, of which 2 is there, 3 on its way, 4 not begun. Layer 2 had none."""
    tier = _tier(8)
    tier.need(0, [0])
    settle(tier)
    tier.want(1, [2, 3, 4])
    assert tier.next() is not None
    tier.arrive()
    assert tier.next() is not None
    tier.need(1, [2, 3])
    tier.arrive()
    assert settle(tier) == []  # the wrong guess is dropped with its layer
    tier.need(2, [6, 7])
    settle(tier)
    assert tier.counts == Counts(
        needed=5, ready=1, late=1, loads=5, predicted=3, predicted_needed=2, foreseeable=2, evicted_unused=0
    )


def test_prefill_is_counted_apart() -> None:
    tier = _tier(4)
    drive(visits_of([[[0, 1], [0]], [[0], [1]]]), tier)
    assert (tier.prefill.needed, tier.prefill.loads) == (3, 3)
    assert (tier.decode.needed, tier.decode.ready, tier.decode.loads) == (2, 1, 1)


def test_only_layers_ahead_can_be_fetched_ahead() -> None:
    tier = _tier(4)
    tier.need(1, [0])
    with pytest.raises(ValueError, match="layer 1"):
        tier.want(1, [2])


A, B, C, D = (Key(0, expert) for expert in range(4))


def test_lru_evicts_what_was_used_longest_ago() -> None:
    policy = Lru()
    for key in (A, B, C, A):
        policy.used(key)
    assert policy.victim([A, B, C]) == B
    assert policy.victim([A, C]) == C


def test_an_expert_fetched_ahead_counts_as_recent_before_its_first_use() -> None:
    policy = Lru()
    policy.used(A)
    policy.loaded(B)
    assert policy.victim([B, A]) == A


def test_lfu_evicts_what_was_used_least_and_of_those_the_oldest() -> None:
    policy = Lfu()
    for key in (A, A, B, C, A, C, D):
        policy.used(key)
    assert policy.victim([A, B, C, D]) == B
    assert policy.victim([A, C, D]) == D
    policy.loaded(B)  # a load is no use, but it is recent
    assert policy.victim([B, D]) == D


def test_least_stale_evicts_stale_experts_first_and_of_them_the_one_whose_layer_comes_last() -> None:
    """Three layers. The first pass touches an expert of each; in the second, layer 0 takes another one."""
    policy = LeastStale(3)
    first = [Key(layer, 0) for layer in range(3)]
    for key in first:
        policy.reach(key.layer)
        policy.loaded(key)
    policy.reach(0)
    policy.loaded(Key(0, 1))
    policy.reach(1)
    assert policy.victim([*first, Key(0, 1)]) == Key(1, 0)  # stale, and not needed in its layer: a pass is between
    assert policy.victim([first[0], first[2], Key(0, 1)]) == Key(0, 0)  # stale, and passed
    assert policy.victim([first[2], Key(0, 1)]) == first[2]  # stale, though its layer is next; the other is current


def test_loads_worked_out_by_hand() -> None:
    """One layer, two slots, needs 0 1 0 2 0 1: LRU evicts 1 for 2, then 2 for 1: nothing does better."""
    visits = visits_of([[[0]], [[1]], [[0]], [[2]], [[0]], [[1]]])
    assert loads("on_demand", visits, 2, 1) == 6
    assert loads("lru", visits, 2, 1) == 4
    assert _least_possible(visits, 2) == 4


def test_lru_misses_everything_where_a_pass_needs_one_expert_more_than_there_are_slots() -> None:
    """The same three experts over and over, two slots: LRU always evicts the next one, the best choice every second."""
    visits = visits_of([[[0], [0], [0]]] * 4)
    assert loads("lru", visits, 2, 3) == 12
    assert _least_possible(visits, 2) == 7


def _least_possible(visits: Visits, capacity: int) -> int:
    """Loads of the best of all choices, tried one by one."""
    states: dict[frozenset[Key], int] = {frozenset(): 0}
    for layer, experts in visits:
        needed = frozenset(Key(layer, expert) for expert in experts)
        after: dict[frozenset[Key], int] = {}
        for held, cost in states.items():
            spared = held - needed
            room = min(capacity - len(needed), len(spared))
            for size in range(room + 1):
                for kept in combinations(spared, size):
                    state = needed | frozenset(kept)
                    after[state] = min(after.get(state, cost + 99), cost + len(needed - held))
        states = after
    return min(states.values())


def _random_visits(chance: random.Random, layers: int, experts: int, top_k: int, passes: int) -> Visits:
    def some() -> Sequence[int]:
        return sorted(chance.sample(range(experts), top_k))

    return visits_of([[some() for _ in range(layers)] for _ in range(passes)])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [2, 3, 4])
def test_no_policy_loads_less_than_the_best_of_all_choices_or_more_than_no_cache(seed: int, capacity: int) -> None:
    visits = _random_visits(random.Random(seed), layers=2, experts=4, top_k=1 + seed % 2, passes=4)
    found = {name: loads(name, visits, capacity, 2) for name in get_args(PolicyName)}
    assert _least_possible(visits, capacity) <= min(found.values())
    assert found["on_demand"] == max(found.values()) == 2 * 4 * (1 + seed % 2)


@pytest.mark.parametrize("name", ["lru", "lfu", "least_stale"])
def test_with_room_for_all_each_expert_is_loaded_once(name: PolicyName) -> None:
    visits = _random_visits(random.Random(1), layers=3, experts=5, top_k=2, passes=9)
    used = {(layer, expert) for layer, experts in visits for expert in experts}
    assert loads(name, visits, 15, 3) == len(used)
