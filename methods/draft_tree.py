"""Speculative decoding with a smaller draft model that drafts trees.

The trees: SpecInfer, Miao et al. 2305.09781; RSD, Jeon et al. 2402.14160; Sequoia, Chen et al. 2402.12374; DySpec,
Xiong et al. 2410.11744; EAGLE-2, Li et al. 2406.16858. Growth: drafting/grow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import (
    Frontier,
    Picks,
    grow_best_first,
    grow_likeliest,
    grow_shape,
    node_probs,
    wide,
)
from benchctl.decoding.drafting.second_model import DraftModelMethod
from benchctl.decoding.drafting.trees import MOST_NODES, Path, optimal_tree, read_widths, wide_tree
from benchctl.decoding.method import Context, Outcome, check_options, refuse_options

_USED = {
    "likeliest": ("nodes", "depth", "width", "confidence"),
    "best_first": ("nodes", "depth", "confidence"),
    "optimal": ("nodes", "depth", "ranks", "draft_cost", "row_cost"),
}
_ALL = ("nodes", "depth", "width", "confidence", "ranks", "draft_cost", "row_cost")


@dataclass
class DraftTree(DraftModelMethod):
    """Draft a tree with a smaller model, and verify it in one pass of the target.

    draft_model       the draft model; empty: the one that --draft-model names
    draft_vocabulary  tokens that the draft model scores: stored (those kept with it, if any) or whole
    tree              likeliest (EAGLE-2: the best of all scored texts), best_first (DySpec), optimal (Sequoia: the best
                      shape for ranks and costs) or widths by level such as 3x2x1 (SpecInfer)
    nodes, depth      most tokens, and most levels, of a tree; widths have their own
    width             for tree=likeliest, tokens scored behind a node, and nodes expanded per level
    confidence        for tree=likeliest and best_first: texts that the draft model finds less likely are left out
    replacement       when sampling, draw siblings of widths and tree=optimal independently, so that some are equal
    ranks             for tree=optimal: how often the draft model's first, second, ... choice is accepted
    draft_cost        for tree=optimal: time of a pass of the draft model in target passes
    row_cost          for tree=optimal: time of one more verified row in target passes
    """

    drafts_trees = True
    tree: str = "likeliest"
    nodes: int = 12
    depth: int = 8
    width: int = 3
    confidence: float = 0.1
    replacement: bool = False
    ranks: str = "0.63+0.16+0.07+0.02"
    draft_cost: float = 0.1
    row_cost: float = 0.1
    _shape: tuple[Path, ...] = field(init=False, repr=False, compare=False)
    _places: dict[tuple[int, int], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "nodes", "depth", "width", most=MOST_NODES)
        check_options(self, 0, "draft_cost", "row_cost")
        check_options(self, 0, "confidence", most=1)
        if self.replacement and self.tree in ("likeliest", "best_first"):
            raise ValueError(f"tree={self.tree} never draws siblings independently; leave out replacement")
        used = _USED.get(self.tree, ())
        refuse_options(self, f"with tree={self.tree}", *(name for name in _ALL if name not in used))
        if self.tree == "optimal":
            ranks = _read_ranks(self.ranks)
            self._shape = optimal_tree(ranks, self.nodes, self.depth, self.draft_cost, self.row_cost)
        elif self.tree not in ("likeliest", "best_first"):
            self._shape = wide_tree(read_widths(self.tree, MOST_NODES, "likeliest, best_first or optimal"))

    def draft(self, context: Context, budget: int) -> Draft:
        unread = self.unread(context)
        self._places = {}
        depth = min(budget, self.room)
        score, picks = (
            partial(self._score, context, unread),
            Picks(context.sampling, context.generator, self.replacement),
        )
        probs = partial(self._probs, context, unread)
        if self.tree == "likeliest":
            depth = min(depth, self.depth)
            return grow_likeliest(score, self.width, depth, self.nodes, self.vocabulary, self.confidence, self._stops)
        if self.tree == "best_first":
            return grow_best_first(probs, min(depth, self.depth), self.nodes, picks, self.confidence, self._stops)
        return grow_shape(probs, [path for path in self._shape if len(path) <= depth], picks, self._stops)

    def _expand(self, context: Context, unread: Sequence[int], frontier: Frontier) -> Tensor:
        """Draft logits [rows, k]; the draft model keeps the rows until the verdict."""
        if frontier.depth == 0:
            return self.feed(context, unread)
        keys = zip(frontier.parents, frontier.tokens, strict=True)
        for place, key in enumerate(keys, self._stream.rows + 1):
            self._places.setdefault(key, place)  # of equal siblings the first
        own = [self._tokens.read(token)[0] for token in frontier.tokens]
        return self.score(context, own, [parent - 1 for parent in frontier.parents])  # the root is read already

    def _score(self, context: Context, unread: Sequence[int], frontier: Frontier) -> Tensor:
        return wide(self._expand(context, unread, frontier)).log_softmax(-1)

    def _probs(self, context: Context, unread: Sequence[int], frontier: Frontier) -> Tensor:
        draft_logits = self._expand(context, unread, frontier)
        return node_probs(draft_logits, context.sampling, self.vocabulary, context.target.vocabulary)

    def observe(self, context: Context, outcome: Outcome) -> None:
        """The draft model keeps the accepted rows that it has run; none where it has not drafted, see `Combine`."""
        if not self._stream.rows:
            return
        kept, place = list[int](), 0
        for token in outcome.tokens[:-1]:
            if not (place := self._places.get((place, token), 0)):
                break
            kept.append(place - 1)
        self._stream.keep(kept)


def _read_ranks(text: str) -> tuple[float, ...]:
    """Shares such as 0.6+0.2. Raises ValueError where they are not a falling row of shares of at most 1 together."""
    try:
        ranks = tuple(map(float, text.split("+")))
    except ValueError:
        ranks = ()
    if (
        not ranks
        or not ranks[0] > 0
        or min(ranks) < 0
        or not sum(ranks) <= 1
        or list(ranks) != sorted(ranks, reverse=True)
    ):
        raise ValueError(f"ranks is {text!r}; it takes shares from the largest, at most 1 in all, such as 0.6+0.2")
    return ranks
