"""Static trees: which picks of several rankings, one per depth, are proposed together.

A node is the path of ranks that leads to it, 0 for a ranking's first pick: (0, 2) is the third pick for the second
token behind the first pick for the first. Trees list parents before children and siblings by rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from benchctl.decoding.draft import ROOT, Draft

Path = tuple[int, ...]

MOST_NODES = 1024  # a pass over more rows costs more than any draft can win


def read_widths(text: str, depth: int) -> tuple[int, ...]:
    """Widths level by level, such as 4x2x1.

    Raises ValueError for anything else, for more than ``depth`` levels and for more than MOST_NODES nodes.
    """
    parts = text.split("x")
    if len(parts) > depth or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"tree is {text!r}; it takes sparse, or up to {depth} widths joined by x, such as 4x2x1")
    widths = tuple(map(int, parts))
    nodes = sum(prod(widths[:level]) for level in range(1, len(widths) + 1))
    if nodes > MOST_NODES:
        raise ValueError(f"tree {text} has {nodes:,} nodes; it may have {MOST_NODES:,}")
    return widths


def wide_tree(widths: Sequence[int]) -> tuple[Path, ...]:
    """Every combination of the first picks, ``widths[d]`` of them at depth d + 1 (Medusa 2401.10774, section 2.1.2).

    Example: widths (2, 1) give (0) (1) (0 0) (1 0).
    """
    levels = range(1, len(widths) + 1)
    return tuple(path for depth in levels for path in product(*map(range, widths[:depth])))


def sparse_tree(shares: Sequence[Sequence[float]], nodes: int) -> tuple[Path, ...]:
    """The paths likeliest to be right, where ``shares[d][r]`` is how often rank r of depth d + 1 is.

    ``nodes`` of them at most, and none that never is right.
    Depths are taken to be independent and shares not to grow with the rank, so a path is never likelier than its
    parent or its elder sibling: greedy addition (Medusa, section 2.3.3) is then best.
    """
    chosen: list[Path] = []
    open_paths: list[tuple[float, int, Path]] = [(-shares[0][0], 1, (0,))]
    while open_paths and len(chosen) < nodes:
        path = heapq.heappop(open_paths)[2]
        chosen.append(path)
        for other in ((*path, 0), (*path[:-1], path[-1] + 1)):
            if len(other) <= len(shares) and other[-1] < len(shares[len(other) - 1]):
                share = prod(shares[depth][rank] for depth, rank in enumerate(other))
                if share > 0:
                    heapq.heappush(open_paths, (-share, len(other), other))
    return tuple(sorted(chosen, key=lambda path: (len(path), path)))


def rank_shares(tops: Mapping[int, float]) -> list[float]:
    """How often each rank is right, given how often it is among the first k; ranks between two k count alike.

    Where few measurements say that a later rank is right more often than an earlier one, both count alike too.
    Examples: {1: 0.5, 2: 0.6, 4: 0.7} gives 0.5, 0.1, 0.05, 0.05 and {1: 0.3, 2: 0.32, 4: 0.39} gives 0.3 and three
    times 0.03.
    """
    levels: list[tuple[float, int]] = []  # share of all the ranks together, and how many they are
    ranks, found = 0, 0.0
    for k, share in sorted(tops.items()):
        level = (max(share - found, 0.0), k - ranks)
        ranks, found = k, max(share, found)
        while levels and level[0] * levels[-1][1] > levels[-1][0] * level[1]:
            before = levels.pop()
            level = (before[0] + level[0], before[1] + level[1])
        levels.append(level)
    return [share / count for share, count in levels for _ in range(count)]


def pick(tree: Sequence[Path], ranked: Sequence[Sequence[int]]) -> Draft:
    """The draft of a tree; ``ranked[d]`` are the tokens for depth d + 1, best first. Deeper nodes are left out.

    Example: the tree (0) (1) (0 0) with ranked ((5, 7), (9,)) proposes "5 9" and, besides, "7".
    """
    nodes = [path for path in tree if len(path) <= len(ranked)]
    rows = {path: row for row, path in enumerate(nodes)}
    tokens = tuple(ranked[len(path) - 1][path[-1]] for path in nodes)
    return Draft(tokens, tuple(rows.get(path[:-1], ROOT) for path in nodes))
