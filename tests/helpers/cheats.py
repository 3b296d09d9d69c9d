"""Methods that look faster than they are, by a trick or by a slip. None of them may get away with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from benchctl.decoding.draft import Draft
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Method, Outcome, Speculative, one_token
from benchctl.decoding.model.target import Target
from benchctl.decoding.verify import Verdict

SPENT_S = 0.02  # what some of them spend where they hope that no clock runs
PREPARED_S = 0.5  # the same once in a run; longer than a busy machine lets an honest `prepare` wait
ANSWERS: dict[tuple[int, ...], list[int]] = {}  # by prompt, as a results file has them


@dataclass
class Honest(Method):
    """Plain decoding."""

    def step(self, context: Context) -> Sequence[int]:
        return one_token(context)


@dataclass
class WorksInServe(Honest):
    @contextmanager
    def serve(self, target: Target, timer: Timer | None) -> Iterator[Target]:
        time.sleep(SPENT_S)
        yield target


@dataclass
class RecitesFromStart(Honest):
    """Decodes the whole answer in `start` and then runs nothing."""

    said: list[int] = field(default_factory=list, repr=False, init=False)

    def start(self, context: Context) -> int:
        self.said = list(decode(Honest(), context.target, DecodeRequest(context.tokens, 24)).token_ids)
        return self.said.pop(0)

    def step(self, context: Context) -> Sequence[int]:
        return (self.said.pop(0),)


@dataclass
class Drafts(Speculative):
    """Drafts what it knows of the answer: all of it, from `known`."""

    def known(self, prompt: tuple[int, ...]) -> list[int]:
        return ANSWERS.get(prompt, [])

    def draft(self, context: Context, budget: int) -> Draft:
        answer = self.known(tuple(context.tokens[: context.prompt_tokens]))
        return Draft.chain(answer[context.new_tokens :][: min(budget, 8)] or [0][:budget])


@dataclass
class WorksInPrepare(Drafts):
    """Spends time in `prepare`, and drafts answers as if it had found them there."""

    def prepare(self, target: Target) -> None:
        time.sleep(PREPARED_S)


@dataclass
class ReadsResults(Drafts):
    """Drafts the answers that the baseline left in an earlier file; the test reads it."""


@dataclass
class RemembersDrafts(Drafts):
    """Drafts its own answer from the repeat before."""

    memory: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False, init=False)

    def known(self, prompt: tuple[int, ...]) -> list[int]:
        return self.memory.get(prompt, [])

    def observe(self, context: Context, outcome: Outcome) -> None:
        prompt, said = context.tokens[: context.prompt_tokens], context.tokens[context.prompt_tokens :]
        self.memory[tuple(prompt)] = [*said, *outcome.tokens]


@dataclass
class RemembersAnswers(RemembersDrafts):
    """Says its own answer from the repeat before, without a pass."""

    def step(self, context: Context) -> Sequence[int]:
        answer = self.known(tuple(context.tokens[: context.prompt_tokens]))
        return answer[context.new_tokens :][:1] or super().step(context)


@dataclass
class RunsNothing(Method):
    """Lets the stream count a pass through all layers whose work it leaves out."""

    def step(self, context: Context) -> Sequence[int]:
        stream = context.stream
        stream.push(context.tokens[-1:])
        stream.run_rows(0, context.target.layers, lambda states, cache, layout: states)
        return (7,)


@dataclass
class MergesPasses(Method):
    """Four passes of plain decoding in one step."""

    def step(self, context: Context) -> Sequence[int]:
        tokens: list[int] = []
        for _ in range(min(4, context.remaining_tokens)):
            context.stream.push((context.tokens + tokens)[-1:])
            context.stream.advance()
            tokens.append(context.pick(context.stream.logits()))
            context.stream.keep((0,))
        return tokens


@dataclass
class CountsFalsely(Honest):
    """Says that it verified a draft that it never ran."""

    def step(self, context: Context) -> Sequence[int]:
        tokens = super().step(context)
        logits = torch.zeros(2, 1)
        verdict = Verdict((0,), tokens[0])
        context.verified.append(Outcome(Draft.chain([tokens[0]]), verdict, logits, logits, (0,)))
        return (tokens[0], tokens[0])


@dataclass
class SkipsLayers(Method):
    """Claims the target's answers from the first layer alone."""

    def step(self, context: Context) -> Sequence[int]:
        stream = context.stream
        stream.push(context.tokens[-1:])
        stream.advance(1)
        token = context.pick(stream.logits())
        stream.fill(1)
        stream.keep((0,))
        return (token,)


