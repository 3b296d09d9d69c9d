"""The one loop every method is decoded by, baseline included: it marks the clock, truncates, stops and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, Step
from benchctl.decoding.model.target import Target
from benchctl.decoding.phases import Marks
from benchctl.decoding.replay import ForcedText
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError

StopReason = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class Limits:
    """max_new_tokens: ids generated at most; fewer where the target's context ends first."""

    max_new_tokens: int


@dataclass(frozen=True)
class Generation:
    """One answer. token_ids end with the first stop token, or at the limit; steps are truncated alike.

    ttft_s   seconds from before prefill to the first token on the host
    step_s   seconds of each step
    layers   layers run for each token, the prefill token first
    counters what the method counted beside its steps
    phases   seconds of each phase of each step, by its name, where they were asked for
    forced   the text that was forced upon the method, where one was, with how often that was its own choice
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


@torch.inference_mode()
def decode(
    method: Method,
    target: Target,
    prompt_ids: Sequence[int],
    limits: Limits,
    sampling: Sampling,
    clock: Callable[[], float],
    prompt_seed: int = 0,
    timer: Timer | None = None,
    forced: Sequence[int] | None = None,
    profile: bool = False,
) -> Generation:
    """Decode one prompt with one method, which may be given a ``timer`` for what has to wait beside it.

    With ``forced`` tokens, a whole answer, the method says these, whatever it would have said; with ``profile`` the
    phases of each step are timed too, which takes time itself.

    A step returns Python integers, so it ends when its tokens are on the host: that transfer is the
    synchronisation, and every method pays it. Raises UserError for a prompt that is empty or fills the context, and for
    a limit below one, and ValueError for a forced text that is no whole answer, or that the method did not say.
    """
    with method.serve(target, timer) as served:
        context = open_context(served, prompt_ids, limits, sampling, prompt_seed, forced)
        generation = _generate(method, context, prompt_ids, limits, Marks(clock, profile))
    return replace(generation, counters=dict(method.counters()))


def _generate(method: Method, context: Context, prompt_ids: Sequence[int], limits: Limits, marks: Marks) -> Generation:
    context.enter = marks.watch
    marks.mark()
    context.tokens += context.target.read(prompt_ids)
    first = method.start(context)
    marks.mark()
    layers = prefill_layers(context)
    say(context, (first,))
    steps: list[Step] = []
    reason = stop_reason(context, limits, first)
    while reason is None:
        step = method.step(context)
        marks.mark()
        step = _truncate(step, context)
        say(context, step.tokens)
        steps.append(step)
        reason = stop_reason(context, limits, step.tokens[-1])
    return generation_of(context, reason, marks, steps, layers)


def prefill_layers(context: Context) -> int:
    """Layers that the last token of the prompt has run: those that it did not pass by."""
    last = context.prompt_tokens - 1
    return sum(last not in absent for absent in context.stream.cache.absent)


def say(context: Context, tokens: Sequence[int]) -> None:
    """Add tokens to the text. Raises ValueError if others were forced upon the method."""
    if context.forced is not None:
        context.forced.check_said(context.new_tokens, tokens)
    context.tokens += tokens


def generation_of(context: Context, reason: StopReason, marks: Marks, steps: Sequence[Step], layers: int) -> Generation:
    """The answer that a context has come to, with the clock's marks before prefill, after it and after each step.

    ``layers`` are those that prefill ran for the first token.
    """
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


def open_context(
    target: Target,
    prompt_ids: Sequence[int],
    limits: Limits,
    sampling: Sampling,
    prompt_seed: int,
    forced: Sequence[int] | None = None,
) -> Context:
    """A generation before its target has read the prompt. Raises UserError as `decode` does."""
    prompt_tokens = len(prompt_ids)
    if prompt_tokens == 0:
        raise UserError("the prompt has no tokens; give at least one")
    if limits.max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {limits.max_new_tokens}; it must be at least 1")
    if prompt_tokens >= target.context_tokens:
        raise UserError(f"the prompt has {prompt_tokens} tokens, but the target takes {target.context_tokens} in all")
    begun = prompt_tokens if target.encoder is None else 1  # one that has read the prompt begins with a start token
    limit = min(limits.max_new_tokens, target.context_tokens - begun)
    text = None if forced is None else ForcedText(tuple(forced))
    if text is not None:
        text.check_ends(limit, target.stop_ids)
    stream = Stream(target, begun + limit)
    return Context(target, stream, [], begun, limit, sampling, sampling.generator(prompt_seed), text)


def _truncate(step: Step, context: Context) -> Step:
    """Cut at the first stop token and at the limit, for every method alike, so that all count the same tokens."""
    stops = context.target.stop_ids
    end = next((index + 1 for index, token in enumerate(step.tokens) if token in stops), len(step.tokens))
    end = min(end, context.remaining_tokens)
    if end == len(step.tokens):
        return step
    return replace(step, tokens=step.tokens[:end], accepted=min(step.accepted, end), layers=step.layers[:end])


def stop_reason(context: Context, limits: Limits, last: int) -> StopReason | None:
    """Why the answer ends with its ``last`` token; None when it goes on."""
    if last in context.target.stop_ids:
        return "stop"
    if context.remaining_tokens > 0:
        return None
    return "length" if context.limit_tokens == limits.max_new_tokens else "context"
