"""What a method must be able to say so that several sequences can be decoded together; the loop is batch_loop.

A batch takes one step for all its sequences: a row of each goes through the same layers, so that every weight is read
once for all of them. That asks for one token per sequence and step, at a depth that no sequence chooses for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from benchctl.decoding.method import Method
from benchctl.decoding.target import Target


class Batched(ABC):
    """Mix-in of a method that can decode in batches: ``class Mine(Method, Batched)``.

    The batch calls ``Method.start`` for each prompt by itself, on a stream of its own, and takes over the keys and
    values that it leaves. Then it steps by itself: ``Method.step`` is not called. Both work on the target that
    ``Method.serve`` gives, opened once for the batch: weights of the method's own, merged ones say, are part of that.
    All prompts start before the first step, so ``start`` must leave nothing on the method that steps depend on.
    """

    @abstractmethod
    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        """Indices, ascending from 0, of the target's layers that the row of the last of ``new_tokens`` tokens runs.

        ``new_tokens`` counts what the sequence has said so far, the token of its prefill included: it is 1 at the first
        step, whose row stands at position prompt_tokens. All sequences of a batch start together, so all are at the
        same count, and nothing else may matter: not the prompt's length, and not the sequence's own limit, which comes
        earlier where its context ends. SkipDecode (arXiv 2307.02628) has one depth for a batch at each sequence
        position; counting positions from the end of each prompt, where prompts differ in length, is ours.

        A layer may be named only if it has run every earlier row of the sequence, those of the prompt included: so the
        layers of a step are among those of the step before it, and of those that ``start`` ran.
        """


def why_not_batched(method: Method) -> str | None:
    """Why a method cannot decode in batches, as the part of a sentence that follows "since"; None when it can."""
    return None if isinstance(method, Batched) else method.one_by_one
