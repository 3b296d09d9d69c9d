"""Methods with one mistake each, and the check of `benchctl doctor` that has to find it, with words it says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mutants import FlatterEarlyExit, FlatterTwoModel, UnrepairedLookup, UnrepairedTwoModel, UnwarpedBonusTwoModel

from benchctl.decoding.batch import Batched
from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Context, Method, Speculative, Step, one_token
from benchctl.decoding.model.target import Target, TargetInfo


@dataclass
class Plain(Method):
    """What the mutants below spoil."""

    def step(self, context: Context) -> Step:
        return self.spoil(one_token(context), context)

    def spoil(self, step: Step, context: Context) -> Step:
        return step


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
    def spoil(self, step: Step, context: Context) -> Step:
        return replace(step, tokens=(0,)) if len(context.tokens) == 20 else step


class BonusCounted(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        return replace(step, accepted=1)


class LayersForgotten(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        return replace(step, layers=())


class Unreached(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        return replace(step, drafted=5, accepted=3)


class LastTokenWrong(Plain):
    """Right as long as there is room: an end that eats into the answer."""

    def spoil(self, step: Step, context: Context) -> Step:
        return replace(step, tokens=((step.tokens[0] + 1) % 5,)) if context.remaining_tokens == 1 else step


class StopsItself(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        return replace(step, tokens=(0,)) if step.tokens[0] in context.target.stop_ids else step


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
    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        return range(target.layers - (new_tokens > 5))


class Scribbles(Plain):
    """Leaves in the cache what changes no token: only the cache shows it."""

    def spoil(self, step: Step, context: Context) -> Step:
        context.stream.cache.kv[2][:, 4] += 1e-7
        return step


class KeepsRejected(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        context.stream.push((3,))
        context.stream.advance()
        context.stream.keep(range(1))
        return step


class Raises(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        raise ZeroDivisionError("by nought")


class FlatterDefault(FlatterEarlyExit):
    def __init__(self) -> None:
        super().__init__(mode="draft", threshold=0.3)


class Undecorated(Speculative):
    def draft(self, context: Context, budget: int) -> Draft:
        return Draft()


class WiderWhenForced(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        return step if context.forced is None else replace(step, rows=step.rows + 1)


class PicksTwice(Plain):
    def spoil(self, step: Step, context: Context) -> Step:
        if context.forced is not None:
            context.forced.choose(context.new_tokens, step.tokens[0])
        return step


class ChoosesItself(Plain):
    """As exact as any, but its choice is not told of: nothing can be forced upon it."""

    def start(self, context: Context) -> int:
        own = super().start(replace(context, forced=None))
        return int(own)

    def step(self, context: Context) -> Step:
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
    ("sampled", UnrepairedLookup, "total variation 0"),
    ("sampled", UnwarpedBonusTwoModel, "total variation 0"),
    ("sampled", FlatterTwoModel, "total variation 0"),
    ("sampled", FlatterDefault, "total variation 0"),
    ("counting", BonusCounted, "accepted <= drafted"),
    ("counting", LayersForgotten, "layers"),
    ("counting", Unreached, "accepted + bonus"),
    ("limits", LastTokenWrong, "ended by the limit of 2"),
    ("stops", StopsItself, "with a stop token as bonus"),
    ("stops", StopsAtUnsaid, "with a stop token"),
    ("isolation", Remembers, "as alone"),
    ("determinism", Dice, "as once"),
    ("batches", ShallowInBatches, "as alone"),
    ("replay", WiderWhenForced, "as when it is free"),
    ("replay", PicksTwice, "all 24 tokens"),
    ("cache", Scribbles, "fresh prefill"),
    ("cache", KeepsRejected, "rows of text"),
)
