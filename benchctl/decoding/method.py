"""What a method is: how it starts, what one step does, and the family of methods that draft and verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.phases import Phase, unwatched
from benchctl.decoding.replay import ForcedText
from benchctl.decoding.sampling import Sampling, draw
from benchctl.decoding.verify import Verdict, verify_greedy, verify_rejection

Exactness = Literal["exact", "exact_greedy", "lossy"]


@dataclass(frozen=True)
class Step:
    """What one call of Method.step committed.

    tokens    committed ids: the accepted ones, then the bonus token
    drafted   tokens along the deepest branch of the draft
    accepted  drafted tokens kept
    rows      rows that finished the target's last layer in this step
    layers    layers run by the step for each committed token; those of earlier tokens that were put off count when run
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    rows: int
    layers: tuple[int, ...]


@dataclass
class Context:
    """One generation as a method sees it: the stream of the target, the text so far, how tokens are drawn.

    forced  in replay mode the text that is said whatever the method chooses
    enter   tells what a step goes over to; a step of one's own may call it, and nothing is different if it does not
    """

    target: Target
    stream: Stream
    tokens: list[int]
    prompt_tokens: int
    limit_tokens: int
    sampling: Sampling
    generator: torch.Generator
    forced: ForcedText | None = None
    enter: Callable[[Phase], None] = unwatched

    @property
    def remaining_tokens(self) -> int:
        """New tokens still to come; a draft deeper than this minus one is wasted, for the bonus token is the last."""
        return self.prompt_tokens + self.limit_tokens - len(self.tokens)

    @property
    def new_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_tokens

    def pick(self, logits: Tensor) -> int:
        """The next token for logits [1, vocabulary]: the argmax, one drawn, or the one that is forced."""
        token = self.sampling.draw(logits, self.generator)
        return token if self.forced is None else self.forced.choose(self.new_tokens, token)


class Chain:
    """A chain being drafted: tokens chosen as the run chooses them, and the distributions they were drawn from."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._probs: list[Tensor] = []
        self.tokens: list[int] = []

    def add(self, draft_logits: Tensor) -> int:
        """The token proposed for draft logits [1, vocabulary]."""
        sampling = self._context.sampling
        if sampling.greedy:
            self.tokens.append(int(draft_logits.argmax(-1).item()))
        else:
            self._probs.append(sampling.probs(draft_logits))
            self.tokens.append(draw(self._probs[-1][0], self._context.generator))
        return self.tokens[-1]

    def draft(self) -> Draft:
        return Draft.chain(self.tokens, torch.cat(self._probs) if self._probs else None)


def all_layers(stream: Stream) -> int:
    """Run every open row through all layers; their number."""
    stream.advance()
    return stream.target.layers


def one_token(context: Context, run: Callable[[Stream], int] = all_layers) -> Step:
    """A step that commits one token: plain decoding, or with layers of the method's own choice.

    ``run`` takes the open row through the layers and returns how many it ran.
    """
    stream = context.stream
    context.enter("verify")
    stream.push(context.tokens[-1:])
    layers = run(stream)
    token = context.pick(stream.logits())
    context.enter("commit")
    stream.keep(range(1))
    context.enter("host")
    return Step((token,), 0, 0, 1, (layers,))


class Method(ABC):
    """Base of all methods. Subclasses are dataclasses; their fields are the options of the label.

    exactness and reason state what the method claims; tests hold it to that. one_by_one says why it decodes one
    sequence at a time, as what follows "since"; methods that can decode several together are Batched, see batch.
    knows_encoders: it also runs where an encoder reads the prompt, and the text it is given begins with a start token.
    higher_is_safer: it has a threshold, and a higher one keeps its text closer to the target's, as calibration asks.
    """

    exactness: Exactness = "exact"
    reason: str = ""
    needs_draft_model: ClassVar[bool] = False
    one_by_one: ClassVar[str] = "it is made for one sequence at a time"
    knows_encoders: ClassVar[bool] = False
    higher_is_safer: ClassVar[bool] = False

    def obstacle(self, target: TargetInfo) -> str | None:
        """Why this method cannot run on a target of these facts; None when it can. Asked before weights are read."""
        if target.encodes and not self.knows_encoders:
            return "the target has an encoder, and this method is for targets without one"
        return self.unsupported(target)

    def unsupported(self, target: TargetInfo) -> str | None:
        """The same, for what is of this method alone: what methods override."""
        return None

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> None:  # noqa: B027 optional
        """Once per run: load what the method needs besides the target. ``models`` loads a model by name."""

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        """The target that one generation decodes on, open from before its clock starts until after it has stopped.

        A method that runs the target's weights in its own way gives a view of it. ``timer`` lets what it has beside the
        computation wait; it is not for measuring the method itself.
        """
        return nullcontext(target)

    def counters(self) -> Mapping[str, float]:
        """What the last generation counted beside its steps, by name; read after serve has ended."""
        return {}

    def start(self, context: Context) -> int:
        """Prefill and the first token. State of earlier prompts must not survive this."""
        return context.pick(context.target.head(self.prefill(context)))

    def prefill(self, context: Context) -> Tensor:
        """Run the prompt through all layers and commit it; the residual [1, width] of its last token."""
        stream = context.stream
        stream.push(context.tokens)
        stream.advance()
        last = stream.states[-1:]
        stream.keep(range(stream.rows))
        return last

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

    one_by_one = "each sequence of a batch would accept a number of tokens of its own"

    @abstractmethod
    def draft(self, context: Context, budget: int) -> Draft:
        """At most ``budget`` tokens deep. The root, the last committed token, is already pushed to the stream."""

    def observe(self, context: Context, outcome: Outcome) -> None:
        """After each verification; scratch rows' logits are in the outcome."""

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        """Verdict for logits [1 + rows, vocabulary]; the exact rules, unless a method overrides this."""
        if context.sampling.greedy:
            return verify_greedy(draft, target_logits.argmax(-1).tolist())
        return verify_rejection(draft, context.sampling.rows(target_logits), context.generator)

    def step(self, context: Context) -> Step:
        stream = context.stream
        context.enter("draft")
        stream.push(context.tokens[-1:])
        root = stream.rows - 1
        draft = self.draft(context, context.remaining_tokens - 1)
        context.enter("verify")
        pushed = stream.rows - root - 1
        stream.push(draft.tokens[pushed:], [root + 1 + parent for parent in draft.parents[pushed:]])
        stream.advance()
        target_logits = stream.logits(root)
        verdict = self.verify(context, draft, target_logits)
        if context.forced is not None:
            verdict = context.forced.impose(context.new_tokens, draft, verdict)
        context.enter("commit")
        outcome = Outcome(draft, verdict, target_logits, stream.states[root:])
        stream.keep([*range(root + 1), *(root + 1 + row for row in verdict.path)])
        context.enter("draft")
        self.observe(context, outcome)
        context.enter("host")
        tokens = (*(draft.tokens[row] for row in verdict.path), verdict.next_token)
        depth = context.target.layers
        return Step(tokens, draft.depth, len(verdict.path), 1 + len(draft), (depth,) * len(tokens))
