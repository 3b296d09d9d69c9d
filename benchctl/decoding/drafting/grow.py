"""Trees that grow level by level or node by node: by joint probability, of a given shape, or best first.

A token of ``stop_ids`` has no children, since the answer ends with it.

A grower asks its caller for scores of the next tokens behind a `Frontier`, and never for the same node twice. A drafter
with a cache runs the rows of the frontier. Heads that score a whole depth at once return the same row for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp, inf
from typing import NamedTuple

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.trees import Path
from benchctl.decoding.modules.draft_vocabulary import ALL_TOKENS, DraftVocabulary
from benchctl.decoding.sampling import Sampling, draw, draw_distinct


@dataclass(frozen=True)
class Frontier:
    """Nodes whose next tokens are to be scored; the first frontier is the root alone, which has no token here.

    depth    0 for the root, 1 for its children
    tokens   [rows] ids in the target's vocabulary
    parents  [rows] the node that each continues, by its place among all nodes of earlier frontiers; the root is 0

    After the root, tokens (5, 7) with parents (0, 0), then (9,) with parent (2,) is 9 behind 7.
    """

    depth: int = 0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


Expand = Callable[[Frontier], Tensor]
"""[rows, k] scores behind a frontier; for the root [1, k]."""


def wide(draft_logits: Tensor) -> Tensor:
    """In float32 at least: half precision is too coarse to rank nodes, or to stop by."""
    return draft_logits.to(torch.promote_types(draft_logits.dtype, torch.float32))


def node_probs(draft_logits: Tensor, sampling: Sampling, vocabulary: DraftVocabulary, tokens: int) -> Tensor:
    """[rows, k] logits as probabilities [rows, tokens] over the target's ``tokens``, by which children are picked."""
    probs = wide(draft_logits).softmax(-1) if sampling.greedy else sampling.probs(draft_logits)
    return vocabulary.spread(probs, tokens)


@dataclass(frozen=True)
class Picks:
    """How the children of a node are chosen, as the run chooses tokens: its likeliest tokens, or drawn ones."""

    sampling: Sampling
    generator: torch.Generator
    replacement: bool = False

    def of(self, probs: Tensor, count: int) -> list[int]:
        """``count`` tokens by ``probs`` [vocabulary], which need not add up to 1; fewer where fewer are possible."""
        if self.sampling.greedy:
            values, tokens = probs.topk(min(count, len(probs)))
            likeliest: list[int] = tokens[values > 0].tolist()
            return likeliest
        if self.replacement:
            return [draw(probs, self.generator) for _ in range(count)]
        return draw_distinct(probs, count, self.generator)

    def draft(self, tokens: Sequence[int], parents: Sequence[int], probs: Sequence[Tensor]) -> Draft:
        """The draft of tokens chosen by ``probs`` [rows][vocabulary], which siblings share."""
        drawn = None if self.sampling.greedy or not probs else tuple(probs)
        return Draft(tuple(tokens), tuple(parents), probs=drawn, replacement=self.replacement)


def grow_likeliest(
    expand: Expand,
    width: int,
    depth: int,
    nodes: int,
    vocabulary: DraftVocabulary = ALL_TOKENS,
    confidence: float = 0.0,
    stop_ids: frozenset[int] = frozenset(),
) -> Draft:
    """The ``nodes`` likeliest of all scored candidates (EAGLE-2, Li et al. 2406.16858, section 4; cnets.py).

    ``expand`` returns log-probabilities over ``vocabulary``. Each node of a frontier proposes its ``width`` likeliest
    tokens, and the ``width`` best of these candidates are the next frontier, down to ``depth``. A candidate's score is
    the sum of log-probabilities along its path, so the best candidates are a tree; of equal scores the shallower one
    wins, then the earlier one. Candidates with a joint probability below ``confidence`` are left out.

    ``expand`` is called ``depth`` times at most. A node that is not among the best so far, or is the worst of a full
    tree, has no descendant among the best at the end. So it is not expanded, unlike in the authors' code; the tree is
    the same.

    The tokens are chosen, not drawn, so verification takes them for certain proposals.
    """
    scored: list[_Candidate] = []
    best: list[int] = []  # candidates, by their places in ``scored``
    expanding, frontier, expanded = [_Candidate(0.0, -1, ROOT, -1)], Frontier(), 0
    rows = [ROOT]
    for level in range(1, depth + 1 if nodes > 0 else 1):
        log_probs = expand(frontier)
        values, columns = log_probs.topk(min(width, log_probs.shape[-1]))
        first = len(scored)
        for node, row, node_values, node_columns in zip(
            expanding, rows, values.tolist(), columns.tolist(), strict=True
        ):
            for value, column in zip(node_values, node_columns, strict=True):
                score = node.score + min(value, 0.0)  # rounding must not make a child likelier than its parent
                if score > -inf and exp(score) >= confidence:
                    scored.append(_Candidate(score, vocabulary.token(column), row, expanded))
            expanded += 1
        best = sorted(range(len(scored)), key=lambda row: -scored[row].score)[:nodes]  # a stable order
        # A full tree takes no child of its worst node: it is no likelier than that node, and comes later.
        worst = scored[best[-1]].score if len(best) == nodes else -inf
        newest = sorted(range(first, len(scored)), key=lambda row: -scored[row].score)[:width]
        rows = [row for row in newest if scored[row].score > worst and scored[row].token not in stop_ids]
        if not rows:
            break
        expanding = [scored[row] for row in rows]
        tokens = tuple(node.token for node in expanding)
        frontier = Frontier(level, tokens, tuple(node.place for node in expanding))
    kept = sorted(best)
    row_of = {ROOT: ROOT} | {place: row for row, place in enumerate(kept)}
    return Draft(tuple(scored[place].token for place in kept), tuple(row_of[scored[place].parent] for place in kept))


