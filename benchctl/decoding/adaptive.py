"""The family of methods that choose, token by token, how many layers of the target to run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import ClassVar, Literal

from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Chain, Context, Method, Step
from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target


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
        """Run the open rows upwards until the last one leaves or reaches the last layer."""
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
        lengths = stream.cache.lengths
        before, finished = sum(lengths), lengths[-1]
        view = self.climb(context)
        ran, rows = sum(lengths) - before, lengths[-1] - finished  # with those of deferred rows, without a fill
        token = context.pick(view.logits)
        if kv_policy == "propagate" and view.layer < context.target.layers:
            stream.fill(view.layer)
        stream.keep(range(stream.rows))
        return Step((token,), 0, 0, rows, (ran,))

    def draft_by_exits(self, context: Context, budget: int) -> Draft:
        """A chain proposed by the exits; its rows stay at the layer where they left until verification takes over."""
        chain = Chain(context)
        for _ in range(budget):
            view = self.climb(context)
            if view.layer == context.target.layers:
                break  # every row has run all layers now: this token is the target's own, the bonus of this step
            context.stream.push((chain.add(view.logits),))
        return chain.draft()
