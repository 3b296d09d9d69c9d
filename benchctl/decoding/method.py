"""What a method is: how it starts, what one step does, and the two families that do most of the work for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target
from benchctl.decoding.verify import Verdict, verify_greedy, verify_rejection

Exactness = Literal["exact", "exact_greedy", "lossy"]


@dataclass(frozen=True)
class Step:
    """What one call of Method.step committed.

    tokens    committed ids: the accepted ones, then the bonus token
    drafted   tokens along the deepest branch of the draft
    accepted  drafted tokens kept
    rows      rows the step brought to the target: the root and its draft
    layers    layers run for each committed token
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    rows: int
    layers: tuple[int, ...]


@dataclass
class Context:
    """One generation as a method sees it: the stream of the target, the text so far, how tokens are drawn."""

    target: Target
    stream: Stream
    tokens: list[int]
    prompt_tokens: int
    limit_tokens: int
    sampling: Sampling
    generator: torch.Generator

    @property
    def remaining_tokens(self) -> int:
        """New tokens still to come; a draft deeper than this minus one is wasted, for the bonus token is the last."""
        return self.prompt_tokens + self.limit_tokens - len(self.tokens)

    def pick(self, logits: Tensor) -> int:
        """The next token for logits [1, vocabulary]: the argmax, or one drawn."""
        return self.sampling.draw(logits, self.generator)


class Method(ABC):
    """Base of all methods. Subclasses are dataclasses; their fields are the options of the label.

    exactness and reason state what the method claims; tests hold it to that.
    """

    exactness: Exactness = "exact"
    reason: str = ""
    needs_draft_model: ClassVar[bool] = False

    def unsupported(self, target: Target) -> str | None:
        """Why this method cannot run on ``target``; None when it can."""
        return None

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> None:  # noqa: B027 optional
        """Once per run: load what the method needs besides the target. ``models`` loads a model by name."""

    def start(self, context: Context) -> int:
        """Prefill: the prompt through all layers; the first token. State of earlier prompts must not survive this."""
        stream = context.stream
        stream.push(context.tokens)
        stream.advance()
        first = context.pick(stream.logits(stream.rows - 1))
        stream.keep(range(stream.rows))
        return first

    @abstractmethod
    def step(self, context: Context) -> Step:
        """Commit at least one token. ``context.tokens`` is extended by the loop, not here."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a verification showed: target_logits and states [1 + rows, ...], the root's first."""

    draft: Draft
    verdict: Verdict
    target_logits: Tensor
    states: Tensor


class Speculative(Method):
    """Draft, verify, commit. A drafter may push and part-run rows itself; what it has not run, verification runs."""

    @abstractmethod
    def draft(self, context: Context, budget: int) -> Draft:
        """At most ``budget`` tokens deep. The root, the last committed token, is already pushed to the stream."""

    def observe(self, context: Context, outcome: Outcome) -> None:
        """After each verification; scratch rows' logits are in the outcome."""

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        """Verdict for logits [1 + rows, vocabulary]; the exact rules, unless a method overrides this."""
        if context.sampling.greedy:
            return verify_greedy(draft, target_logits.argmax(-1).tolist())
        return verify_rejection(draft, context.sampling.probs(target_logits), context.generator)

    def step(self, context: Context) -> Step:
        stream = context.stream
        stream.push(context.tokens[-1:])
        root = stream.rows - 1
        draft = self.draft(context, context.remaining_tokens - 1)
        pushed = stream.rows - root - 1
        stream.push(draft.tokens[pushed:], [root + 1 + parent for parent in draft.parents[pushed:]])
        stream.advance()
        target_logits = stream.logits(root)
        verdict = self.verify(context, draft, target_logits)
        outcome = Outcome(draft, verdict, target_logits, stream.states[root:])
        stream.keep([*range(root + 1), *(root + 1 + row for row in verdict.path)])
        self.observe(context, outcome)
        tokens = (*(draft.tokens[row] for row in verdict.path), verdict.next_token)
        depth = context.target.layers
        return Step(tokens, draft.depth, len(verdict.path), 1 + len(draft), (depth,) * len(tokens))


class View:
    """One row at a possible exit: its residual after ``layer`` layers, the one before, and logits made on demand."""

    def __init__(self, layer: int, state: Tensor, previous: Tensor | None, head: Callable[[Tensor], Tensor]) -> None:
        self.layer = layer
        self.state = state
        self._previous = previous
        self._head = head

    @property
    def previous(self) -> Tensor:
        """[1, width]; only there for methods that set ``compares_states``."""
        if self._previous is None:
            raise ValueError("set compares_states to be given the state of the layer before")
        return self._previous

    @cached_property
    def logits(self) -> Tensor:
        """[1, vocabulary] logits of the exit head."""
        return self._head(self.state)


class AdaptiveDepth(Method):
    """One token per step, at a depth chosen on the way; or the same rule as a drafter that the full model verifies.

    ``kv_policy`` says what layers above an exit hold of a token: ``propagate`` writes the keys and values of the frozen
    state (CALM), ``deferred_exact`` computes the missing layers later, together with the next token that goes deeper.
    """

    compares_states: ClassVar[bool] = False

    @abstractmethod
    def exit_layers(self, target: Target) -> tuple[int, ...]:
        """Layer counts after which a token may leave, ascending, all below the target's depth."""

    @abstractmethod
    def decide(self, context: Context, view: View) -> bool:
        """Whether the row leaves here."""

    def exit_head(self, target: Target, layer: int, state: Tensor) -> Tensor:
        """Logits [1, vocabulary] of a state that leaves after ``layer`` layers; the target's own head by default."""
        return target.head(state)

    def climb(self, context: Context) -> View:
        """Run the last pushed row upwards until it leaves or reaches the last layer."""
        stream, target = context.stream, context.target
        for layer in self.exit_layers(target):
            previous = self._advance(stream, layer)
            view = View(layer, stream.states[-1:], previous, partial(self.exit_head, target, layer))
            if self.decide(context, view):
                return view
        stream.advance()
        return View(target.layers, stream.states[-1:], None, target.head)

    def _advance(self, stream: Stream, layer: int) -> Tensor | None:
        previous = None
        if self.compares_states:
            stream.advance(layer - 1)
            previous = stream.states[-1:]
        stream.advance(layer)
        return previous

    def exit_step(self, context: Context, kv_policy: Literal["propagate", "deferred_exact"]) -> Step:
        """One token, from wherever its row leaves."""
        stream = context.stream
        stream.push(context.tokens[-1:])
        view = self.climb(context)
        token = context.pick(view.logits)
        if kv_policy == "propagate" and view.layer < context.target.layers:
            stream.fill(view.layer)
        stream.keep(range(stream.rows))
        return Step((token,), 0, 0, 1, (view.layer,))

    def draft_by_exits(self, context: Context, budget: int) -> Draft:
        """A chain proposed by the exits; its rows stay at the layer where they left until verification takes over."""
        tokens: list[int] = []
        probs: list[Tensor] = []
        for _ in range(budget):
            view = self.climb(context)
            if context.sampling.greedy:
                tokens.append(int(view.logits.argmax(-1).item()))
            else:
                probs.append(context.sampling.probs(view.logits))
                tokens.append(int(torch.multinomial(probs[-1][0], 1, generator=context.generator).item()))
            context.stream.push(tokens[-1:])
        return Draft.chain(tokens, torch.cat(probs) if probs else None)


__all__ = ["ROOT", "AdaptiveDepth", "Context", "Draft", "Method", "Outcome", "Speculative", "Step", "View"]
