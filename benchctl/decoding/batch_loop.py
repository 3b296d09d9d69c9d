"""The loop of a batch: prompts are prefilled one by one, then all sequences take each step together.

A sequence that ends leaves the batch, so that nothing is computed for it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from benchctl.decoding.batch import Batched
from benchctl.decoding.batch_cache import BatchCache
from benchctl.decoding.layers import Attention, project, weigh
from benchctl.decoding.loop import (
    Generation,
    Limits,
    StopReason,
    generation_of,
    open_context,
    prefill_layers,
    say,
    stop_reason,
)
from benchctl.decoding.method import Context, Method, Step
from benchctl.decoding.phases import Marks, Phase
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target
from benchctl.decoding.tiers import Timer

MOST_SEQUENCES = 16


@dataclass(frozen=True)
class BatchPrompt:
    """A prompt's ids, the seed of the answer that is drawn to it, and the answer that is forced, where one is."""

    ids: Sequence[int]
    seed: int = 0
    forced: Sequence[int] | None = None


@dataclass
class _Sequence:
    """One of the batch; ``layers`` ran in its prefill. Its context's stream is an idle one after that: keys and values
    are in the batch's cache."""

    context: Context
    layers: int = 0
    steps: list[Step] = field(default_factory=list)
    reason: StopReason | None = None

    def generation(self, marks: Marks) -> Generation:
        """What it came to, the batch's clock having been read at ``marks``."""
        assert self.reason is not None
        return generation_of(self.context, self.reason, marks, self.steps, self.layers)

    def add(self, step: Step, limits: Limits) -> None:
        self.steps.append(step)
        self.say(step.tokens[0], limits)

    def say(self, token: int, limits: Limits) -> None:
        say(self.context, (token,))
        self.reason = stop_reason(self.context, limits, token)


@torch.inference_mode()
def decode_batch(
    method: Method,
    target: Target,
    prompts: Sequence[BatchPrompt],
    limits: Limits,
    sampling: Sampling,
    clock: Callable[[], float],
    timer: Timer | None = None,
    profile: bool = False,
) -> tuple[Generation, ...]:
    """Decode prompts together: for each what ``loop.decode`` would say, drawn from a generator of its own.

    Phases too are those of the batch's steps, and a forced text is that of its prompt.

    The times of a generation are the batch's, up to its end. ``ttft_s`` is the same for all, the time until the last
    prompt is prefilled, since no answer goes on before that; ``step_s`` are the steps that it took part in. So
    ttft_s + sum(step_s) is when its last token was there, and the longest of these is the time of the batch. What a
    method counts beside its steps is of one generation, and left out.

    Raises ValueError for a method that decodes no batches and for no prompts or too many, and UserError as
    ``loop.decode`` does, for any of the prompts.
    """
    if not isinstance(method, Batched):
        raise ValueError(f"the method decodes no batches, since {method.one_by_one}")
    if not 0 < len(prompts) <= MOST_SEQUENCES:
        raise ValueError(f"{len(prompts)} prompts are no batch; it takes 1 to {MOST_SEQUENCES}")
    with method.serve(target, timer) as served:
        marks = Marks(clock, profile)
        batch = _Batch(served, limits, sampling, partial(method.layers_at, served), marks.watch)
        marks.mark()
        batch.start(method, prompts)
        marks.mark()
        while batch.running:
            batch.step()
            marks.mark()
    return tuple(sequence.generation(marks) for sequence in batch.sequences)


class _Batch:
    """Sequences on their way; those in ``running`` stand at their places in the cache."""

    def __init__(
        self,
        target: Target,
        limits: Limits,
        sampling: Sampling,
        layers_at: Callable[[int], Sequence[int]],
        enter: Callable[[Phase], None],
    ) -> None:
        self._target, self._limits, self._sampling = target, limits, sampling
        self._layers_at, self._enter = layers_at, enter
        self._new_tokens = 1
        self.sequences: list[_Sequence] = []
        self.running: list[_Sequence] = []

    def start(self, method: Method, prompts: Sequence[BatchPrompt]) -> None:
        """Prefill the prompts one by one; each gives its first token."""
        most = self._limits.max_new_tokens
        room = max(min(most, self._target.context_tokens - len(prompt.ids)) for prompt in prompts)
        self._cache = BatchCache([len(prompt.ids) for prompt in prompts], max(room, 0))
        idle = Stream(self._target, 0)
        for place, prompt in enumerate(prompts):
            context = open_context(self._target, prompt.ids, self._limits, self._sampling, prompt.seed, prompt.forced)
            context.tokens += self._target.read(prompt.ids)
            sequence = _Sequence(context)
            sequence.say(method.start(context), self._limits)
            sequence.layers = prefill_layers(context)
            self._cache.take(place, context.stream.cache)
            context.stream = idle
            self.sequences.append(sequence)
        self.running = list(self.sequences)
        self._dismiss()

    def step(self) -> None:
        """One token for every running sequence."""
        layers = self._layers_at(self._new_tokens)
        contexts = [sequence.context for sequence in self.running]
        self._enter("verify")
        target_logits = self._target.head(self._run([context.tokens[-1] for context in contexts], layers))
        chosen = self._sampling.draw_each(target_logits, [context.generator for context in contexts])
        self._enter("host")
        for sequence, own in zip(self.running, chosen, strict=True):
            forced, at = sequence.context.forced, sequence.context.new_tokens
            token = own if forced is None else forced.choose(at, own)
            sequence.add(Step((token,), 0, 0, 1, (len(layers),)), self._limits)
        self._new_tokens += 1
        self._enter("commit")
        self._dismiss()
        self._enter("host")

    def _run(self, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
        """Residual [sequences, width] of a row for each token, after these layers."""
        cache = self._cache
        rotary = self._target.rotary[cache.positions].unsqueeze(1)
        x = self._target.embed(tokens)
        for index in layers:
            layer = self._target.blocks[index]
            x = _attend(layer.attention, x, layer.attention_norm(x), rotary, cache, index)
            x = layer.mlp.add_to(x, layer.mlp_norm(x))
        cache.advance()
        return x

    def _dismiss(self) -> None:
        """Let the sequences that have ended go; the last one moves to the place of each."""
        for place in reversed(range(len(self.running))):
            if self.running[place].reason is not None:
                self._cache.leave(place)
                last = self.running.pop()
                if place < len(self.running):
                    self.running[place] = last


def _attend(attention: Attention, residual: Tensor, x: Tensor, rotary: Tensor, cache: BatchCache, layer: int) -> Tensor:
    """residual + attention of ``x`` [sequences, width], of each sequence's row over its own keys and values."""
    queries, rows = project(attention, x, rotary)
    keys, values = cache.write(layer, rows, attention.window)
    grouped = queries.reshape(keys.shape[0], -1, attention.head_dim)
    mixed = weigh(grouped, keys, values, attention.scale, cache.bias(layer, attention.window))
    return attention.out.add_to(residual, mixed.view(x.shape[0], -1))
