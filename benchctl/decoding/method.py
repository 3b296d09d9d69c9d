"""What a method is: how it starts, what one step does, and the family of methods that draft and verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import ALL_TOKENS, DraftVocabulary
from benchctl.decoding.phases import Phase, ignore_phase
from benchctl.decoding.sampling import Sampling, draw, likeliest
from benchctl.decoding.verify import ForcedText, Verdict, verify_greedy, verify_rejection
from benchctl.errors import UserError

Exactness = Literal["exact", "exact_greedy", "lossy"]
PlainDrafter = Callable[[list[int], int], list[int]]
"""Text so far and budget in, drafted tokens out."""


@dataclass
class Context:
    """One generation as a method sees it: the stream of the target, the text so far, how tokens are drawn.

    forced    in replay mode the text that is committed whatever the method chooses
    enter     starts a phase of a profiled step, which lasts until another begins or the step ends
    verified  outcomes of the verifications of this step, which the loop counts drafted and accepted tokens from
    prompt_state  residual [1, width] of the prompt's last token, once it has been run
    """

    target: Target
    stream: Stream
    tokens: list[int]
    prompt_tokens: int
    limit_tokens: int
    sampling: Sampling
    generator: torch.Generator
    forced: ForcedText | None = None
    enter: Callable[[Phase], None] = ignore_phase
    verified: list[Outcome] = field(default_factory=list)
    prompt_state: Tensor | None = None

    @property
    def remaining_tokens(self) -> int:
        """New tokens still to come; a draft deeper than this minus one is wasted, for the bonus token is the last."""
        return self.prompt_tokens + self.limit_tokens - len(self.tokens)

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def pick(self, logits: Tensor) -> int:
        """The next token for logits [1, vocabulary]: the argmax, one drawn, or the one that is forced."""
        token = self.sampling.draw(logits, self.generator)
        return token if self.forced is None else self.forced.choose(self.new_tokens, token)


class Chain:
    """A chain being drafted: tokens chosen as the run chooses them, and the distributions they were drawn from."""

    def __init__(self, context: Context, vocabulary: DraftVocabulary = ALL_TOKENS) -> None:
        self._context, self._vocabulary = context, vocabulary
        self._probs: list[Tensor] = []
        self.tokens: list[int] = []

    def add(self, draft_logits: Tensor) -> int:
        """Choose a token by logits [1, k] over the draft vocabulary, and add it: its place among the logits."""
        sampling = self._context.sampling
        if sampling.greedy:
            place = likeliest(draft_logits)[0]
        else:
            probs = sampling.probs(draft_logits)
            place = draw(probs[0], self._context.generator)
            self._probs.append(self._vocabulary.spread(probs, self._context.target.vocabulary)[0])
        self.tokens.append(self._vocabulary.token(place))
        return place

    @property
    def ended(self) -> bool:
        """Whether its last token ends the answer: nothing is drafted behind it."""
        return bool(self.tokens) and self.tokens[-1] in self._context.target.stop_ids

    def draft(self) -> Draft:
        return Draft.chain(self.tokens, tuple(self._probs) or None)


def one_token(context: Context, run: Callable[[Stream], None] = Stream.advance) -> tuple[int]:
    """A step that commits one token: plain decoding, or with ``run``, which takes the open row through its layers."""
    context.enter("verify")
    context.stream.push(context.tokens[-1:])
    run(context.stream)
    token = context.pick(context.stream.logits())
    context.enter("commit")
    context.stream.keep(range(1))
    return (token,)


class Method(ABC):
    """Base of all methods. Subclasses are dataclasses; their fields are the options of the label.

    exactness, reason         what the method claims; the tests and `benchctl doctor` check it
    no_batch_reason           why it decodes one sequence at a time, as the end of a sentence that begins with "since";
                              methods that decode batches are `Batched` instead
    demo                      options of the labels that `benchctl demo` measures; the defaults where it says nothing
    supports_encoder_decoder  it also runs where an encoder reads the prompt and the text begins with a start token
    needs_layers              it reads layers, states or heads of the target; False: the target may be opaque
    """

    exactness: Exactness = "exact"
    reason: str = ""
    demo: ClassVar[tuple[str, ...]] = ("",)
    no_batch_reason: ClassVar[str] = "it is made for one sequence at a time"
    supports_encoder_decoder: ClassVar[bool] = False
    needs_layers: ClassVar[bool] = True

    def unsupported(self, target: TargetInfo) -> str | None:
        """Why this method cannot run on a target with these facts, or None. Asked before weights are read."""
        return None

    def prepare(self, target: Target) -> None:  # noqa: B027 optional
        """Once per run: load what the method needs in addition to the target."""

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        """The target that one generation decodes on; entering it is on the clock.

        A method with its own weights or layers returns a view. ``timer`` is for methods that load experts.
        """
        return nullcontext(target)

    def start(self, context: Context) -> int:
        """Prefill and the first token. State of earlier prompts must not survive this, see `CarriesOver`."""
        return context.pick(context.target.head(self.prefill(context)))

    def prefill(self, context: Context, run: Callable[[Stream], None] = Stream.advance) -> Tensor:
        """Run the prompt through all layers, or by ``run``, and commit it: its last token's residual [1, width].

        In a combination the other part may have run the prompt; then nothing is run again.
        """
        if context.prompt_state is None:
            stream = context.stream
            stream.push(context.tokens, last_only=True)
            run(stream)
            context.prompt_state = stream.states[-1:].clone()
            stream.keep(range(stream.rows))
        return context.prompt_state

    @abstractmethod
    def step(self, context: Context) -> Sequence[int]:
        """The ids of at least one token to commit. The loop adds them to ``context.tokens``, and counts the work."""


def check_options(method: object, least: float, *names: str, most: float = inf) -> None:
    """Raises ValueError for an option, of these names, that is not from ``least`` to ``most``; nan is not."""
    for name in names:
        if not least <= getattr(method, name) <= most:
            limits = f"at least {least}" if most == inf else f"from {least} to {most}"
            raise ValueError(f"{name} is {getattr(method, name)}; it must be {limits}")


def refuse_options(method: object, reason: str, *names: str) -> None:
    """Raises ValueError for an option, of these names, that is not its default: it would have no effect."""
    for name in names:
        if getattr(method, name) != getattr(type(method), name):
            raise ValueError(f"{name} has no effect {reason}; leave it out")


class UsesDraftModel(ABC):
    """Mix-in of a method that drafts with a second model: ``class Mine(Speculative, UsesDraftModel)``.

    The dataclass has an option ``draft_model``: its name; empty takes what --draft-model names.
    ``any_tokenizer`` says that the draft model may have another tokenizer than the target.
    """

    any_tokenizer: ClassVar[bool] = False
    draft_model: str

    @abstractmethod
    def use_draft_model(self, draft_model: Target) -> None:
        """Once per run, before `Method.prepare`."""


class CarriesOver(ABC):
    """Mix-in of a method that keeps state from prompt to prompt, such as a store of texts: the only way to do so.

    The dataclass has an option ``memory: Literal["prompt", "run"] = "prompt"``. All state is in `store`, which the
    harness sets before each answer, off the clock: empty with ``memory=prompt``; with ``memory=run`` as the first
    repeats of the prompts before left it. A later turn of a chat goes on with that of the turn before. What another
    repeat of the same prompt wrote is never in it.
    """

    memory: Literal["prompt", "run"]
    store: Any

    @abstractmethod
    def new_store(self) -> object:
        """An empty store, which ``copy.deepcopy`` can copy."""


class Combines(ABC):
    """Mix-in of a method that is made of two others, whose labels are its options ``first`` and ``then``.

    The registry builds the parts; the harness loads what they need as if they were measured alone.
    """

    first: str
    then: str
    parts: Sequence[Method]

    @abstractmethod
    def use_parts(self, parts: Sequence[Method]) -> None:
        """Once, after the options are known. Raises ValueError for parts that cannot be combined."""


def labelled_parts(method: Method) -> dict[str, Method]:
    """The parts of a method by their labels; none for a method that is not made of others."""
    return dict(zip((method.first, method.then), method.parts, strict=True)) if isinstance(method, Combines) else {}


class MonotoneThreshold:
    """Mix-in of a method with an option ``threshold`` that keeps its text closer to the target's the higher it is.

    `benchctl train --calibrate` relies on that.
    """

    threshold: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of one verification.

    target_logits  [1 + rows, vocabulary], the root's first, then those of the draft's rows
    states         [1 + rows, width], last residuals in the same order
    kept_rows      open rows of the stream to commit: those before the root, the root, the accepted path
    """

    draft: Draft
    verdict: Verdict
    target_logits: Tensor
    states: Tensor
    kept_rows: Sequence[int]

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*(self.draft.tokens[row] for row in self.verdict.path), self.verdict.next_token)


