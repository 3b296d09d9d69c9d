"""Draft from the tokens that the target found likeliest after each token when it last saw it.

Token Recycling: Luo et al. 2024, arXiv 2408.08696. After each verification the 8 likeliest next tokens of every row
replace the row of its token in an adjacency matrix. A draft is a fixed tree whose nodes are paths of ranks in it. Ours:
a token without a row has no children (the authors' code drafts token 0), and the tree may have fewer nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.method import CarriesOver, Context, Outcome, Speculative, check_options

RANKS = 8
# The paths of the authors' tree as digits of ranks, those that were right most often first: chosen on ref-dense; no
# results file is kept.
_ORDER = (
    "0 00 000 0000 00000 000000 1 01 2 10 010 3 100 001 0100 1000 02 4 20 10000 5 6 0010 01000 7 03 30 002 "
    "0001 00001 00100 11 020 40 003 200 2000 05 06 21 60 004 011 101 400 0020 0030 0200 000001 007 060 300 "
    "0003 0040 00002 00010 04 12 005 030 050 110 0011 000100 07 22 006 012 021 070 0002 0004 3000 13 31 50 "
    "70 040 500 00020"
)
PATHS = tuple(tuple(map(int, path)) for path in _ORDER.split())


@dataclass
class TokenRecycling(Speculative, CarriesOver):
    """Draft a tree of the tokens that lately were the likeliest after each other.

    nodes   rows of the tree: the first of the authors' 80, by how often they were right
    memory  run: keep what was learnt from the prompts before, as the authors' code does
    """

    nodes: int = 8
    memory: Literal["prompt", "run"] = "prompt"
    drafts_from_text = False  # but from the rows of all earlier steps
    supports_encoder_decoder = True
    needs_layers = False
    drafts_trees = True
    store: dict[int, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "nodes", most=len(PATHS))

    def new_store(self) -> dict[int, list[int]]:
        """The likeliest next tokens of each token, best first."""
        return {}

    def draft(self, context: Context, budget: int) -> Draft:
        tokens, parents, rows = list[int](), list[int](), dict[tuple[int, ...], int]({(): ROOT})
        for path in sorted(PATHS[: self.nodes], key=lambda path: (len(path), path)):
            if len(path) > budget or path[:-1] not in rows:
                continue
            parent = rows[path[:-1]]
            ranked = self.store.get(context.tokens[-1] if parent == ROOT else tokens[parent], ())
            if path[-1] < len(ranked):
                rows[path] = len(tokens)
                tokens.append(ranked[path[-1]])
                parents.append(parent)
        return Draft(tuple(tokens), tuple(parents))

    def observe(self, context: Context, outcome: Outcome) -> None:
        """Of several rows with one token the last counts, as in the authors' code."""
        ranks = min(RANKS, outcome.target_logits.shape[-1])
        ranked = outcome.target_logits.topk(ranks, dim=-1).indices.tolist()
        self.store.update(zip((context.tokens[-1], *outcome.draft.tokens), ranked, strict=True))
