"""The one loop every method is decoded by, baseline included: it marks the clock, truncates, stops and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from benchctl.decoding.counting import Step, check_all_layers, check_cache, count_step
from benchctl.decoding.experts.offload import OffloadsExperts, Timer
from benchctl.decoding.kv.stream import LayerRun, Stream
from benchctl.decoding.method import CarriesOver, Context, Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.phases import Marks, Phase, ignore_phase
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.verify import ForcedText
from benchctl.errors import UserError

StopReason = Literal["stop", "length", "context"]


def untimed() -> float:
    """The clock of a decoding whose time nobody needs."""
    return 0.0


@dataclass(frozen=True)
class DecodeRequest:
    """One prompt and the conditions it is decoded under.

    max_new_tokens  ids generated at most; fewer where the target's context ends first
    clock           seconds, read before prefill, after it and after each step
    seed            of the generator that tokens are drawn from, together with the sampling's own
    forced          a whole answer that is committed whatever the method chooses (replay); None decodes freely
    profile         also time the phases of each step, which itself takes time
    timer           for methods that load experts, see `Method.serve`
    store           for methods that carry state over; None is an empty one
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = Sampling()
    clock: Callable[[], float] = untimed
    seed: int = 0
    forced: Sequence[int] | None = None
    profile: bool = False
    timer: Timer | None = None
    store: object = None


@dataclass(frozen=True)
class Reported:
    """What another engine sent of an answer, in place of what the loop counts; sums are None where it sent none.

    arrived_s       when tokens arrived, in seconds since the question was sent
    arrived_tokens  how many arrived then
    by_step         whether the generation has steps; otherwise the sums stand for them
    text, new_tokens
                    of an answer without token ids
    """

    arrived_s: tuple[float, ...]
    arrived_tokens: tuple[int, ...]
    by_step: bool
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    text: str | None = None
    new_tokens: int | None = None


@dataclass(frozen=True)
class Generation:
    """One answer. token_ids end with the first stop token, or at the limit; steps are truncated alike.

    ttft_s    seconds from before prefill to the first token on the host
    step_s    seconds of each step
    layers    layers run for each token, the prefill token first
    counters  what a method that offloads experts counted
    phases    seconds of each phase of each step, by its name, in a profile
    forced    the forced text, with how often it was the method's own choice
    reported  of an answer of another engine, which has no layers, and steps only where they are known
    """

    token_ids: tuple[int, ...]
    stop_reason: StopReason
    ttft_s: float
    steps: tuple[Step, ...]
    step_s: tuple[float, ...]
    layers: tuple[int, ...]
    counters: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    forced: ForcedText | None = None
    reported: Reported | None = None

    @property
    def wall_s(self) -> float:
        """Seconds from before prefill to the last token."""
        return self.ttft_s + sum(self.step_s) if self.reported is None else self.reported.arrived_s[-1]


@torch.inference_mode()
def decode(method: Method, target: Target, request: DecodeRequest) -> Generation:
    """Decode one prompt with one prepared method.

    A step returns Python integers, so it ends when its tokens are on the host: that transfer is the synchronisation,
    and every method pays it. The clock starts before `Method.serve`: all work of a method is timed.

    Raises UserError for a prompt that is empty or fills the context, for a limit below one, and for a step or a cache
    that cannot be right (see counting.py); ValueError for a forced text that is no whole answer, or was not committed.
    """
    if isinstance(method, CarriesOver):
        method.store = method.new_store() if request.store is None else request.store
    marks = Marks(request.clock, request.profile)
    marks.mark()
    with method.serve(target, request.timer) as served:
        context = open_context(served, request, marks.watch)
        stream, steps, runs = context.stream, list[Step](), list[LayerRun]()
        first = method.start(context)
        marks.mark()
        layers = prefill_layers(context)
        commit(context, (first,))
        kept_tokens = len(context.tokens)
        reason = stop_reason(context, request.max_new_tokens, first)
        while reason is None:
            runs += stream.runs
            stream.runs.clear()
            tokens = method.step(context)
            marks.mark()
            step = count_step(context, tokens, stream.runs)
            kept_tokens = len(context.tokens) + len(tokens)
            step = _truncate(step, context)
            commit(context, step.tokens)
            steps.append(step)
            reason = stop_reason(context, request.max_new_tokens, step.tokens[-1])
        check_cache(context, kept_tokens)
        if method.exactness != "lossy":
            check_all_layers(context, runs + stream.runs)
        generation = generation_of(context, reason, marks, steps, layers)
    return replace(generation, counters=method.counters()) if isinstance(method, OffloadsExperts) else generation


def prefill_layers(context: Context) -> int:
    """Layers that the last token of the prompt has run."""
    last = context.prompt_tokens - 1
    return sum(last not in absent for absent in context.stream.cache.absent)


def commit(context: Context, tokens: Sequence[int]) -> None:
    """Add tokens to the text. Raises ValueError where they are not those of the forced text."""
    if context.forced is not None:
        context.forced.check_said(context.new_tokens, tokens)
    context.tokens += tokens


def generation_of(
    context: Context, reason: StopReason | None, marks: Marks, steps: Sequence[Step], layers: int
) -> Generation:
    assert reason is not None, "the answer has not ended"
    ttft_s, *step_s = marks.seconds(len(steps))
    return Generation(
        token_ids=tuple(context.tokens[context.prompt_tokens :]),
        stop_reason=reason,
        ttft_s=ttft_s,
        steps=tuple(steps),
        step_s=tuple(step_s),
        layers=(layers, *(layer for step in steps for layer in step.layers)),
        phases=marks.phases(len(steps)),
        forced=context.forced,
    )


def open_context(target: Target, request: DecodeRequest, enter: Callable[[Phase], None] = ignore_phase) -> Context:
    prompt_tokens, most = len(request.prompt_ids), request.max_new_tokens
    if prompt_tokens == 0:
        raise UserError("empty_prompt", "the prompt has no tokens; give at least one")
    if most < 1:
        raise UserError("no_new_tokens", f"max_new_tokens is {most}; it must be at least 1")
    if prompt_tokens >= target.context_tokens:
        message = (
            f"the prompt has {prompt_tokens} tokens, and at most {target.context_tokens - 1} fit into the target's "
            "context; shorten it"
        )
        raise UserError("prompt_too_long", message)
    begun = target.begin(request.prompt_ids)
    limit = min(most, target.context_tokens - len(begun))
    forced = None if request.forced is None else ForcedText(tuple(request.forced))
    if forced is not None:
        forced.check_ends(limit, target.stop_ids)
    generator = request.sampling.generator(request.seed)
    stream = Stream(target, len(begun) + limit)
    stream.cache.encoded = target.read(request.prompt_ids)
    return Context(target, stream, begun, len(begun), limit, request.sampling, generator, forced, enter)


def _truncate(step: Step, context: Context) -> Step:
    """Cut at the first stop token and at the limit, for every method alike, so that all count the same tokens."""
    stops = context.target.stop_ids
    end = next((index + 1 for index, token in enumerate(step.tokens) if token in stops), len(step.tokens))
    end = min(end, context.remaining_tokens)
    if end == len(step.tokens):
        return step
    return replace(step, tokens=step.tokens[:end], accepted=min(step.accepted, end), layers=step.layers[:end])


def stop_reason(context: Context, max_new_tokens: int, last: int) -> StopReason | None:
    if last in context.target.stop_ids:
        return "stop"
    if context.remaining_tokens > 0:
        return None
    return "length" if context.limit_tokens == max_new_tokens else "context"
