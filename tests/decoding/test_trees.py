"""Static trees on literal shares; which trees are best is found by trying all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from math import prod

import pytest
from plain_trees import sequoia

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.trees import Path, likeliest, optimal_tree, pick, read_widths, sparse_tree, wide_tree


def test_a_wide_tree_has_every_combination_parents_first() -> None:
    """The example of the docstring, and one of three levels."""
    assert wide_tree((2, 1)) == ((0,), (1,), (0, 0), (1, 0))
    assert wide_tree((1, 2, 1)) == ((0,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0))
    assert wide_tree((1, 1, 1)) == ((0,), (0, 0), (0, 0, 0))


def test_merged_paths_share_their_beginnings() -> None:
    """As in the union of two drafts: those of the first come first, and each path is there once."""
    one = Draft((5, 6, 7), (ROOT, 0, ROOT))
    other = Draft((7, 8, 5, 6, 9), (ROOT, 0, ROOT, 2, 3))
    assert one.paths == [(5,), (5, 6), (7,)]
    both = Draft.merged((*one.paths, *other.paths))
    assert (both.tokens, both.parents) == ((5, 6, 7, 8, 9), (ROOT, 0, ROOT, 2, 1))
    assert len(Draft.merged([])) == 0


def test_widths_are_read_level_by_level() -> None:
    assert read_widths("4x2x1", 3, "sparse") == (4, 2, 1)
    assert read_widths("12", 3, "sparse") == (12,)
    with pytest.raises(ValueError, match="'4x2x1'.* 2 widths"):
        read_widths("4x2x1", 2, "sparse")


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


def _texts_right(seed: int) -> dict[Path, float]:
    """Made-up chances that exactly these picks are right, one after another, and the next is not; they add up to 1."""
    chance = random.Random(seed)
    paths = [path for depth in (0, 1, 2, 3) for path in product(range(2), repeat=depth)]
    weights = {path: chance.random() ** 4 for path in paths}
    return {path: weight / sum(weights.values()) for path, weight in weights.items()}


def _shares(texts: Mapping[Path, float]) -> dict[Path, float]:
    """How often each path is right: whenever a text begins with it."""
    return {path: sum(texts[text] for text in texts if text[: len(path)] == path) for path in texts if path}


def _accepted(tree: Iterable[Path], texts: Mapping[Path, float]) -> float:
    """Tokens that a tree gets accepted on average, by walking it for each text."""
    nodes = set(tree)
    lengths = {text: next((n for n in range(len(text)) if text[: n + 1] not in nodes), len(text)) for text in texts}
    return sum(texts[text] * length for text, length in lengths.items())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_no_tree_of_as_many_nodes_gets_more_accepted_than_the_likeliest_paths(nodes: int, seed: int) -> None:
    texts = _texts_right(seed)
    every = combinations([path for path in texts if path], nodes)
    best = max(_accepted(tree, texts) for tree in every if all(path[:-1] in (*tree, ()) for path in tree))
    tree = likeliest(_shares(texts), nodes)
    assert len(tree) == nodes and all(path[:-1] in (*tree, ()) for path in tree)
    assert _accepted(tree, texts) == pytest.approx(best)


def test_the_likeliest_paths_of_the_docstring() -> None:
    """Equal shares: the shorter path first, for the other may hang below it."""
    shares = {(0,): 0.5, (1,): 0.1, (0, 0): 0.3, (0, 1): 0.1}
    assert likeliest(shares, 3) == ((0,), (1,), (0, 0))
    assert likeliest(dict(reversed(shares.items())), 3) == ((0,), (1,), (0, 0))
    assert likeliest(shares, 9) == ((0,), (1,), (0, 0), (0, 1))


def test_a_sparse_tree_lists_parents_first_and_ends_with_the_last_pick() -> None:
    tree = sparse_tree(SHARES, 1000)
    assert set(tree) == {path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)}
    assert list(tree) == sorted(tree, key=lambda path: (len(path), path))


RANKS = (0.6, 0.2, 0.1)


def _rate(tree: Iterable[Path], draft_cost: float, row_cost: float) -> float:
    """Tokens per time of a tree, ranks independent of what stands before them."""
    paths = list(tree)
    accepted = sum(prod(RANKS[rank] for rank in path) for path in paths)
    return (1 + accepted) / (1 + draft_cost * max(map(len, paths)) + row_cost * len(paths))


COSTS = [(0.0, 0.0), (0.1, 0.05), (0.4, 0.01), (0.01, 0.2), (0.05, 0.02)]


@pytest.mark.parametrize(("draft_cost", "row_cost"), COSTS)
def test_no_tree_gives_more_tokens_per_time_than_the_optimal_one(draft_cost: float, row_cost: float) -> None:
    """All trees of up to 5 nodes and 3 levels; siblings may be any ranks."""
    paths = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    trees = (tree for size in range(1, 6) for tree in _connected(paths, size))
    best = max(_rate(tree, draft_cost, row_cost) for tree in trees)
    tree = optimal_tree(RANKS, 5, 3, draft_cost, row_cost)
    assert _rate(tree, draft_cost, row_cost) == pytest.approx(best)
    assert list(tree) == sorted(tree, key=lambda path: (len(path), path))


def _connected(paths: list[Path], size: int) -> set[frozenset[Path]]:
    """All trees of so many of these paths."""
    if size == 0:
        return {frozenset()}
    return {
        tree | {path}
        for tree in _connected(paths, size - 1)
        for path in paths
        if path not in tree and (len(path) == 1 or path[:-1] in tree)
    }


@pytest.mark.parametrize(("nodes", "depth"), [(3, 2), (7, 3), (9, 4)])
def test_the_dynamic_programme_of_the_paper_finds_no_better_tree(nodes: int, depth: int) -> None:
    """Without costs the largest tree is the optimal one."""
    tree = optimal_tree(RANKS, nodes, depth, 0.0, 0.0)
    assert len(tree) == nodes
    assert sum(prod(RANKS[rank] for rank in path) for path in tree) == pytest.approx(sequoia(RANKS, nodes, depth))


def test_the_optimal_tree_depends_on_what_rows_and_levels_cost() -> None:
    assert optimal_tree(RANKS, 9, 5, 0.5, 0.0) != optimal_tree(RANKS, 9, 5, 0.0, 0.0)
    assert optimal_tree(RANKS, 9, 5, 0.0, 9.0) == ((0,),)
    assert {len(path) for path in optimal_tree(RANKS, 9, 5, 9.0, 0.0)} == {1}


def test_a_draft_takes_its_tokens_from_the_rankings() -> None:
    """The example of the docstring; siblings by rank; depths without a ranking left out."""
    draft = pick(((0,), (1,), (0, 0)), ((5, 7), (9,)))
    assert (draft.tokens, draft.parents) == ((5, 7, 9), (ROOT, ROOT, 0))
    shallow = pick(((0,), (1,), (0, 0)), ((5, 7),))
    assert (shallow.tokens, shallow.parents) == ((5, 7), (ROOT, ROOT))


def test_picks_that_are_never_right_are_no_nodes() -> None:
    assert sparse_tree([[0.5, 0.0], [0.4, 0.0]], 10) == ((0,), (0, 0))


def test_a_tree_of_too_many_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="1,001,001,000 nodes"):
        read_widths("1000x1000x1000", 3, "sparse")
