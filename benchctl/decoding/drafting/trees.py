"""Static trees: which picks of several rankings, one per depth, are proposed together.

A node is the path of ranks that leads to it: (0, 2) is the third pick for the second token behind the first pick for
the first. Trees list parents before children and siblings by rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from benchctl.decoding.draft import ROOT, Draft

Path = tuple[int, ...]

MOST_NODES = 1024  # a pass over more rows costs more than any draft can win


def read_widths(text: str, depth: int, other: str) -> tuple[int, ...]:
    """Widths level by level, such as 4x2x1; ``other`` says what else the option takes.

    Raises ValueError for anything else, for more than ``depth`` levels and for more than MOST_NODES nodes.
    """
    parts = text.split("x")
    if len(parts) > depth or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"tree is {text!r}; it takes {other}, or up to {depth} widths joined by x, such as 4x2x1")
    widths = tuple(map(int, parts))
    nodes = sum(prod(widths[:level]) for level in range(1, len(widths) + 1))
    if nodes > MOST_NODES:
        raise ValueError(f"tree {text} has {nodes:,} nodes; the most is {MOST_NODES:,}: give smaller widths")
    return widths


def wide_tree(widths: Sequence[int]) -> tuple[Path, ...]:
    """The first ``widths[d]`` picks at depth d + 1, combined: (2, 1) gives (0) (1) (0 0) (1 0) (Medusa, 2.1.2)."""
    levels = range(1, len(widths) + 1)
    return tuple(path for depth in levels for path in product(*map(range, widths[:depth])))


def sparse_tree(shares: Sequence[Sequence[float]], nodes: int) -> tuple[Path, ...]:
    """The paths likeliest to be right: ``nodes`` at most, and none that never is right.

    ``shares[d][r]`` is how often rank r of depth d + 1 is. Depths are taken to be independent, so a path is never
    likelier than its parent: of each depth's paths no more than ``nodes`` are needed.
    """
    every: dict[Path, float] = {}
    paths: dict[Path, float] = {(): 1.0}
    for ranks in shares:
        grown = {(*path, rank): share * of for path, share in paths.items() for rank, of in enumerate(ranks) if of > 0}
        paths = {path: grown[path] for path in sorted(grown, key=lambda path: (-grown[path], path))[:nodes]}
        every |= paths
    return likeliest(every, nodes)


def likeliest(shares: Mapping[Path, float], nodes: int) -> tuple[Path, ...]:
    """The best tree of at most ``nodes`` nodes, where ``shares`` says how often each path is right as a whole.

    A path has no larger share than its parent, which is there too; so the largest shares, shorter paths first where two
    are equal, are a tree, and no other has a larger expected number of accepted tokens (Medusa, 2.3.3).
    """
    ranked = sorted(shares, key=lambda path: (-shares[path], len(path), path))
    return tuple(sorted(ranked[:nodes], key=lambda path: (len(path), path)))


def optimal_tree(
    ranks: Sequence[float], nodes: int, depth: int, draft_cost: float, row_cost: float
) -> tuple[Path, ...]:
    """The tree with the most tokens per time, where the pick of rank r behind an accepted token is right so often.

    Sequoia, Chen et al. 2402.12374, sections 3.1 and 3.3. Of every size and depth the best tree has the paths that are
    likeliest to be right; the paper's dynamic programme finds the same one. A step takes one target pass,
    ``draft_cost`` per level and ``row_cost`` per node.
    """

    def share(path: Path) -> float:
        return prod(ranks[rank] for rank in path)

    best: tuple[Path, ...] = ()
    best_rate = 0.0
    for levels in range(1, depth + 1):
        accepted = 0.0
        ranked = sorted(sparse_tree([ranks] * levels, nodes), key=lambda path: (-share(path), len(path), path))
        for size, path in enumerate(ranked, 1):
            accepted += share(path)
            rate = (1.0 + accepted) / (1.0 + draft_cost * levels + row_cost * size)
            if rate > best_rate:
                best, best_rate = tuple(ranked[:size]), rate
    return tuple(sorted(best, key=lambda path: (len(path), path)))


def pick(tree: Sequence[Path], ranked: Sequence[Sequence[int]]) -> Draft:
    """The draft of a tree; ``ranked[d]`` are the tokens for depth d + 1, best first. Deeper nodes are left out."""
    nodes = [path for path in tree if len(path) <= len(ranked)]
    rows = {path: row for row, path in enumerate(nodes)}
    tokens = tuple(ranked[len(path) - 1][path[-1]] for path in nodes)
    return Draft(tokens, tuple(rows.get(path[:-1], ROOT) for path in nodes))
