"""The books of the fast tier: what goes first, what may be evicted, and what is counted."""

from __future__ import annotations

import pytest
from offloading import drive, settle, visits_of

from benchctl.decoding.experts.fast_tier import Counts, FastTier, Key, Lru, OnDemand


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
