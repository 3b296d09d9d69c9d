"""Draft what most often followed the last tokens of the text, in the text itself and in earlier answers.

SuffixDecoding: Oliaro et al. 2024, arXiv 2411.04975, with the rules of its public code (ArcticInference). The
continuation that scores best over all lengths of the match is drafted, by counts:

    p(y | c) = n(c y) / n(c)        n: occurrences, that of c at the end of the text included
    score    = sum of p over the drafted tokens, where p of a token is that of the whole path to it

``rank=longest`` is SAM-Decoding, Hu et al. 2024, arXiv 2411.10666: it copies what followed the longest match.
``texts`` is a fixed datastore as in REST, He et al. 2023, arXiv 2311.08252, under the same scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.occurrences import END, Node, Occurrences
from benchctl.decoding.drafting.texts import UsesTexts
from benchctl.decoding.method import CarriesOver, Context, Outcome, Speculative, check_options
from benchctl.decoding.model.target import Target


class Scored(NamedTuple):
    """A draft with its score; for ``rank=longest`` the score is the length of the match."""

    score: float = 0.0
    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()


@dataclass
class Earlier:
    """Answers to earlier prompts, and the answer that is being written, which joins them when the next one begins."""

    answers: Occurrences
    current: list[int] = field(default_factory=list)


@dataclass
class Suffix(Speculative, CarriesOver, UsesTexts):
    """Draft the continuation with the highest score, which is found by counting.

    draft_tokens  tokens drafted at most
    depth         longest match and its continuation together; 64 in the authors' code, 24 in vLLM
    factor        at most ``factor`` times the length of the match, plus ``offset``, tokens are drafted
    offset        see factor; 0 in the authors' code
    min_prob      no token with a lower p is drafted; 0.1 in the authors' code
    min_match     shortest match that is used
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
    store: Earlier = field(init=False, repr=False, compare=False)
    _text: Occurrences = field(init=False, repr=False, compare=False)
    _fixed: Occurrences | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens", "min_match")
        check_options(self, 2, "depth")
        check_options(self, 0, "factor")
        check_options(self, 0, "min_prob", most=1)
        if self.min_match >= self.depth:
            raise ValueError(f"min_match is {self.min_match}; it must be below depth, which is {self.depth}")
        for name in ("factor", "offset", "min_prob", "tree") if self.rank == "longest" else ():
            if getattr(self, name) != getattr(Suffix, name):
                raise ValueError(f"{name} is for rank=score: with rank=longest a draft has no score; leave it out")

    def prepare(self, target: Target) -> None:
        if self.texts:
            self._fixed = Occurrences(self.depth)
            for text in self.read_texts(target.tokenizer):
                self._fixed.append(text)
                self._fixed.close()

    def new_store(self) -> Earlier:
        return Earlier(Occurrences(self.depth))

    def start(self, context: Context) -> int:
        self._text = Occurrences(self.depth)
        if self.store.current:
            self.store.answers.append(self.store.current)
            self.store.answers.close()
            self.store.current = []
        first = super().start(context)
        if self.memory == "run":
            self.store.current.append(first)
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        self._text.append(context.tokens[len(self._text.tokens) :])
        stores = [self._text, self.store.answers, *([self._fixed] if self._fixed else [])]
        best = Scored()
        for store in stores:
            best = max(best, self._best(store, context.tokens, budget), key=lambda scored: scored.score)
        return Draft(tuple(best.tokens), tuple(best.parents))

    def observe(self, context: Context, outcome: Outcome) -> None:
        if self.memory == "run":
            self.store.current += outcome.tokens

    def _best(self, store: Occurrences, text: list[int], budget: int) -> Scored:
        """The best draft from one store; of two with equal scores that of the longer match."""
        best, grow = Scored(), self._tree if self.tree else self._chain
        matches = store.matches(text)
        if self.rank == "longest":
            return self._copied(store, matches, min(self.draft_tokens, budget))
        for size in range(len(matches), self.min_match - 1, -1):
            tokens = min(self.draft_tokens, int(size * self.factor + self.offset + 1e-6))
            depth = min(tokens, budget, self.depth - size)
            if tokens > best.score:  # which no draft of so many tokens could exceed
                best = max(best, grow(store, matches[size - 1], tokens, depth), key=lambda scored: scored.score)
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
        return Scored(total / match.count, chain, range(ROOT, len(chain) - 1))

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
                return Scored(total / match.count, chosen, parents)
            _, level, _, token, parent, node = heappop(queue)
            chosen.append(token)
            parents.append(parent)
            total += node.count
            parent, level = len(chosen) - 1, level + 1

    def _copied(self, store: Occurrences, matches: Sequence[Node], budget: int) -> Scored:
        """What followed the first occurrence of the longest match; of a shorter one if too few tokens follow."""
        if len(matches) < self.min_match:
            return Scored()
        copied: list[int] = []
        for match in reversed(matches):
            # As in the authors' code, whose text lacks its last token, and whose drafts begin with that token.
            copied = store.tokens[match.end + 1 : match.end + 1 + self.draft_tokens + 2]
            copied = copied[: copied.index(END)] if END in copied else copied
            if len(copied) == self.draft_tokens + 2:
                break
        copied = copied[:budget]
        return Scored(float(len(matches)), copied, range(ROOT, len(copied) - 1))
