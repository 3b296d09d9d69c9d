"""Grown trees on a drafter that is a table; which trees are right is found by scoring every text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

import plain_trees
import pytest
import torch
from plain_trees import Model, chance, dyspec, likeliest, of_shape, scored_by_eagle, texts_of
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.grow import Expand, Frontier, Picks, grow_best_first, grow_likeliest, grow_shape
from benchctl.decoding.drafting.trees import wide_tree
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary
from benchctl.decoding.sampling import Sampling

VOCABULARY = 5
GREEDY = Picks(Sampling(), torch.Generator())
table = partial(plain_trees.table, sampling=Sampling(1.0), vocabulary=VOCABULARY)


class Expanding(plain_trees.Expanding):
    """Asked once about each text, level by level."""

    def __init__(self, model: Model, log: bool = False) -> None:
        super().__init__(model)
        self._log, self.calls = log, 0

    def __call__(self, frontier: Frontier) -> Tensor:
        known = list(self.texts)
        assert frontier.depth > 0 or (frontier.tokens, frontier.parents, known) == ((), (), [])
        probs = super().__call__(frontier)
        fresh = self.texts[len(known) :]
        assert {len(text) for text in fresh} == {frontier.depth} and not set(fresh) & set(known)
        self.calls += 1
        return probs.log() if self._log else probs


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("width", "depth", "nodes"), [(1, 4, 3), (2, 3, 4), (3, 4, 7), (3, 2, 40), (5, 3, 12), (9, 2, 1)]
)
def test_the_likeliest_tree_is_the_best_of_all_scored_candidates(width: int, depth: int, nodes: int, seed: int) -> None:
    expand = Expanding(table(seed), log=True)
    draft = grow_likeliest(expand, width, depth, nodes)
    assert set(texts_of(draft)) == set(likeliest(table(seed), width, depth, nodes))
    assert len(set(texts_of(draft))) == len(draft)
    assert expand.calls <= depth
    assert draft.probs is None


@pytest.mark.parametrize("seed", range(4))
def test_texts_below_the_confidence_are_left_out(seed: int) -> None:
    model = table(seed)
    draft = grow_likeliest(Expanding(model, log=True), 3, 4, 9, confidence=0.2)
    assert set(texts_of(draft)) == set(likeliest(model, 3, 4, 9, 0.2)) != set(likeliest(model, 3, 4, 9))
    first = grow_best_first(Expanding(model), 4, 9, GREEDY, confidence=0.3)
    assert texts_of(first) == dyspec(model, 4, 9, 0.3)
    assert len(first) < 9


@pytest.mark.parametrize("seed", range(4))
def test_no_connected_tree_of_scored_candidates_has_a_larger_sum(seed: int) -> None:
    scored = scored_by_eagle(table(seed), 2, 3)
    trees = itertools.combinations(scored, 4)
    best = max(sum(map(scored.__getitem__, tree)) for tree in trees if all(text[:-1] in (*tree, ()) for text in tree))
    draft = grow_likeliest(Expanding(table(seed), log=True), 2, 3, 4)
    assert sum(chance(table(seed), text) for text in texts_of(draft)) == pytest.approx(best)


def test_of_equal_scores_the_shallower_wins_and_then_the_earlier() -> None:
    """Token 0 is certain behind 0, so its texts of every depth have the score of the first one; 1 and 2 are equal."""
    rows = {0: torch.tensor([[0.5, 0.25, 0.25]]), 1: torch.tensor([[1.0, 0.0, 0.0]])}

    def expand(frontier: Frontier) -> Tensor:
        return rows[min(frontier.depth, 1)].expand(max(1, len(frontier.tokens)), -1).log()

    assert texts_of(grow_likeliest(expand, 3, 3, 3)) == [(0,), (0, 0), (0, 0, 0)]
    assert texts_of(grow_likeliest(expand, 3, 3, 4)) in (
        [(0,), (1,), (0, 0), (0, 0, 0)],
        [(0,), (2,), (0, 0), (0, 0, 0)],
    )
    assert texts_of(grow_likeliest(expand, 3, 2, 2)) == [(0,), (0, 0)]
    assert texts_of(grow_likeliest(lambda _: torch.zeros(1, 1), 1, 9, 2)) == [(0,), (0, 0)]


def test_nodes_that_cannot_get_into_the_tree_are_not_expanded() -> None:
    """Two nodes of 0.5 and 0.4: their children have 0.25 at most, so one pass is enough for a tree of two."""
    calls = []

    def expand(frontier: Frontier) -> Tensor:
        calls.append(frontier.tokens)
        return torch.tensor([[0.5, 0.4, 0.1]]).expand(max(1, len(frontier.tokens)), -1).log()

    assert texts_of(grow_likeliest(expand, 3, 5, 2)) == [(0,), (1,)]
    assert calls == [(), (0,)]  # no child of the worst node, 0.4, could have replaced it


def test_tokens_of_a_draft_vocabulary_are_those_of_the_target() -> None:
    draft = grow_likeliest(
        Expanding(lambda text: table(1)(tuple(token // 10 for token in text)), log=True),
        2,
        2,
        4,
        DraftVocabulary(torch.tensor([0, 10, 20, 30, 40])),
    )
    plain = grow_likeliest(Expanding(table(1), log=True), 2, 2, 4)
    assert draft.tokens == tuple(10 * token for token in plain.tokens)
    assert draft.parents == plain.parents


@pytest.mark.parametrize(
    "grow",
    [
        lambda expand, depth, nodes: grow_likeliest(expand, 2, depth, nodes),
        lambda expand, depth, nodes: grow_shape(expand, wide_tree((2,) * depth)[:nodes], GREEDY),
        lambda expand, depth, nodes: grow_best_first(expand, depth, nodes, GREEDY),
    ],
    ids=["likeliest", "shape", "best first"],
)
@pytest.mark.parametrize(("depth", "nodes"), [(0, 3), (3, 0)])
def test_without_depth_or_nodes_nothing_is_scored(
    grow: Callable[[Expand, int, int], Draft], depth: int, nodes: int
) -> None:
    expand = Expanding(table(1))
    assert len(grow(expand, depth, nodes)) == 0
    assert expand.calls == 0


def test_a_shape_takes_the_likeliest_tokens_by_rank() -> None:
    shape = ((0,), (1,), (0, 0), (1, 0), (1, 1), (1, 1, 0))
    expand = Expanding(table(3))
    draft = grow_shape(expand, shape, GREEDY)

    assert texts_of(draft) == of_shape(table(3), shape)
    assert expand.calls == 3
    assert len(expand.texts) == 4  # the root, both its children, and (1, 1)


def test_a_shape_is_cut_where_too_few_tokens_are_possible() -> None:
    """Only two tokens have a probability: the third child and the path behind it are missing."""
    probs = torch.tensor([[0.7, 0.3, 0.0, 0.0]], dtype=torch.float64)
    for sampling in (Sampling(), Sampling(1.0)):
        picks = Picks(sampling, torch.Generator().manual_seed(0))
        draft = grow_shape(lambda frontier: probs.expand(max(1, len(frontier.tokens)), -1), wide_tree((3, 1)), picks)
        assert sorted(draft.tokens[:2]) == [0, 1]
        assert draft.parents == (ROOT, ROOT, 0, 1)


def test_siblings_share_the_distribution_they_were_drawn_from() -> None:
    picks = Picks(Sampling(1.0), torch.Generator().manual_seed(0))
    for draft in (
        grow_shape(Expanding(table(2)), wide_tree((3, 2)), picks),
        grow_best_first(Expanding(table(2)), 3, 9, picks),
    ):
        assert draft.probs is not None and not draft.replacement
        for row, parent in enumerate(draft.parents):
            assert draft.probs[row].data_ptr() == draft.probs[draft.children(parent)[0]].data_ptr()
            assert torch.equal(draft.probs[row], table(2)(() if parent == ROOT else texts_of(draft)[parent]))
            assert len({draft.tokens[child] for child in draft.children(parent)}) == len(draft.children(parent))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("depth", "nodes"), [(1, 9), (2, 4), (3, 8), (5, 14)])
def test_best_first_takes_the_child_with_the_largest_key(depth: int, nodes: int, seed: int) -> None:
    expand = Expanding(table(seed))
    draft = grow_best_first(expand, depth, nodes, GREEDY)
    assert texts_of(draft) == dyspec(table(seed), depth, nodes)
    assert expand.calls == 1 + len({parent for parent in draft.parents if parent != ROOT})


def test_draws_without_replacement_have_the_distribution_of_one_after_another() -> None:
    """All orders of two of three tokens, counted."""
    probs = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    picks = Picks(Sampling(1.0), torch.Generator().manual_seed(5))
    counts = Counter(tuple(picks.of(probs, 2)) for _ in range(6000))
    for first, second in itertools.permutations(range(3), 2):
        expected = float(probs[first] * probs[second] / (1 - probs[first]))
        assert counts[first, second] / 6000 == pytest.approx(expected, abs=0.02)
