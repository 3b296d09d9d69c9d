"""Families of methods on a real target: drafting with budgets, trees and scratch rows; leaving early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from oracles import ExitRule, exit_answer
from runs import NEW_TOKENS, answer, pair, prompt_of
from tiny import tiny_target

from benchctl.decoding.adaptive import AdaptiveDepth, View
from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Outcome, Speculative
from benchctl.decoding.model.target import Target

PROMPT = (1, 40, 7)
Drafter = Callable[[Context, int], Draft]


@cache
def target() -> Target:
    return tiny_target("llama", seed=2)


@cache
def truth(tokens: int) -> tuple[int, ...]:
    """PROMPT and the target's greedy answer, by passes over the whole text."""
    text = list(PROMPT)
    for _ in range(tokens):
        text.append(int(target().next_logits(text).argmax()))
    return tuple(text)


@dataclass
class Scripted(Speculative):
    """Drafts what a function says; remembers budgets and outcomes."""

    propose: Drafter
    budgets: list[int] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def draft(self, context: Context, budget: int) -> Draft:
        self.budgets.append(budget)
        return self.propose(context, budget)

    def observe(self, context: Context, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def generate(method: Speculative, new_tokens: int) -> Generation:
    return decode(method, target(), DecodeRequest(PROMPT, new_tokens))


def coming(context: Context, count: int) -> list[int]:
    """The ``count`` tokens the target will say next."""
    start = len(context.tokens)
    return list(truth(40)[start : start + count])


def wrong(token: int) -> int:
    return (token + 1) % target().vocabulary


def drafts_truth(tokens: int) -> Drafter:
    return lambda context, budget: Draft.chain(coming(context, min(tokens, budget)))


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 4, 5, 17])
def test_a_perfect_drafter_commits_its_draft_and_the_bonus_in_every_step(new_tokens: int) -> None:
    """Three drafted tokens: g is 3, so g and g + 1 are among the limits."""
    method = Scripted(drafts_truth(3))
    generation = generate(method, new_tokens)
    assert PROMPT + generation.token_ids == truth(new_tokens)
    assert len(generation.steps) == -(-(new_tokens - 1) // 4)
    left = [new_tokens - 2 - 4 * step for step in range(len(generation.steps))]
    assert method.budgets == left
    assert [step.drafted for step in generation.steps] == [min(3, budget) for budget in left]
    assert all(step.accepted == step.drafted and step.rows == 1 + step.drafted for step in generation.steps)


def branching(context: Context, budget: int) -> Draft:
    """Below the root a wrong and the right token; below the right one the same; below that a scratch row."""
    if budget < 2:
        return Draft()
    first, second = coming(context, 2)
    tokens = (wrong(first), first, second, wrong(second), second, 3)
    return Draft(tokens, (ROOT, ROOT, 0, 1, 1, 4), scratch=(False,) * 5 + (True,))


def test_the_outcome_holds_what_the_target_says_after_every_row_scratch_rows_included() -> None:
    method = Scripted(branching)
    steps = generate(method, 13).steps
    assert [(step.drafted, step.rows, step.accepted) for step in steps] == [(2, 7, 2)] * 4
    for index, outcome in enumerate(method.outcomes):
        text = truth(40)[: len(PROMPT) + 1 + 3 * index]
        assert outcome.verdict.path == (1, 4)
        assert outcome.target_logits.shape == (7, target().vocabulary)
        torch.testing.assert_close(target().head(outcome.states), outcome.target_logits)
        after_scratch = target().next_logits([*text, outcome.draft.tokens[1], outcome.draft.tokens[4], 3])
        torch.testing.assert_close(outcome.target_logits[6], after_scratch, rtol=0.0, atol=1e-12)


def test_a_view_computes_its_logits_when_asked_and_once() -> None:
    calls: list[torch.Tensor] = []

    def head(state: torch.Tensor) -> torch.Tensor:
        calls.append(state)
        return 2.0 * state

    view = View(1, (torch.ones(1, 3),), head)
    assert calls == []
    assert view.logits.tolist() == view.logits.tolist() == [[2.0] * 3]
    assert len(calls) == 1
    with pytest.raises(ValueError, match="set compares_states"):
        _ = view.previous


@dataclass
class Halfway(AdaptiveDepth):
    """All that docs/add-a-method.md asks for."""

    exactness = "lossy"
    reason = "no token runs the upper half of the layers"

    def exit_layers(self, target: Target) -> tuple[int, ...]:
        return (target.layers // 2,)

    def decide(self, context: Context, view: View) -> bool:
        return True


class Both(Halfway, Speculative):
    def draft(self, context: Context, budget: int) -> Draft:
        return Draft.chain((1, 2)[:budget])


def test_a_drafter_that_could_also_leave_early_is_verified() -> None:
    """The step that leaves early hid the one that verifies."""
    got = decode(Both(), pair("llama").target, DecodeRequest(prompt_of(13), NEW_TOKENS))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert any(step.drafted for step in got.steps)


def test_a_method_that_only_decides_where_to_leave_propagates_the_state_it_left_with() -> None:
    """It could not be built: the class left `step` to the plug-in, and its documentation did not."""
    models, prompt = pair("llama"), prompt_of(13)
    got = decode(Halfway(), models.target, DecodeRequest(prompt, NEW_TOKENS))
    expected = exit_answer(models.naive, prompt, NEW_TOKENS, ExitRule((2,), threshold=0.0), propagate=True)
    assert (list(got.token_ids), list(got.layers)) == (expected.tokens, expected.ran)
