"""Draft what most often followed the last tokens of the text, in the text itself and in earlier answers.

SuffixDecoding: Oliaro et al. 2024, arXiv 2411.04975, by the rules of its public code (ArcticInference). Of all lengths
of the match the draft with the highest score is verified, where n counts occurrences, that at the text's end included:

    p(y | c) = n(c y) / n(c), and score = the sum of p over the drafted tokens y, each with its whole path from c

``rank=longest`` is SAM-Decoding, Hu et al. 2024, arXiv 2411.10666; a file of ``texts`` is the datastore of REST, He et
al. 2023, arXiv 2311.08252.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import itemgetter
from typing import Literal

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.occurrences import Node, Occurrences
from benchctl.decoding.drafting.texts import UsesTexts
from benchctl.decoding.method import CarriesOver, Context, Outcome, Speculative, check_options, refuse_options
from benchctl.decoding.model.target import Target

Scored = tuple[float, Draft]
"""A draft behind its score, which is the length of the match for ``rank=longest``."""


@dataclass
class Suffix(Speculative, CarriesOver, UsesTexts):
    """Draft the continuation with the highest score, which is found by counting.

    draft_tokens  tokens drafted at most
    depth         longest match and its continuation together; 64 in the authors' code, 24 in vLLM
    factor        at most ``factor`` times the length of the match, plus ``offset``, tokens are drafted
    offset        see factor; 0 in the authors' code
    min_prob      no token with a lower p is drafted; 0.1 in the authors' code
    min_match     fewest tokens that the longest match must have
    tree          draft the likeliest continuations as a tree, not one of them
    rank          score (SuffixDecoding) or longest (SAM-Decoding)
    memory        run: also draft from the answers to the prompts before
    texts         also draft from the texts in this file
    """

    draft_tokens: int = 24
    depth: int = 24
    factor: float = 1.0
    offset: float = 0.0
    min_prob: float = 0.1
    min_match: int = 1
    tree: bool = False
    rank: Literal["score", "longest"] = "score"
    memory: Literal["prompt", "run"] = "prompt"
    texts: str = ""
    supports_encoder_decoder = True
    needs_layers = False
    store: Occurrences = field(init=False, repr=False, compare=False)
    _text: Occurrences = field(init=False, repr=False, compare=False)
    _fixed: Occurrences = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens", "min_match")
        if self.depth <= self.min_match:
            raise ValueError(f"depth is {self.depth}; it must be above min_match, which is {self.min_match}")
        check_options(self, 0, "factor")
        check_options(self, 0, "min_prob", most=1)
        if self.rank == "longest":
            refuse_options(self, "with rank=longest", "factor", "offset", "min_prob", "tree")

    def prepare(self, target: Target) -> None:
        self._fixed = self.new_store()
        for text in self.read_texts(target.tokenizer) if self.texts else ():
            self._fixed.append(text)
            self._fixed.close()

    def new_store(self) -> Occurrences:
        return Occurrences(self.depth)

    @property
    def drafts_trees(self) -> bool:  # type: ignore[override]
        return self.tree

    @property
    def drafts_from_text(self) -> bool:  # type: ignore[override]
        return self.memory == "prompt"

    def start(self, context: Context) -> int:
        self._text = self.new_store()
        first = super().start(context)
        if self.memory == "run":
            self.store.close()
            self.store.append([first])
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        self._text.append(context.tokens[len(self._text.tokens) :])
        stores = (self._text, self.store, self._fixed)
        return max((self._best(store, context.tokens, budget) for store in stores), key=itemgetter(0))[1]

    def observe(self, context: Context, outcome: Outcome) -> None:
        """The answer ends with its first stop token, also where later tokens were accepted."""
        if self.memory == "run":
            stops = context.target.stop_ids
            end = next((place for place, token in enumerate(outcome.tokens, 1) if token in stops), None)
            self.store.append(outcome.tokens[:end])

    def _best(self, store: Occurrences, text: list[int], budget: int) -> Scored:
        """The best draft from one store; of two with equal scores that of the longer match."""
        matches, best = store.matches(text), (0.0, Draft())
        if self.rank == "longest":
            return self._copied(store, matches, min(self.draft_tokens, budget))
        grow = self._tree if self.tree else self._chain
        for size in range(len(matches), self.min_match - 1, -1):
            tokens = min(self.draft_tokens, int(size * self.factor + self.offset + 1e-6))
            depth = min(tokens, budget, self.depth - size)
            if tokens > best[0]:  # which no draft of so many tokens could exceed
                best = max(best, grow(store, matches[size - 1], tokens, depth), key=itemgetter(0))
        return best

    def _chain(self, store: Occurrences, match: Node, tokens: int, depth: int) -> Scored:
        """Token by token the most frequent one; of equally frequent ones the one that occurred first."""
        chain, total, node = list[int](), 0, match
        while len(chain) < depth and (children := store.children(node)):
            token, node = max(children.items(), key=lambda child: child[1].count)
            if node.count / match.count < self.min_prob:
                break
            chain.append(token)
            total += node.count
        return total / match.count, Draft.chain(chain)

    def _tree(self, store: Occurrences, match: Node, tokens: int, depth: int) -> Scored:
        """The most frequent continuations; of equally frequent ones the shortest, then the one that occurred first."""
        chosen, parents, total = list[int](), list[int](), 0
        queue: list[tuple[int, int, int, int, int, Node]] = []
        parent, level, node = ROOT, 1, match
        while True:
            for token, child in store.children(node).items() if level <= depth else ():
                if child.count / match.count >= self.min_prob:
                    heappush(queue, (-child.count, level, child.end, token, parent, child))
            if not queue or len(chosen) == tokens:
                return total / match.count, Draft(tuple(chosen), tuple(parents))
            _, level, _, token, parent, node = heappop(queue)
            chosen.append(token)
            parents.append(parent)
            total, parent, level = total + node.count, len(chosen) - 1, level + 1

    def _copied(self, store: Occurrences, matches: Sequence[Node], budget: int) -> Scored:
        """Copy the tokens after the first occurrence of the longest match. If too few follow, try a shorter match."""
        copied: list[int] = []
        for match in reversed(matches) if len(matches) >= self.min_match else ():
            # As in the authors' code, whose text lacks its last token, and whose drafts begin with that token.
            copied = store.following(match, self.draft_tokens + 2)
            if len(copied) == self.draft_tokens + 2:
                break
        return len(matches) if copied else 0, Draft.chain(copied[:budget])
