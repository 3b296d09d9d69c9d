"""Token Recycling takes the steps of a replay that recomputes the logits of every row of every tree."""

from __future__ import annotations

import copy

import pytest
from oracles import Naive, Rounds
from runs import CONTEXT_TOKENS, FIRST_FAST, NEW_TOKENS, VOCABULARY, answer, pair, prompt_of, rounds_of

from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.methods.token_recycling import PATHS, TokenRecycling

Matrix = dict[int, list[int]]


def replay(naive: Naive, prompt: list[int], text: list[int], nodes: int, matrix: Matrix) -> Rounds:
    """The rounds for a matrix that is carried on, and here updated: every path is a text of its own."""
    committed, rounds = [*prompt, text[0]], Rounds()
    whole = [*prompt, *text]
    while len(committed) < len(whole):
        budget = len(whole) - len(committed) - 1
        drafted: dict[tuple[int, ...], list[int]] = {(): []}
        for path in sorted(PATHS[:nodes], key=lambda path: (len(path), path)):
            parent = drafted.get(path[:-1])
            if parent is not None and len(path) <= budget:
                successors = matrix.get(parent[-1] if parent else committed[-1])
                if successors:
                    drafted[path] = [*parent, successors[path[-1]]]
        depth = max(map(len, drafted))
        coming = whole[len(committed) :]
        accepted = max(len(tokens) for tokens in drafted.values() if tokens == coming[: len(tokens)])
        learnt = {}
        for tokens in drafted.values():
            logits = naive.logits(naive.last_states([*committed, *tokens])[-1])
            learnt[[*committed, *tokens][-1]] = logits.sort(descending=True).indices[:8].tolist()
        matrix |= learnt
        rounds.append((depth, accepted))
        committed = whole[: len(committed) + accepted + 1]
    return rounds


def generate(method: TokenRecycling, family: str, seed: int, tokens: int, store: Matrix) -> Generation:
    """The answer, which must be the target's own."""
    target, prompt = pair(family, seed).target, prompt_of(tokens, seed)
    got = decode(method, target, DecodeRequest(prompt, NEW_TOKENS, store=store))
    assert list(got.token_ids) == answer(family, seed, tokens)
    return got


@pytest.mark.parametrize("nodes", [1, 8, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_steps_equal_replay_cold_and_carried_over(family: str, seed: int, nodes: int) -> None:
    method, ours, matrix = TokenRecycling(nodes=nodes, memory="run"), Matrix(), Matrix()
    for tokens in (13, 1, CONTEXT_TOKENS - 7, 13):
        got = generate(method, family, seed, tokens, ours)
        text = answer(family, seed, tokens)
        assert rounds_of(got) == replay(pair(family, seed).naive, prompt_of(tokens, seed), text, nodes, matrix)
        assert ours == matrix


def test_a_matrix_carried_over_saves_steps_and_a_copy_of_it_gives_the_same_steps() -> None:
    method = TokenRecycling(nodes=80, memory="run")
    store = method.new_store()
    cold = generate(method, "llama", 0, 13, store)
    kept = copy.deepcopy(store)
    warm = generate(method, "llama", 0, 13, store)
    assert len(warm.steps) < len(cold.steps)
    assert generate(method, "llama", 0, 13, kept).steps == warm.steps


def test_a_draft_has_at_most_its_nodes_and_a_token_without_a_row_no_children() -> None:
    got = generate(TokenRecycling(nodes=5), "llama", 0, 13, {})
    assert got.steps[0].rows == 1  # nothing is known yet
    assert max(step.rows for step in got.steps) == 6


def test_every_smaller_tree_is_a_tree_and_ranks_are_below_eight() -> None:
    assert len(set(PATHS)) == 80
    for nodes in range(1, 81):
        assert {path[:-1] for path in PATHS[:nodes]} <= {(), *PATHS[:nodes]}
    assert max(map(max, PATHS)) == 7 < VOCABULARY
    assert [sum(len(path) == depth for path in PATHS) for depth in range(1, 7)] == [8, 21, 25, 15, 8, 3]