def why_unsupported(method: Method, target: TargetInfo) -> str | None:
    """Why a method cannot run on a target with these facts, or None. No method can leave out the check of encoders."""
    if target.is_encoder_decoder and not method.supports_encoder_decoder:
        return "the target has an encoder, and this method is for targets without one"
    if target.opaque and method.needs_layers:
        return "it needs the target's layers, which transformers runs here as a whole; leave it out"
    return method.unsupported(target)


def check_trees(method: Method, *models: Target) -> None:
    """Raises UserError where a method drafts trees, and one of its models cannot run their branches in one pass."""
    if isinstance(method, Speculative) and method.drafts_trees and not all(model.runs_trees for model in models):
        raise UserError(
            "no_trees",
            "the model's attention cannot run the branches of a draft in one pass; use a method that drafts one chain, "
            "such as prompt_lookup or two_model",
        )


class Speculative(Method):
    """Draft, verify, keep, observe. A drafter may push and part-run rows itself; verification runs what they lack."""

    drafts_from_text: ClassVar[bool] = True  # False if drafts depend on earlier steps, not on the text alone
    # False if `observe` needs the method's own drafts, or `verify` has another rule
    can_combine: ClassVar[bool] = True
    # True if `draft` runs rows of the target: a combination takes it only as `then`, with when=first
    runs_rows: ClassVar[bool] = False
    drafts_trees: ClassVar[bool] = False  # True if drafts may branch
    reads_features: ClassVar[bool] = False  # `start` sets `taps` of the stream, before the prompt is run
    no_batch_reason = "each sequence of a batch would accept a number of tokens of its own"

    @abstractmethod
    def draft(self, context: Context, budget: int) -> Draft:
        """At most ``budget`` tokens deep. The root, the last committed token, is already pushed to the stream."""

    def plain_drafter(self, target: Target, draft_model: Target | None) -> PlainDrafter | None:
        """What `draft` proposes under greedy decoding, by full recomputation of the text, without a cache or a mask.

        `benchctl doctor --model` compares steps with it, so it shares no code with `draft`; a subclass that drafts
        differently overrides it too. Without one, None, steps are compared with a fresh start of the method.
        """
        return None

    def observe(self, context: Context, outcome: Outcome) -> None:
        """After each verification; scratch rows' logits are in the outcome."""

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        """Verdict for logits [1 + rows, vocabulary]; the exact rules, unless a method overrides this."""
        if context.sampling.greedy:
            return verify_greedy(draft, likeliest(target_logits))
        return verify_rejection(draft, context.sampling.rows(target_logits), context.generator)

    def run_draft(self, context: Context, root: int, draft: Draft) -> None:
        """Run the open rows, pushed already, through all layers that they lack; ``root`` is that of the draft.

        Further rows may be pushed here, behind those of the draft, which do not see them: verification ignores them.
        """
        context.stream.advance()

    def step(self, context: Context) -> Sequence[int]:
        context.enter("draft")
        context.stream.push(context.tokens[-1:])
        draft = self.draft(context, context.remaining_tokens - 1)  # the bonus token takes one of them
        context.enter("verify")
        outcome = self.verify_draft(context, draft)
        context.enter("commit")
        context.stream.keep(outcome.kept_rows)
        context.enter("draft")  # observing is the drafter's
        self.observe(context, outcome)
        return outcome.tokens

    def verify_draft(self, context: Context, draft: Draft) -> Outcome:
        """Run all rows of the draft through all layers that they lack, in one pass, and apply the verification rule.

        With root 2 (earlier rows were deferred) and a draft of 3 rows these are rows 3, 4, 5; if its rows 0 and 1 are
        accepted, rows 0 to 4 are kept.
        """
        stream = context.stream
        root = len(context.tokens) - 1 - stream.base
        pushed = stream.rows - root - 1  # by the drafter itself
        stream.push(draft.tokens[pushed:], [root + 1 + parent for parent in draft.parents[pushed:]])
        self.run_draft(context, root, draft)
        end = root + 1 + len(draft)
        target_logits = stream.logits(root, end)
        verdict = self.verify(context, draft, target_logits)
        if context.forced is not None:
            verdict = context.forced.impose(context.new_tokens, draft, verdict)
        kept_rows = [*range(root + 1), *(root + 1 + row for row in verdict.path)]
        outcome = Outcome(draft, verdict, target_logits, stream.states[root:end], kept_rows)
        context.verified.append(outcome)
        return outcome
