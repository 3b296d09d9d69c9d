"""Several sequences decoded together: a row of each goes through the same layers, so weights are read once for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchctl.decoding.counting import Step, check_all_layers, check_cache
from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import (
    DecodeRequest,
    Generation,
    StopReason,
    commit,
    generation_of,
    open_context,
    prefill_layers,
    stop_reason,
)
from benchctl.decoding.method import CarriesOver, Context, Method
from benchctl.decoding.model.layers import project, weigh
from benchctl.decoding.model.target import Target
from benchctl.decoding.phases import Marks, Phase
from benchctl.errors import UserError


class Batched(ABC):
    """Mix-in of a method that can decode in batches: ``class Mine(Method, Batched)``.

    The batch calls ``Method.start`` for each prompt, on a stream of its own and on the target that ``Method.serve``
    gives, and takes over the keys and values; ``Method.step`` is not called. All prompts start before the first
    step, so ``start`` must leave nothing on the method that steps depend on.
    """

    @abstractmethod
    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        """Indices, ascending from 0, of the target's layers that the row of the last of ``new_tokens`` tokens runs.

        ``new_tokens`` counts the answer so far, 1 at the first step; nothing else may matter. A layer may be named only
        if it has run every earlier row of the sequence, those of the prompt included.
        """


def why_not_batched(method: Method) -> str | None:
    """Why a method cannot decode in batches, for behind "since"; None when it can."""
    if not isinstance(method, Batched):
        return method.no_batch_reason
    return "its prompts build on each other" if isinstance(method, CarriesOver) else None


class BatchCache:
    """Slot i of a sequence holds its position i - offset, its offset being what it lacks of the longest prompt.

    length   slots in use, the same for every sequence and layer; positions: where the next row of each comes

    Per layer keys and values are [2, sequences, kv_heads, slots, head_dim]. When a sequence leaves, the last takes its
    index. A layer that was not run by every earlier row of every sequence cannot be run again.
    """

    def __init__(self, prompts: Sequence[int], new_tokens: int) -> None:
        self.length = max(prompts)
        self._slots = self.length + new_tokens
        self._offsets = [self.length - tokens for tokens in prompts]
        self._kv: dict[int, Tensor] = {}
        self._ends: dict[int, int] = {}  # up to which slot a layer holds every row
        self._bias: Tensor | None = None

    @property
    def positions(self) -> list[int]:
        return [self.length - offset for offset in self._offsets]

    def take(self, place: int, cache: Cache) -> None:
        """Copy what a prompt left in the layers that all its rows ran."""
        tokens = self.positions[place]
        for layer, held in enumerate(cache.lengths):
            whole = held == tokens and not cache.absent[layer]
            self._ends[layer] = min(self._ends.get(layer, self.length), self.length if whole else 0)
            if whole:
                rows = cache.kv[layer][:, :tokens].view(2, cache.kv_heads, tokens, -1)
                if layer not in self._kv:
                    shape = (2, len(self._offsets), cache.kv_heads, self._slots, rows.shape[3])
                    self._kv[layer] = rows.new_empty(shape)
                kv = self._kv[layer][:, place]
                kv[:, :, : self._offsets[place]].zero_()  # NaN would come through the mask: 0 * NaN is NaN
                kv[:, :, self._offsets[place] : self.length].copy_(rows)

    def write(self, layer: int, rows: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """Store the next row of every sequence, ``rows`` [2 * kv_heads, sequences, head_dim].

        Returns views of the keys and values that they may see, but for padding: [sequences * kv_heads, slots, head_dim]
        each. Raises ValueError for a layer that earlier rows have passed by.
        """
        if self._ends.get(layer) != self.length:
            raise ValueError(f"layer {layer} was not run by every earlier row, so the batch cannot run it")
        kv = self._kv[layer][:, : len(self._offsets)]
        kv[:, :, :, self.length].copy_(rows.view(2, kv.shape[2], kv.shape[1], -1).transpose(1, 2))
        self._ends[layer] = self.length + 1
        keys, values = kv[:, :, :, self._first(window) : self.length + 1].flatten(1, 2)
        return keys, values

    def bias(self, layer: int, window: int | None) -> Tensor | None:
        """[sequences * kv_heads, 1, slots] for what write returns: -inf in padding, else 0; None without padding."""
        first = self._first(window)
        if max(self._offsets) <= first:
            return None
        if self._bias is None:
            kv = self._kv[layer]
            empty = torch.arange(self._slots) < torch.tensor(self._offsets)[:, None]
            bias = torch.zeros(empty.shape, dtype=kv.dtype).masked_fill_(empty, -torch.inf).to(kv.device)
            self._bias = bias.repeat_interleave(kv.shape[2], 0).unsqueeze(1)
        return self._bias[:, :, first : self.length + 1]

    def _first(self, window: int | None) -> int:
        """The first slot that is padding for some sequences at most, and within the window."""
        padding = min(self._offsets)
        return padding if window is None else max(padding, self.length + 1 - window)

    def leave(self, place: int) -> None:
        last = len(self._offsets) - 1
        if place != last:
            for kv in self._kv.values():
                kv[:, place, :, : self.length].copy_(kv[:, last, :, : self.length])
            self._offsets[place] = self._offsets[last]
        del self._offsets[last]
        self._bias = None


MOST_SEQUENCES = 16


@dataclass
class _Sequence:
    """One of the batch; ``layers`` ran in its prefill. Its keys and values are in the batch's cache after that."""

    context: Context
    layers: int = 0
    steps: list[Step] = field(default_factory=list)
    reason: StopReason | None = None

    def add(self, token: int, max_new_tokens: int) -> None:
        commit(self.context, (token,))
        self.reason = stop_reason(self.context, max_new_tokens, token)


