"""The one loop every method is decoded by, baseline included: it marks the clock, truncates, stops and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import torch

from benchctl.decoding.method import Context, Method, Step
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target
from benchctl.decoding.tiers import Timer
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
    """

    token_ids: tuple[int, ...]
    stop_reason: StopReason
    ttft_s: float
    steps: tuple[Step, ...]
    step_s: tuple[float, ...]
    layers: tuple[int, ...]
    counters: Mapping[str, float] = field(default_factory=dict)


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
) -> Generation:
    """Decode one prompt with one method, which may be given a ``timer`` for what has to wait beside it.

    A step returns Python integers, so it ends when its tokens are on the host: that transfer is the
    synchronisation, and every method pays it. Raises UserError for a prompt that is empty or fills the context, and for
    a limit below one.
    """
    with method.serve(target, timer) as served:
        context = open_context(served, prompt_ids, limits, sampling, prompt_seed)
        generation = _generate(method, context, prompt_ids, limits, clock)
    return replace(generation, counters=dict(method.counters()))


def _generate(
    method: Method, context: Context, prompt_ids: Sequence[int], limits: Limits, clock: Callable[[], float]
) -> Generation:
    marks = [clock()]
    context.tokens += context.target.read(prompt_ids)
    first = method.start(context)
    marks.append(clock())
    layers = prefill_layers(context)
    context.tokens.append(first)
    steps: list[Step] = []
    reason = stop_reason(context, limits, first)
    while reason is None:
        step = method.step(context)
        marks.append(clock())
        step = _truncate(step, context)
        context.tokens += step.tokens
        steps.append(step)
        reason = stop_reason(context, limits, step.tokens[-1])
    return generation_of(context, reason, marks, steps, layers)


def prefill_layers(context: Context) -> int:
    """Layers that the last token of the prompt has run: those that it did not pass by."""
    last = context.prompt_tokens - 1
    return sum(last not in absent for absent in context.stream.cache.absent)


def generation_of(
    context: Context, reason: StopReason, marks: Sequence[float], steps: Sequence[Step], layers: int
) -> Generation:
    """The answer that a context has come to, with the clock's marks before prefill, after it and after each step.

    ``layers`` are those that prefill ran for the first token.
    """
    times = [after - before for before, after in pairwise(marks)]
    depths = [layers, *(layer for step in steps for layer in step.layers)]
    answer = tuple(context.tokens[context.prompt_tokens :])
    return Generation(answer, reason, times[0], tuple(steps), tuple(times[1:]), tuple(depths))


def open_context(
    target: Target, prompt_ids: Sequence[int], limits: Limits, sampling: Sampling, prompt_seed: int
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
    stream = Stream(target, begun + limit)
    return Context(target, stream, [], begun, limit, sampling, sampling.generator(prompt_seed))


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
