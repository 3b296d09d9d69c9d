"""Rules that end a draft, on literal probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchctl.decoding.drafting.stops import Stop, StopRule


def logits(*probs: float) -> Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def drafted(rule: StopRule, least: float, *tokens: tuple[Tensor, int], most: int = 9) -> int:
    """Tokens of a draft that takes these, one after another, until the rule ends it."""
    stop = Stop(rule, least, most, 0.0)
    assert stop.begin() == most
    for count, (draft_logits, place) in enumerate(tokens, 1):
        if stop.ends(draft_logits, place):
            return count
    return len(tokens)


SURE, HALF, LOW = (logits(0.9, 0.1), 0), (logits(0.5, 0.5), 1), (logits(0.7, 0.3), 1)


def test_a_token_below_the_confidence_ends_the_draft_and_stays_in_it() -> None:
    assert drafted("confidence", 0.4, SURE, HALF, LOW, SURE) == 3
    assert drafted("confidence", 0.5, HALF, HALF, LOW) == 3
    assert drafted("confidence", 0.51, HALF, SURE) == 1


def test_the_product_counts_all_tokens() -> None:
    """0.9, 0.81, 0.729, 0.6561."""
    assert drafted("product", 0.7, SURE, SURE, SURE, SURE, SURE) == 4
    assert drafted("product", 0.4, SURE, HALF, HALF, SURE) == 3


def test_the_entropy_bound_is_the_formula_and_looks_at_no_token() -> None:
    """Two equal tokens: H = ln 2, so the bound is 1 - sqrt(0.2 ln 2) = 0.628."""
    bound = 1 - math.sqrt(0.2 * math.log(2))
    for place in (0, 1):
        assert drafted("entropy", bound + 1e-6, (HALF[0], place), SURE) == 1
        assert drafted("entropy", bound - 1e-6, (HALF[0], place), SURE) == 2


@pytest.mark.parametrize("rule", ["confidence", "product", "entropy"])
def test_a_confidence_of_zero_never_ends_a_draft(rule: StopRule) -> None:
    assert drafted(rule, 0.0, HALF, LOW, LOW, HALF) == 4


def test_a_rule_begins_again_with_each_draft() -> None:
    stop = Stop("product", 0.6, 9, 0.0)
    for _ in range(2):
        stop.begin()
        assert [stop.ends(*HALF), stop.ends(*SURE)] == [True, True]
        stop.begin()
        assert not stop.ends(*SURE)


def learnt(accepted: int, token_cost: float, drafts: int = 60, most: int = 5) -> list[int]:
    """Lengths of drafts of which the first tokens are always accepted."""
    stop = Stop("bandit", 0.5, most, token_cost)
    lengths = []
    for _ in range(drafts):
        lengths.append(stop.begin())
        assert not stop.ends(*LOW)
        stop.learn(lengths[-1], min(accepted, lengths[-1]))
    return lengths


@pytest.mark.parametrize(("accepted", "token_cost", "best"), [(2, 0.3, 2), (0, 0.5, 1), (5, 0.1, 5), (4, 0.05, 4)])
def test_the_bandit_finds_the_best_length(accepted: int, token_cost: float, best: int) -> None:
    rewards = [(min(accepted, n) + 1) / (1 + token_cost * n) for n in range(1, 6)]
    assert rewards.index(max(rewards)) + 1 == best
    lengths = learnt(accepted, token_cost)
    assert lengths[0] == 5
    assert max(range(1, 6), key=lengths[20:].count) == best
    assert sum(rewards[length - 1] for length in lengths[20:]) / 40 > 0.95 * max(rewards)


def test_a_draft_accepted_whole_says_nothing_about_longer_ones() -> None:
    stop = Stop("bandit", 0.5, 4, 0.1)
    stop.learn(2, 2)
    assert stop.begin() == 4  # not tried yet; were it known to gain as little as 2, 2 would be as good
    stop.learn(4, 2)
    assert stop.begin() < 4


def test_a_step_without_a_draft_teaches_nothing() -> None:
    stop = Stop("bandit", 0.5, 3, 0.1)
    stop.learn(0, 0)
    assert stop.begin() == 3