@dataclass
class ChangesWeightsFirst(Honest):
    def prepare(self, target: Target) -> None:
        target.final_norm.gain.mul_(0.5)


@dataclass
class ChangesWeightsLater(Honest):
    def step(self, context: Context) -> Sequence[int]:
        context.target.final_norm.gain.mul_(0.999)
        return super().step(context)


@dataclass
class ReplacesClock(Honest):
    """Time passes at a tenth of its pace while it decodes."""

    def step(self, context: Context) -> Sequence[int]:
        real, begun = time.perf_counter, time.perf_counter()
        time.perf_counter = lambda: begun + (real() - begun) / 10
        try:
            time.sleep(SPENT_S)
            return super().step(context)
        finally:
            time.perf_counter = real


@dataclass
class ChangesThreads(Honest):
    def start(self, context: Context) -> int:
        torch.set_num_threads(torch.get_num_threads() + 1)
        return super().start(context)


@dataclass
class SlowsBaseline(Honest):
    """Puts a pause into each pass of the others; its own are the usual ones."""

    def start(self, context: Context) -> int:
        from benchctl.methods import autoregressive

        own = autoregressive.Autoregressive.step
        if not hasattr(own, "slow"):

            def step(method: Method, context: Context) -> Sequence[int]:
                time.sleep(SPENT_S / 4)
                tokens: Sequence[int] = own(method, context)
                return tokens

            step.slow = True  # type: ignore[attr-defined]
            autoregressive.Autoregressive.step = step
        return super().start(context)


@dataclass
class LeavesThread(Honest):
    """A thread of its own multiplies matrices while others have their turn."""

    stop: ClassVar[threading.Event] = threading.Event()
    share: ClassVar[float] = 0.0  # of a core, which the thread had

    def prepare(self, target: Target) -> None:
        def multiply() -> None:
            matrix, began_s = torch.ones(400, 400), time.perf_counter()
            while not self.stop.is_set():
                matrix @ matrix
                LeavesThread.share = time.thread_time() / (time.perf_counter() - began_s)

        threading.Thread(target=multiply, daemon=True).start()


@dataclass
class DropsTokens(Honest):
    """Every fifth token is the target's second choice."""

    def step(self, context: Context) -> Sequence[int]:
        stream = context.stream
        stream.push(context.tokens[-1:])
        stream.advance()
        best: list[int] = stream.logits()[0].topk(2).indices.tolist()
        stream.keep((0,))
        return (best[1] if context.new_tokens % 5 == 0 else best[0],)


@dataclass
class AcceptsSecondBest(Drafts):
    """Drafts the target's second choice and accepts it."""

    def draft(self, context: Context, budget: int) -> Draft:
        return Draft.chain(list(range(min(budget, 5)))[:1])

    def verify(self, context: Context, draft: Draft, target_logits: torch.Tensor) -> Verdict:
        verdict = super().verify(context, draft, target_logits)
        accepted = (
            len(draft.tokens) > 0 and draft.tokens[0] in target_logits[0].topk(len(target_logits[0]) // 2).indices
        )
        return Verdict((0,), int(target_logits[1].argmax())) if accepted else verdict


@dataclass
class StopsEarly(Honest):
    def step(self, context: Context) -> Sequence[int]:
        tokens = super().step(context)
        return tokens if context.new_tokens < 5 else (min(context.target.stop_ids),)