class _Candidate(NamedTuple):
    """A scored text: log-probability, its last token, its parent among the candidates, and among expanded nodes."""

    score: float
    token: int
    parent: int
    place: int


def grow_shape(expand: Expand, shape: Sequence[Path], picks: Picks, stop_ids: frozenset[int] = frozenset()) -> Draft:
    """A tree of given ``shape``, level by level: a node gets as many children as ``shape`` has paths right behind it.

    ``expand`` returns probabilities over the target's vocabulary. Where fewer tokens are possible, the paths of the
    others are left out. Widths by level are SpecInfer's trees (Miao et al. 2305.09781, section 3), drawn without
    replacement RSD-C's (Jeon et al. 2402.14160), of an optimal shape Sequoia's (Chen et al. 2402.12374).
    """
    widths = Counter(path[:-1] for path in shape)
    tokens: list[int] = []
    parents: list[int] = []
    rows_probs: list[Tensor] = []
    nodes = [_Node((), ROOT, 0)] if shape else []
    frontier, expanded = Frontier(), 0
    while nodes:
        probs = expand(frontier)
        behind: list[_Node] = []
        for place, (node, node_probs) in enumerate(zip(nodes, probs, strict=True), expanded):
            for rank, token in enumerate(picks.of(node_probs, widths[node.path])):
                if (path := (*node.path, rank)) in widths and token not in stop_ids:
                    behind.append(_Node(path, len(tokens), place))
                tokens.append(token)
                parents.append(node.row)
                rows_probs.append(node_probs)
        expanded += len(nodes)
        nodes = behind
        places = tuple(node.parent for node in nodes)
        frontier = Frontier(frontier.depth + 1, tuple(tokens[node.row] for node in nodes), places)
    return picks.draft(tokens, parents, rows_probs)


class _Node(NamedTuple):
    """A node to expand: its path of ranks, its row in the draft, and its parent's place among expanded nodes."""

    path: Path
    row: int
    parent: int


def grow_best_first(
    expand: Expand,
    depth: int,
    nodes: int,
    picks: Picks,
    confidence: float = 0.0,
    stop_ids: frozenset[int] = frozenset(),
) -> Draft:
    """At most ``nodes`` tokens, each the next child of the node where it is likeliest to be accepted (DySpec).

    Xiong et al. 2410.11744, algorithm 1: a heap of possible children; the key of a node's next child is the probability
    of the node's path times what its earlier siblings left of the probabilities. The tree ends where all keys are below
    ``confidence``, as in the paper's variant with a threshold. ``expand`` returns probabilities over
    the target's vocabulary, for one node per call, and only when the node gets a child. Children are drawn without
    replacement: whether a node gets another one depends on the draws before it, never on its own, so verification
    gives the target's distribution.
    """
    if picks.replacement:
        raise ValueError("a tree that grows best first draws without replacement")
    tokens: list[int] = []
    parents: list[int] = []
    rows_probs: list[Tensor] = []
    heap = [(-1.0, 0, _Growing(ROOT, Frontier()))] if depth > 0 else []
    expanded, order = 0, 1  # of equal keys the older comes first
    while heap and len(tokens) < nodes:
        key, _, node = heappop(heap)
        if -key < confidence:
            break
        if node.place < 0:
            node.place, node.probs = expanded, expand(node.frontier)[0]
            node.left = node.probs.clone()
            expanded += 1
        if not (picked := picks.of(node.left, 1)):
            continue
        token, row = picked[0], len(tokens)
        tokens.append(token)
        parents.append(node.row)
        rows_probs.append(node.probs)
        node.left[token] = 0.0
        level = node.frontier.depth + 1
        if level < depth and token not in stop_ids:
            share = node.share * float(node.probs[token])
            child = _Growing(row, Frontier(level, (token,), (node.place,)), share)
            heappush(heap, (-share, order, child))
        heappush(heap, (-node.share * float(node.left.sum()), order + 1, node))
        order += 2
    return picks.draft(tokens, parents, rows_probs)


@dataclass(eq=False)
class _Growing:
    """A node that may get another child.

    share  probability of the path to it
    place  among the expanded nodes, -1 before it is one of them; from then on probs and left [vocabulary], those of its
           children and what drawn children left of them
    """

    row: int
    frontier: Frontier
    share: float = 1.0
    place: int = -1
    probs: Tensor = field(default_factory=lambda: torch.empty(0))
    left: Tensor = field(default_factory=lambda: torch.empty(0))
