"""The one loop every method is decoded by, baseline included: it marks the clock, truncates, stops and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        context = _open(served, prompt_ids, limits, sampling, prompt_seed)
        generation = _generate(method, context, limits, clock)
    return replace(generation, counters=dict(method.counters()))


def _generate(method: Method, context: Context, limits: Limits, clock: Callable[[], float]) -> Generation:
    marks = [clock()]
    first = method.start(context)
    marks.append(clock())
    context.tokens.append(first)
    steps: list[Step] = []
    reason = _stop_reason(context, limits, first)
    while reason is None:
        step = method.step(context)
        marks.append(clock())
        step = _truncate(step, context)
        context.tokens += step.tokens
        steps.append(step)
        reason = _stop_reason(context, limits, step.tokens[-1])
    times = [after - before for before, after in zip(marks, marks[1:], strict=False)]
    depths = [context.target.layers, *(layer for step in steps for layer in step.layers)]
    answer = tuple(context.tokens[context.prompt_tokens :])
    return Generation(answer, reason, times[0], tuple(steps), tuple(times[1:]), tuple(depths))


def _open(target: Target, prompt_ids: Sequence[int], limits: Limits, sampling: Sampling, prompt_seed: int) -> Context:
    prompt_tokens = len(prompt_ids)
    if prompt_tokens == 0:
        raise UserError("the prompt has no tokens; give at least one")
    if limits.max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {limits.max_new_tokens}; it must be at least 1")
    room = target.context_tokens - prompt_tokens
    if room < 1:
        raise UserError(f"the prompt has {prompt_tokens} tokens, but the target takes {target.context_tokens} in all")
    limit = min(limits.max_new_tokens, room)
    stream = Stream(target, prompt_tokens + limit)
    generator = sampling.generator(prompt_seed)
    return Context(target, stream, list(prompt_ids), prompt_tokens, limit, sampling, generator)


def _truncate(step: Step, context: Context) -> Step:
    """Cut at the first stop token and at the limit, for every method alike, so that all count the same tokens."""
    stops = context.target.stop_ids
    end = next((index + 1 for index, token in enumerate(step.tokens) if token in stops), len(step.tokens))
    end = min(end, context.remaining_tokens)
    if end == len(step.tokens):
        return step
    return replace(step, tokens=step.tokens[:end], accepted=min(step.accepted, end), layers=step.layers[:end])


def _stop_reason(context: Context, limits: Limits, last: int) -> StopReason | None:
    if last in context.target.stop_ids:
        return "stop"
    if context.remaining_tokens > 0:
        return None
    return "length" if context.limit_tokens == limits.max_new_tokens else "context"
