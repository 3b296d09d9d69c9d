"""Plain decoding of a mixture of experts whose experts do not all fit into fast memory.

Options choose which expert is evicted (`policy`) and whether the next layer's experts are loaded early (`prefetch`).
Eliseev, Mazur: Fast Inference of Mixture-of-Experts Language Models with Offloading, 2023, arXiv 2312.17238 (LRU, next
gate); Hoang et al.: SpecMD, 2026, arXiv 2602.03921 (Least-Stale, see experts.fast_tier).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from benchctl.decoding.experts.fast_tier import PolicyName
from benchctl.decoding.experts.offload import Offload, OffloadSettings, OffloadsExperts, Timer, next_gate
from benchctl.decoding.method import Context, Method, check_options, one_token
from benchctl.decoding.model.target import Target, TargetInfo


@dataclass
class ExpertOffload(Method, OffloadsExperts):
    """Decode a mixture of experts whose fast memory holds only ``capacity`` experts.

    policy          which expert is evicted when the fast tier is full: on_demand (keeps none), lru, lfu or least_stale
    prefetch        next_gate loads the experts that the next layer's gate picks for the current state; none: nothing
    capacity        experts that the fast tier holds, over all layers; 0: a quarter of all
    bandwidth_mb_s  limit loading to this many 10^6 bytes per second; 0: no limit
    spare           experts to prefetch beyond those that a token needs
    blocking        load all experts of a layer before any of them is computed, without overlap
    """

    policy: PolicyName = "lru"
    prefetch: Literal["none", "next_gate"] = "none"
    capacity: int = 0
    bandwidth_mb_s: float = 0.0
    spare: int = 0
    blocking: bool = False
    demo = ("prefetch=next_gate",)
    no_batch_reason = "each sequence of a batch would need experts of its own"
    _offload: Offload = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._settings()
        check_options(self, 0, "spare")
        if self.spare and self.prefetch == "none":
            raise ValueError(f"spare is {self.spare}, but prefetch=none fetches nothing ahead; give prefetch=next_gate")
        if self.blocking and self.prefetch != "none":
            raise ValueError(f"blocking copies nothing while computing, but prefetch={self.prefetch} does; choose one")

    def _settings(self) -> OffloadSettings:
        return OffloadSettings(self.policy, self.capacity, self.bandwidth_mb_s, self.blocking)

    def unsupported(self, target: TargetInfo) -> str | None:
        return self._settings().unsupported(target)

    def prepare(self, target: Target) -> None:
        self._offload = Offload(target, self._settings())

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        ahead = next_gate(target, self._offload.top_k + self.spare) if self.prefetch == "next_gate" else None
        return self._offload.serve(timer, ahead)

    def step(self, context: Context) -> tuple[int]:
        return one_token(context)

    def counters(self) -> Mapping[str, float]:
        return self._offload.counters()
