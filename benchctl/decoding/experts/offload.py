"""A view of a mixture-of-experts target whose experts come out of a fast tier, for methods to decode on."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.experts.fast_tier import FastTier, Key, PolicyName, policy_of
from benchctl.decoding.experts.tiers import FileTier, Link, Loader, MemoryTier, Slots, Timer
from benchctl.decoding.model.layers import Experts, ExpertWeights, Layer
from benchctl.decoding.model.target import Target, TargetInfo

Tier = Literal["memory", "file"]
Predictor = Callable[[int, Tensor], Mapping[int, Sequence[int]]]
"""(layer, slow state [1, width]) -> by coming layer, nearest first, the experts to fetch ahead, the likeliest first.

Called at each layer of a pass of one row, when the layer's own experts are known and demanded but not yet computed:
the state is the residual that their answers will be added to. Layers that are not behind ``layer`` are an error.
"""


@dataclass(frozen=True)
class OffloadSettings:
    """policy          which expert leaves a full fast tier
    capacity        experts that the fast tier holds; 0 is a quarter of all
    bandwidth_mb_s  10^6 bytes a second from the slow tier; 0 is what the machine does
    tier            where the slow tier is
    blocking        compute none of a layer's experts before all of them are there
    """

    policy: PolicyName = "lru"
    capacity: int = 0
    bandwidth_mb_s: float = 0.0
    tier: Tier = "memory"
    blocking: bool = False

    def __post_init__(self) -> None:
        if self.capacity < 0:
            raise ValueError(f"capacity is {self.capacity}; it must be at least the experts of a token, or 0")
        if self.bandwidth_mb_s < 0:
            raise ValueError(
                f"bandwidth_mb_s is {self.bandwidth_mb_s}; it must be positive, or 0 for the machine's own"
            )

    def unsupported(self, target: TargetInfo) -> str | None:
        """Why experts of ``target`` cannot be offloaded; None when they can."""
        top_k = target.experts_per_token
        if not top_k:
            return "the target is dense; offloading takes a mixture of experts (OLMoE, Mixtral)"
        if 0 < self.capacity < top_k:
            return f"capacity {self.capacity} is below the {top_k} experts a token needs; give capacity={top_k} or more"
        return None


def mixtures_of(target: Target) -> Mapping[int, Experts]:
    """The mixtures of experts of a target, by layer."""
    return {layer: block.mlp for layer, block in enumerate(target.blocks) if isinstance(block.mlp, Experts)}


def rank_experts(block: Layer, state: Tensor, count: int) -> list[int]:
    """The experts that a layer's own norm and gate choose first for ``state`` [1, width], the likeliest first."""
    assert isinstance(block.mlp, Experts), "a mixture of experts"
    logits = F.linear(block.mlp_norm(state), block.mlp.router)
    ranked: list[int] = logits[0].topk(min(count, logits.shape[-1])).indices.tolist()
    return ranked


class OffloadsExperts(ABC):
    """Mix-in of a method that decodes on an `Offload`: ``class Mine(Method, OffloadsExperts)``, with a `serve`."""

    @abstractmethod
    def counters(self) -> Mapping[str, float]:
        """What the last generation counted, by name, see `Offload.counters`; read after `serve` has ended."""


