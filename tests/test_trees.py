"""Static trees on literal shares; which trees are best is found by trying all."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest

from benchctl.decoding.draft import ROOT
from benchctl.decoding.trees import Path, pick, rank_shares, read_widths, sparse_tree, wide_tree


def test_a_wide_tree_has_every_combination_parents_first() -> None:
    """The example of the docstring, and one of three levels."""
    assert wide_tree((2, 1)) == ((0,), (1,), (0, 0), (1, 0))
    assert wide_tree((1, 2, 1)) == ((0,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0))
    assert wide_tree((1, 1, 1)) == ((0,), (0, 0), (0, 0, 0))


def test_widths_are_read_level_by_level() -> None:
    assert read_widths("4x2x1", 3) == (4, 2, 1)
    assert read_widths("12", 3) == (12,)
    with pytest.raises(ValueError, match="tree is '4x2x1'; it takes sparse, or up to 2 widths"):
        read_widths("4x2x1", 2)


def test_shares_of_ranks_are_the_differences_of_what_the_first_k_hold() -> None:
    """The example of the docstring; and a share that shrinks, as noise makes it, counts as nothing."""
    assert rank_shares({1: 0.5, 2: 0.6, 4: 0.7}) == pytest.approx([0.5, 0.1, 0.05, 0.05])
    assert rank_shares({1: 0.5, 2: 0.4}) == [0.5, 0.0]


SHARES = ((0.5, 0.2, 0.01), (0.6, 0.15, 0.04), (0.3, 0.25, 0.01))


def _worth(path: Path) -> float:
    return prod(SHARES[depth][rank] for depth, rank in enumerate(path))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_no_tree_of_as_many_nodes_is_worth_more_than_the_sparse_one(nodes: int) -> None:
    """Worth is the expected number of accepted tokens, were the depths independent."""
    paths = [path for depth in (1, 2, 3) for path in product(range(2), repeat=depth)]
    trees = (set(tree) for tree in combinations(paths, nodes))
    best = max(sum(map(_worth, tree)) for tree in trees if all(len(path) == 1 or path[:-1] in tree for path in tree))
    tree = sparse_tree(SHARES, nodes)
    assert len(tree) == nodes
    assert sum(map(_worth, tree)) == pytest.approx(best)


def test_a_sparse_tree_lists_parents_first_and_ends_with_the_last_pick() -> None:
    tree = sparse_tree(SHARES, 1000)
    assert set(tree) == {path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)}
    assert list(tree) == sorted(tree, key=lambda path: (len(path), path))


def test_a_draft_takes_its_tokens_from_the_rankings() -> None:
    """The example of the docstring; siblings by rank; depths without a ranking left out."""
    draft = pick(((0,), (1,), (0, 0)), ((5, 7), (9,)))
    assert (draft.tokens, draft.parents) == ((5, 7, 9), (ROOT, ROOT, 0))
    shallow = pick(((0,), (1,), (0, 0)), ((5, 7),))
    assert (shallow.tokens, shallow.parents) == ((5, 7), (ROOT, ROOT))


def test_a_later_rank_never_counts_more_than_an_earlier_one() -> None:
    """Shares of few measurements once gave 0.30, 0.02, 0.045, 0.045: greedy addition is not best for such."""
    assert rank_shares({1: 0.3, 2: 0.32, 4: 0.39}) == pytest.approx([0.3, 0.03, 0.03, 0.03])
    assert rank_shares({1: 0.2, 2: 0.5}) == pytest.approx([0.25, 0.25])


def test_picks_that_are_never_right_are_no_nodes() -> None:
    assert sparse_tree([[0.5, 0.0], [0.4, 0.0]], 10) == ((0,), (0, 0))
    assert sparse_tree([[0.0]], 3) == ((0,),)


def test_a_tree_of_too_many_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="1,001,001,000 nodes"):
        read_widths("1000x1000x1000", 3)
