"""Draft from n-grams that the target generated itself, by Jacobi iterations within every verification pass.

Fu et al.: Lookahead Decoding, 2024, arXiv 2402.02057; levels fill and shift as in the authors' code. Ours: the bonus
token after a full match, guesses with a common prefix share rows, no window beyond the context or too late to be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.method import Context, Outcome, Speculative, check_options
from benchctl.decoding.model.target import TargetInfo
from benchctl.decoding.sampling import likeliest
from benchctl.decoding.verify import Verdict

Guess = tuple[int, ...]


@dataclass
class Lookahead(Speculative):
    """Draft n-grams collected by Jacobi iterations that run in every verification pass.

    The window starts with tokens drawn from the prompt, so another seed changes the steps, but not greedy answers.

    ngram        tokens of an n-gram: the first one is its key, the others are the guess; 5 in the authors' code
    window       columns of the window: new n-grams per pass; 7 in the authors' code
    guesses      n-grams kept per first token (the most recent ones); all are verified together; 7 in the authors' code
    bonus        also add the target's own token after a full match; false matches the authors' code
    prompt_pool  also take n-grams from the prompt and the answer
    """

    ngram: int = 4
    window: int = 1
    guesses: int = 2
    bonus: bool = True
    prompt_pool: bool = True
    needs_layers = False
    drafts_trees = True
    drafts_from_text = False  # but from the window and the n-grams of all earlier steps
    can_combine = False
    # Up to ngram - 1 levels of equally many columns: a column continues level 0 up to its own token there, then its own
    # tokens of the levels above. The first token of level 0 is the root.
    _levels: list[list[int]] = field(default_factory=list, init=False, repr=False, compare=False)
    _pool: dict[int, dict[Guess, None]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _read_tokens: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 2, "ngram")
        check_options(self, 1, "window")
        check_options(self, 0, "guesses")

    def unsupported(self, target: TargetInfo) -> str | None:
        ahead = self.window + self.ngram - 3
        if ahead < target.context_tokens:
            return None
        reach = f"window={self.window} with ngram={self.ngram} looks {ahead} tokens ahead"
        return f"{reach}, but the target takes {target.context_tokens} in all; give a smaller window"

    def start(self, context: Context) -> int:
        prompt = context.tokens
        places = torch.randint(len(prompt), (self.window + self.ngram - 3,), generator=context.generator)
        self._levels = [[prompt[-1], *(prompt[place] for place in places.tolist())]]
        self._pool, self._read_tokens = {}, 0
        self._fit(context, context.remaining_tokens - 1)
        if not 0 < len(self._levels) < self.ngram - 1:
            return super().start(context)
        context.stream.push([*prompt, *self._levels[0][1:]])
        context.stream.advance()
        target_logits = context.stream.logits(len(prompt) - 1)
        context.stream.keep(range(len(prompt)))
        self._take(likeliest(target_logits))
        return context.pick(target_logits[:1])

    def draft(self, context: Context, budget: int) -> Draft:
        if self.prompt_pool:
            for end in range(max(self._read_tokens + 1, self.ngram), len(context.tokens) + 1):
                self._store(context.tokens[end - self.ngram : end])
            self._read_tokens = len(context.tokens)
        self._fit(context, budget)
        if self._levels:
            self._levels[0][0] = context.tokens[-1]
        filled = len(context.tokens) - context.prompt_tokens >= self.ngram - 2  # a pass that fills gives one token
        known = self._pool.get(context.tokens[-1], {}) if filled else {}
        return self._with_window(Draft.merged(guess[:budget] for guess in known))

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        verdict = super().verify(context, draft, target_logits[: 1 + draft.scratch.count(False)])
        if self.bonus or len(verdict.path) < self.ngram - 1:
            return verdict
        return Verdict(verdict.path[:-1], draft.tokens[verdict.path[-1]])

    def observe(self, context: Context, outcome: Outcome) -> None:
        if not self._levels:
            return
        columns = len(self._levels[0])
        size = columns * len(self._levels)
        guessed = len(outcome.target_logits) - size
        newest = [node and node + guessed for node in range(size - columns, size)]
        self._take(likeliest(outcome.target_logits[newest]))

    def _fit(self, context: Context, budget: int) -> None:
        """Leave out columns that reach beyond the context, and a window whose n-grams no pass could verify any more."""
        room = context.target.context_tokens - len(context.tokens)
        columns = min([*map(len, self._levels), room - len(self._levels) + 2])
        useful = columns > 0 and budget > self.ngram - len(self._levels)
        self._levels = [level[:columns] for level in self._levels] if useful else []

    def _with_window(self, guesses: Draft) -> Draft:
        """The guesses, and behind them the window: level 0 is a chain, and each column goes on from its token there."""
        if not self._levels:
            return replace(guesses, scratch=(False,) * len(guesses))
        columns = len(self._levels[0])
        nodes = [token for level in self._levels for token in level]  # the first is the root
        continued = [node - 1 if node < columns else node - columns for node in range(1, len(nodes))]
        parents = [node - 1 + len(guesses) if node else ROOT for node in continued]
        scratch = (False,) * len(guesses) + (True,) * len(parents)
        return Draft((*guesses.tokens, *nodes[1:]), (*guesses.parents, *parents), scratch)

    def _take(self, successors: list[int]) -> None:
        """``successors`` continue the columns. A filling window loses its first column, a full one its first level."""
        levels = [*self._levels, successors]
        if len(levels) < self.ngram:
            self._levels = [level[1:] for level in levels]
            return
        for ngram in zip(*levels, strict=True):
            self._store(ngram)
        self._levels = levels[1:]

    def _store(self, ngram: Sequence[int]) -> None:
        known = self._pool.setdefault(ngram[0], {})
        guess = tuple(ngram[1:])
        known.pop(guess, None)
        known[guess] = None
        if len(known) > self.guesses:
            del known[next(iter(known))]
