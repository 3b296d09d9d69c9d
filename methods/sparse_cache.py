"""Draft with the target itself on a part of its cache; the target on its whole cache verifies.

select=window: the first tokens and the latest ones, StreamingLLM (Xiao et al. 2023, arXiv 2309.17453) as the drafter of
MagicDec (Chen et al. 2024, 2408.11049). select=retrieval: chunks of tokens whose mean key fits the query best, as the
middle model of TriForce (Sun et al. 2024, 2404.11912; models/cache.py). Ours: keys stay rotated for their positions in
the text; chunks are chosen again for each draft, by the query of the last committed token; verification is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.stops import Stop
from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Chain, Context, Speculative, check_options, refuse_options
from benchctl.decoding.model.layers import Parts

Choose = Callable[[int, Tensor], None]


@dataclass
class SparseCache(Speculative):
    """Draft with the target, which sees a part of the text; it gains where the cache is larger than the weights.

    select        retrieval (chunks of tokens, for each layer and key head) or window (the first tokens and the latest)
    budget        tokens of the text that drafted rows see; 257 in MagicDec, 4096 in TriForce
    chunk         for select=retrieval: tokens of a chunk; the first chunk, and all from the last whole one on, are seen
    sinks         for select=window: first tokens of the text among them; 4 in StreamingLLM, 16 in MagicDec
    draft_tokens  tokens drafted per verification; 3 in MagicDec, 6 in TriForce
    confidence    the draft ends after a token with a lower draft probability; 0, as in the papers, never
    """

    select: Literal["retrieval", "window"] = "retrieval"
    budget: int = 256
    chunk: int = 8
    sinks: int = 4
    draft_tokens: int = 4
    confidence: float = 0.6
    can_combine = False
    _stop: Stop = field(init=False, repr=False, compare=False)
    _view: Cache = field(init=False, repr=False, compare=False)
    _means: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "budget", "chunk", "draft_tokens")
        check_options(self, 0, "confidence", most=1)
        refuse_options(self, f"with select={self.select}", "chunk" if self.select == "window" else "sinks")
        if self.select == "window":
            check_options(self, 0, "sinks", most=self.budget - 1)
        elif self.budget < 3 * self.chunk:
            raise ValueError(f"budget is {self.budget}; with chunk={self.chunk} it must be at least {3 * self.chunk}")

    def start(self, context: Context) -> int:
        self._stop = Stop("confidence", self.confidence, self.draft_tokens, 0.0)
        self._view = context.target.new_cache(self.budget + self.chunk + self.draft_tokens)
        self._means = []
        return super().start(context)

    def draft(self, context: Context, budget: int) -> Draft:
        stream, chain, target = context.stream, Chain(context), context.target
        parts, drafted = [Parts()] * target.layers, min(self._stop.begin(), budget)
        choose = self._begin(stream) if drafted > 0 else None  # what the first row sees is what the whole draft sees
        for earlier in range(drafted):
            token = chain.tokens[-1] if earlier else context.tokens[-1]
            state = target.embed([token], [stream.base + earlier])
            state = stream.detour(state, parts, earlier=earlier, view=self._view, choose=choose)
            choose, draft_logits = None, target.head(state)
            if self._stop.ends(draft_logits, chain.add(draft_logits)) or chain.ended:
                break
        return chain.draft()

    def _begin(self, stream: Stream) -> Choose:
        """Make room in the view, and return what fills a layer of it, when the queries of the first row are known."""
        length, cache, view = stream.base, stream.cache, self._view
        if self.select == "window" or length <= self.budget:
            latest = self.budget - self.sinks
            kept = range(length) if length <= self.budget else (*range(self.sinks), *range(length - latest, length))
            slots = torch.tensor(kept, dtype=torch.int64, device=cache.kv[0].device)
            view.hold(len(kept))
            return lambda layer, _: view.take(layer, cache, slots)
        self._add_means(cache, length)
        view.hold(self.budget // self.chunk * self.chunk + length % self.chunk)
        return lambda layer, queries: view.take(layer, cache, self._retrieved(queries, layer, length))

    def _add_means(self, cache: Cache, length: int) -> None:
        """Mean keys [kv_heads, chunks, head_dim] of the whole chunks of the text, for each layer."""
        done, chunks = self._means[0].shape[1] if self._means else 0, length // self.chunk
        if done == chunks:
            return
        fresh = []
        for kv in cache.kv:
            keys = kv[: cache.kv_heads, done * self.chunk : chunks * self.chunk]
            fresh.append(keys.reshape(len(keys), -1, self.chunk, keys.shape[-1]).mean(2))
        self._means = [torch.cat(both, 1) for both in zip(self._means, fresh, strict=True)] if done else fresh

    def _retrieved(self, queries: Tensor, layer: int, length: int) -> Tensor:
        """Slots [kv_heads, n] for queries [1, heads, head_dim]: the scores of those that share a key head add up."""
        means, size = self._means[layer], self.chunk
        of_head = queries.view(means.shape[0], -1, means.shape[2]).sum(1)
        scores = (means @ of_head.unsqueeze(-1)).squeeze(-1)
        last = means.shape[1] - 1
        best = 1 + scores[:, 1:last].topk(self.budget // size - 2, -1).indices
        chunks = torch.cat((best.new_zeros(len(best), 1), best), 1)
        slots = (chunks.unsqueeze(-1) * size + torch.arange(size, device=best.device)).flatten(1)
        tail = torch.arange(last * size, length, device=best.device).expand(len(best), -1)
        return torch.cat((slots, tail), 1)
