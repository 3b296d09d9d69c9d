"""Methods with one mistake each, and the check of `benchctl doctor` that has to find it, with words it says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from mutants import FlatterTwoModel, UnrepairedTwoModel, UnwarpedBonusTwoModel

from benchctl.decoding.batch import Batched
from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, Speculative, one_token
from benchctl.decoding.model.target import Target, TargetInfo


@dataclass
class Plain(Method):
    """What the mutants below spoil."""

    def step(self, context: Context) -> Sequence[int]:
        (token,) = one_token(context)
        return (self.spoil(token, context),)

    def spoil(self, token: int, context: Context) -> int:
        return token


@dataclass
class UnreadableOption(Plain):
    widths: tuple[int, ...] = (1, 2)


@dataclass
class ChangedOption(Plain):
    depth: int = 3

    def __post_init__(self) -> None:
        self.depth += 1


class UnreasonedLoss(Plain):
    exactness = "lossy"


class UnknownClaim(Plain):
    exactness = "nearly"  # type: ignore[assignment]


class EmptyReason(Plain):
    def unsupported(self, target: TargetInfo) -> str | None:
        return ""


class RaisingReason(Plain):
    def unsupported(self, target: TargetInfo) -> str | None:
        raise RuntimeError("no idea")


class RunsNowhere(Plain):
    def unsupported(self, target: TargetInfo) -> str | None:
        return "the target is too small"


class WrongLater(Plain):
    def spoil(self, token: int, context: Context) -> int:
        return 0 if len(context.tokens) == 20 else token


class RunsUncounted(Plain):
    """Runs the target on a stream of its own, whose passes nobody counts, and drafts what that gave."""

    def spoil(self, token: int, context: Context) -> int:
        aside = Stream(context.target, len(context.tokens))
        aside.push(context.tokens)
        aside.advance()
        return token


class TokensAsTensors(Plain):
    def spoil(self, token: int, context: Context) -> int:
        return torch.tensor(token)  # type: ignore[return-value]


class TwoForOne(Plain):
    """Says two tokens for one pass."""

    def step(self, context: Context) -> Sequence[int]:
        return (*super().step(context), 3)


class LastTokenWrong(Plain):
    """Right as long as there is room: an end that eats into the answer."""

    def spoil(self, token: int, context: Context) -> int:
        return (token + 1) % 5 if context.remaining_tokens == 1 else token


class StopsItself(Plain):
    def spoil(self, token: int, context: Context) -> int:
        return 0 if token in context.target.stop_ids else token


class StopsAtUnsaid(Plain):
    """Takes many stop tokens for a reason to say none of them."""

    def start(self, context: Context) -> int:
        return min(context.target.stop_ids, default=super().start(context))


@dataclass
class Remembers(Speculative):
    """Drafts what it said before, in whatever prompt that was."""

    said: list[int] = field(default_factory=list, init=False)

    def draft(self, context: Context, budget: int) -> Draft:
        self.said.append(context.tokens[-1])
        return Draft.chain(self.said[-12:-1][: max(budget, 0)])


@dataclass
class Dice(Speculative):
    """Drafts as long as chance has it, and not the chance of the seed."""

    def draft(self, context: Context, budget: int) -> Draft:
        return Draft.chain(context.tokens[-1:] * min(budget, random.randrange(6)))


class ShallowInBatches(Plain, Batched):
    exactness = "lossy"  # one that claims more is stopped in the batch

    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        return range(target.layers - (new_tokens > 5))


class Scribbles(Plain):
    """Leaves in the cache what changes no token: only the cache shows it."""

    def spoil(self, token: int, context: Context) -> int:
        context.stream.cache.kv[2][:, 4] += 1e-7
        return token


class KeepsRejected(Plain):
    def spoil(self, token: int, context: Context) -> int:
        context.stream.push((3,))
        context.stream.advance()
        context.stream.keep(range(1))
        return token


class Raises(Plain):
    def spoil(self, token: int, context: Context) -> int:
        raise ZeroDivisionError("by nought")


class Undecorated(Speculative):
    def draft(self, context: Context, budget: int) -> Draft:
        return Draft()


class WiderWhenForced(Plain):
    def spoil(self, token: int, context: Context) -> int:
        if context.forced is not None:
            context.stream.push((token,))
            context.stream.advance()
            context.stream.keep(())
        return token


class PicksTwice(Plain):
    def spoil(self, token: int, context: Context) -> int:
        if context.forced is not None:
            context.forced.choose(context.new_tokens, token)
        return token


class ChoosesItself(Plain):
    """As exact as any, but its choice is not told of: nothing can be forced upon it."""

    def start(self, context: Context) -> int:
        own = super().start(replace(context, forced=None))
        return int(own)

    def step(self, context: Context) -> Sequence[int]:
        return super().step(replace(context, forced=None))


MUTANTS: tuple[tuple[str, type[Method], str], ...] = (
    ("options", UnreadableOption, "to be read"),
    ("options", ChangedOption, "to be read back"),
    ("claim", UnreasonedLoss, "a reason"),
    ("claim", UnknownClaim, "exact, exact_greedy or lossy"),
    ("unsupported", EmptyReason, "None or a reason"),
    ("unsupported", RunsNowhere, "a target that it runs on"),
    ("greedy", WrongLater, "after a prompt of"),
    ("sampled", UnrepairedTwoModel, "total variation 0"),
    ("sampled", UnwarpedBonusTwoModel, "total variation 0"),
    ("sampled", FlatterTwoModel, "total variation 0"),
    ("counting", RunsUncounted, "through context.stream"),
    ("counting", TokensAsTensors, "ids"),
    ("counting", TwoForOne, "2 tokens"),
    ("limits", LastTokenWrong, "ended by the limit of 2"),
    ("stops", StopsItself, "with a stop token as bonus"),
    ("stops", StopsAtUnsaid, "with a stop token"),
    ("isolation", Remembers, "as alone"),
    ("determinism", Dice, "as once"),
    ("batches", ShallowInBatches, "as alone"),
    ("replay", WiderWhenForced, "as when decoding freely"),
    ("replay", PicksTwice, "all 24 tokens"),
    ("cache", Scribbles, "fresh prefill"),
    ("cache", KeepsRejected, "the cache holds"),
)