@torch.inference_mode()
def decode_batch(method: Method, target: Target, requests: Sequence[DecodeRequest]) -> tuple[Generation, ...]:
    """Decode prompts together: for each the answer that `loop.decode` gives, drawn from a generator of its own.

    Requests differ in prompt, seed and forced text only; the other conditions are those of the first. ``ttft_s`` is the
    time until the last prompt is prefilled; the longest ttft_s + sum(step_s) is the time of the batch. No counters.

    Raises ValueError for a method that decodes no batches and for no prompts or too many, and UserError as
    `loop.decode`.
    """
    if not isinstance(method, Batched):
        raise ValueError(f"the method decodes no batches, since {method.no_batch_reason}")
    if not 0 < len(requests) <= MOST_SEQUENCES:
        raise ValueError(f"{len(requests)} prompts are no batch; it takes 1 to {MOST_SEQUENCES}")
    first = requests[0]
    marks = Marks(first.clock, first.profile)
    marks.mark()
    with method.serve(target, first.timer) as served:
        batch = _Batch(method, served, requests, marks.watch)
        marks.mark()
        while batch.running:
            batch.step()
            marks.mark()
    return tuple(
        generation_of(sequence.context, sequence.reason, marks, sequence.steps, sequence.layers)
        for sequence in batch.sequences
    )


class _Batch:
    """Sequences that decode together; sequence i of ``running`` is at index i of the cache."""

    def __init__(
        self, method: Batched, target: Target, requests: Sequence[DecodeRequest], enter: Callable[[Phase], None]
    ) -> None:
        assert isinstance(method, Method)
        self._target, self._sampling, self._most = target, requests[0].sampling, requests[0].max_new_tokens
        self._method: Batched = method
        self._claims_all = method.exactness != "lossy"
        self._enter, self._new_tokens = enter, 1
        self.sequences: list[_Sequence] = []
        prompts = [len(request.prompt_ids) for request in requests]
        room = max(min(self._most, target.context_tokens - tokens) for tokens in prompts)
        self._cache, idle = BatchCache(prompts, max(room, 0)), Stream(target, 0)
        for index, request in enumerate(requests):
            context = open_context(target, request)
            sequence = _Sequence(context)
            sequence.add(method.start(context), self._most)
            sequence.layers = prefill_layers(context)
            if method.exactness != "lossy":
                check_all_layers(context, context.stream.runs)
            check_cache(context, len(context.tokens))
            self._cache.take(index, context.stream.cache)
            context.stream = idle  # frees the prompt's own cache
            self.sequences.append(sequence)
        self.running = list(self.sequences)
        self._drop_ended()

    def step(self) -> None:
        layers = self._method.layers_at(self._target, self._new_tokens)
        if self._claims_all and len(layers) < self._target.layers:
            raise UserError(
                "layers_skipped",
                f"the method claims the target's own answers, but ran {len(layers)} of {self._target.layers} layers: "
                "run all layers for each token, or set exactness to lossy",
            )
        contexts = [sequence.context for sequence in self.running]
        self._enter("verify")
        target_logits = self._target.head(self._run([context.tokens[-1] for context in contexts], layers))
        chosen = self._sampling.draw_each(target_logits, [context.generator for context in contexts])
        self._enter("host")
        for sequence, own in zip(self.running, chosen, strict=True):
            forced, at = sequence.context.forced, sequence.context.new_tokens
            token = own if forced is None else forced.choose(at, own)
            sequence.steps.append(Step((token,), 0, 0, int(self._target.layers - 1 in layers), (len(layers),)))
            sequence.add(token, self._most)
        self._new_tokens += 1
        self._enter("commit")
        self._drop_ended()
        self._enter("host")

    def _run(self, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
        """Residual [sequences, width] of a row for each token, after these layers."""
        cache = self._cache
        tables = (self._target.rotary, *self._target.more_rotary)
        turns = [table[cache.positions].unsqueeze(1) for table in tables]
        x = self._target.embed(tokens, cache.positions)
        for index in layers:
            layer = self._target.blocks[index]
            attention = layer.attention
            queries, rows = project(attention, layer.attention_norm(x), turns[attention.rope])
            keys, values = cache.write(index, rows, attention.window)
            grouped = queries.reshape(keys.shape[0], -1, attention.head_dim)
            mixed = weigh(attention, grouped, keys, values, cache.bias(index, attention.window))
            x = layer.finish(x, mixed.view(x.shape[0], -1))
        cache.length += 1  # the next row is written behind this one
        return x

    def _drop_ended(self) -> None:
        for index in reversed(range(len(self.running))):
            if self.running[index].reason is not None:
                self._cache.leave(index)
                last = self.running.pop()
                if index < len(self.running):
                    self.running[index] = last