class Offload:
    """The experts of a target in two tiers. Built once per run; each generation begins with an empty fast tier.

    view  the same target with every mixture of experts tiered; it runs only while it is served. The target itself stays
          as it is, and in memory, for the other methods of the run.
    """

    def __init__(self, target: Target, settings: OffloadSettings) -> None:
        self._target, self._settings = target, settings
        mixtures = mixtures_of(target)
        every = sum(mixture.router.shape[0] for mixture in mixtures.values())
        self.capacity = min(settings.capacity or max(every // 4, self.top_k), every)
        slow = MemoryTier(mixtures) if settings.tier == "memory" else FileTier(mixtures)
        rate = settings.bandwidth_mb_s * 1e6 or None
        self._link = Link(slow, Slots(next(iter(mixtures.values())), self.capacity), rate)
        self._tier: FastTier | None = None
        self._loader: Loader | None = None
        self._predictor: Predictor | None = None
        self._timed = False
        self.view = copy.copy(target)
        self.view.blocks = list(target.blocks)
        for layer, mixture in mixtures.items():
            held = {item.name: getattr(mixture, item.name) for item in fields(Experts)}
            tiered = _TieredExperts(**held, layer=layer, fetch_from=self._fetch)
            self.view.blocks[layer] = replace(target.blocks[layer], mlp=tiered)

    @property
    def top_k(self) -> int:
        return max(mixture.top_k for mixture in mixtures_of(self._target).values())

    @property
    def expert_bytes(self) -> int:
        return self._link.slots.expert_bytes

    @contextmanager
    def serve(self, timer: Timer | None, predictor: Predictor | None = None) -> Iterator[Target]:
        """The view, for one generation. Raises ValueError for a limited bandwidth without a timer."""
        tier = FastTier(self.capacity, policy_of(self._settings.policy, self._target.layers))
        self._tier, self._timed, self._predictor = tier, timer is not None, predictor
        with Loader(tier, self._link, timer) as self._loader:
            try:
                yield self.view
            finally:
                self._loader = None

    def _fetch(self, layer: int, needed: Sequence[int], residual: Tensor) -> Iterator[ExpertWeights]:
        """Demand, predict and hand out the experts of a visit; where ``blocking``, the first wait for one another."""
        loader = self._loader
        if loader is None:
            raise RuntimeError("nobody serves the experts of this view; run it inside serve()")
        loader.need(layer, needed)
        # Rows of a prompt together need nearly every expert: only single rows are predicted for.
        if self._predictor is not None and residual.shape[0] == 1:
            for ahead, experts in self._predictor(layer, residual).items():
                loader.want(ahead, tuple(experts))
        for expert in needed[: self.capacity if self._settings.blocking else 1]:
            loader.wait_for(Key(layer, expert))
        for expert in needed:
            yield loader.wait_for(Key(layer, expert))
            loader.done(Key(layer, expert))

    def counters(self) -> Mapping[str, float]:
        """What the last generation counted while decoding, see `fast_tier.Counts`; the prompt's as prefill_...

        Also expert_bytes and, for a throttled link, bandwidth_mb_s. Without a timer there is no stall_s.
        """
        if self._tier is None:
            return {}
        decode, prefill = self._tier.decode.as_numbers(), self._tier.prefill.as_numbers()
        counts = {**decode, **{f"prefill_{name}": prefill[name] for name in ("loads", "stall_s")}}
        if not self._timed:
            counts = {name: value for name, value in counts.items() if not name.endswith("stall_s")}
        if self._settings.bandwidth_mb_s:
            counts["bandwidth_mb_s"] = self._settings.bandwidth_mb_s
        return {**counts, "expert_bytes": float(self.expert_bytes)}


@dataclass(frozen=True)
class _TieredExperts(Experts):
    """Experts that are fetched before they compute; routing and products are those of the resident ones."""

    layer: int
    fetch_from: Callable[[int, Sequence[int], Tensor], Iterator[ExpertWeights]]

    def fetch(self, needed: Sequence[int], residual: Tensor) -> Iterator[ExpertWeights]:
        return self.fetch_from(self.layer, needed, residual)


@dataclass(frozen=True)
class NextGate:
    """Predicts, from the present slow state, what the next layer's own norm and gate would choose (a Predictor).

    Eliseev, Mazur: Fast Inference of Mixture-of-Experts Language Models with Offloading, 2023, arXiv 2312.17238.
    ``count`` experts are named: those of a token, and any spare ones.
    """

    target: Target
    count: int

    def __call__(self, layer: int, residual: Tensor) -> Mapping[int, Sequence[int]]:
        if layer + 1 >= self.target.layers:
            return {}
        return {layer + 1: rank_experts(self.target.blocks[layer + 1], residual, self.count)}
