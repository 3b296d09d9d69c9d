"""Methods that choose, token by token, how many layers of the target to run, and what the others hold of a row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.drafting.grow import wide
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, Speculative
from benchctl.decoding.model.target import Target

Measure = Literal["softmax_gap", "softmax_max", "state_cosine"]


class View:
    """One row at a possible exit: ``state`` after ``layer`` layers, and logits made on demand.

    ``trail`` are its states [1, width] up to that one, the one before it for methods that set ``compares_states``.
    """

    def __init__(self, layer: int, trail: Sequence[Tensor], head: Callable[[Tensor], Tensor]) -> None:
        self.layer, self.trail, self.state, self._head = layer, trail, trail[-1], head

    @property
    def previous(self) -> Tensor:
        if len(self.trail) < 2:
            raise ValueError("set compares_states to be given the state of the layer before")
        return self.trail[-2]

    @cached_property
    def logits(self) -> Tensor:
        """[1, vocabulary] logits of the exit head; [1, k] of a drafter with a draft vocabulary."""
        return self._head(self.state)

    def confidence(self, measure: Measure) -> float:
        """From 0 to 1: the gap between the two likeliest tokens, the likeliest, or the cosine with the state before.

        Probabilities are shares of the tokens that the exit head scores.
        """
        if measure == "state_cosine":
            return max(0.0, float(F.cosine_similarity(wide(self.previous), wide(self.state))))
        shares = wide(self.logits).softmax(-1)
        if measure == "softmax_max":
            return float(shares.max())
        top = shares.topk(2).values[0]
        return float(top[0] - top[1])


KvFill = Callable[[Stream, View], None]
"""Gives the layers above the exit that a row leaves by what later rows are to see of it there, such as `copy_h`."""


class AdaptiveDepth(Method):
    """One token per step, at a depth chosen on the way; or the same rule as a drafter that the full model verifies."""

    compares_states: ClassVar[bool] = False
    no_batch_reason = "each sequence of a batch would leave at a layer of its own"

    @abstractmethod
    def exit_layers(self, target: Target) -> tuple[int, ...]:
        """Layer counts after which a token may leave, ascending, all below the target's depth."""

    @abstractmethod
    def decide(self, context: Context, view: View) -> bool:
        """Whether the row leaves here."""

    def exit_head(self, target: Target, layer: int, state: Tensor) -> Tensor:
        """Logits [1, vocabulary] of a state that leaves after ``layer`` layers; the target's own head by default."""
        return target.head(state)

    def step(self, context: Context) -> Sequence[int]:
        """One token, with `copy_h`; in a class that is `Speculative` too, its draft is verified."""
        return Speculative.step(self, context) if isinstance(self, Speculative) else self.exit_step(context, copy_h)

    def climb(self, context: Context) -> View:
        """Run the open rows upwards until the last one leaves or reaches the last layer."""
        stream, target = context.stream, context.target
        for layer in self.exit_layers(target):
            view = self.reach(stream, layer)
            if self.decide(context, view):
                return view
        context.enter("verify")  # also while drafting: this is the target's own pass
        stream.advance()
        return View(target.layers, (stream.states[-1:],), target.head)

    def reach(self, stream: Stream, layer: int) -> View:
        """Run the open rows up to an exit; what is to be seen of the last one there."""
        trail = []
        for last in (layer - 1, layer) if self.compares_states else (layer,):
            stream.advance(last)
            trail.append(stream.states[-1:])
        return View(layer, trail, partial(self.exit_head, stream.target, layer))

    def exit_step(self, context: Context, fill: KvFill) -> tuple[int]:
        """One token, from wherever its row leaves."""
        context.enter("verify")
        context.stream.push(context.tokens[-1:])
        view = self.climb(context)
        token = context.pick(view.logits)
        context.enter("commit")
        if view.layer < context.target.layers:
            fill(context.stream, view)
        context.stream.keep(range(context.stream.rows))
        return (token,)


def copy_h(stream: Stream, view: View) -> None:
    """Of the slow state at the exit, in every layer: state propagation (CALM 2207.07061, section 3.1)."""
    stream.fill(view.layer)


def copy_p(stream: Stream, view: View) -> None:
    """Of the state that spoke at the exit, in every layer."""
    stream.fill(view.layer, view.state)


def deferred_exact(stream: Stream, view: View) -> None:
    """The row's own, computed with the next row that goes deeper (DEED 2311.08623)."""


def absent(stream: Stream, view: View) -> None:
    """Nothing: later rows do not see it there (as Mixture-of-Depths, 2404.02258, has it)."""
    stream.skip(view.layer)
