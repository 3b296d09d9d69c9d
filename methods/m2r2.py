"""A slow residual stream, which is the target itself, beside an accelerated one that says early what it will say.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
What the paper states and what is ours: docs/m2r2.md. The streams are in decoding.accelerated, their training in
decoding.alignment; leaving by a router is in decoding.dynamic, its training in decoding.routing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from benchctl.decoding.accelerated import AdapterKind, AdapterSettings
from benchctl.decoding.ahead import Loading
from benchctl.decoding.alignment import TwoStreams
from benchctl.decoding.arla import Router
from benchctl.decoding.dynamic import KvFillName, Leaving, RouterName
from benchctl.decoding.experts.offload import OffloadSettings, OffloadsExperts, Tier
from benchctl.decoding.experts.policies import PolicyName
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.gate_draft import Drafting, Source
from benchctl.decoding.gates import Interval, check_gate, intervals_of, read_gates, unfit_gates
from benchctl.decoding.method import Context, Method, MonotoneThreshold, Step
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.folder import load_modules
from benchctl.decoding.modules.trainable import Lesson, SecondStage, Tally, Trainable, TrainingDefaults
from benchctl.decoding.streams import How, decoding_of, refuse_idle_options, streams_loss, streams_yardsticks
from benchctl.errors import UserError


@dataclass
class M2R2(Method, Trainable, MonotoneThreshold, OffloadsExperts):
    """Say with the accelerated stream what the target will say, or which experts it will want, some layers later.

    mode          speculative (it drafts, the slow stream verifies: exact), dynamic (tokens leave at the first gate with
                  a sure router: lossy) or aot (experts are fetched ahead of time: exact)
    modules       folder of the trained adapters, and of the router where one is trained
    gates         layers where the accelerated stream starts anew, joined by +; empty takes 1/8, 1/4 and 1/2 of the
                  depth, for mode=aot half of it
    rate          slow layers that one of the accelerated stream is to be worth; 0 reaches the last layer at each gate,
                  and is 2 for mode=aot
    adapters      lora, bottleneck or hybrid; rank and alpha are theirs: what they add is scaled by alpha / rank
    Of mode=speculative only:
    exit          the gate that drafts; 0 takes the first
    draft_tokens  tokens drafted per verification
    width         branches kept at each depth of the draft; 1 is a chain
    confidence    draft no token with which the likeliest branch would have a lower probability; 0 never stops
    source        what drafts at the gate: accelerated, or, to compare with, slow or exit (LITE-style, of the same size)
    Of mode=dynamic only:
    router        arla or linear (trained on top of the adapters), softmax_gap, softmax_max or state_cosine
    threshold     how sure it has to be; above 1 no token leaves, at 0 each does at the first gate
    kv_fill       what layers above the exit hold of a token: rate_map, copy_p, copy_h, deferred_exact or absent
    Of mode=aot only, as for expert_offload: policy, capacity, bandwidth_mb_s, tier and spare.
    """

    mode: Literal["speculative", "dynamic", "aot"] = "speculative"
    modules: str = ""
    gates: str = ""
    rate: float = 0.0
    adapters: AdapterKind = "lora"
    rank: int = 64
    alpha: float = 256.0
    exit: int = 0
    draft_tokens: int = 4
    width: int = 1
    confidence: float = 0.0
    source: Source = "accelerated"
    router: RouterName = "arla"
    threshold: float = 0.9
    kv_fill: KvFillName = "rate_map"
    policy: PolicyName = "lru"
    capacity: int = 0
    bandwidth_mb_s: float = 0.0
    tier: Tier = "memory"
    spare: int = 0
    training = TrainingDefaults(rate=2e-3, schedule="linear", epochs=5.0)
    trained_for = ("rate", "alpha")
    no_batch_reason = "each sequence of a batch would accept, leave or load by itself"
    _how: How = field(init=False, repr=False, compare=False)
    _decoding: Method = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        AdapterSettings(self.adapters, self.rank, self.alpha)  # refuses what cannot be
        if not (self.rate == 0 or self.rate >= 1):
            raise ValueError(f"rate is {self.rate}; it must be 0 or at least 1")
        check_gate(self.exit, read_gates(self.gates))
        held = OffloadSettings(self.policy, self.capacity, self.bandwidth_mb_s, self.tier)
        hows: dict[str, How] = {
            "speculative": Drafting(self.exit, self.draft_tokens, self.width, self.confidence, self.source),
            "dynamic": Leaving(self.router, self.threshold, self.kv_fill),
            "aot": Loading(held, self.spare),
        }
        self._how = hows[self.mode]
        refuse_idle_options(self, self.mode)
        if self.mode == "dynamic":
            self.exactness, self.reason = "lossy", "tokens that leave early are not verified by the full target"

    @property
    def second_stage(self) -> SecondStage:
        needed = isinstance(self._how, Leaving) and self._how.needs_router
        training = TrainingDefaults(2e-3, "linear", epochs=5.0)
        return SecondStage("router", f"mode=dynamic,router={self.router}", needed, training)

    def _parts(self, layers: int) -> list[Interval]:
        return intervals_of(self.gates, layers, self.rate, ahead=self.mode == "aot")

    def unsupported(self, target: TargetInfo) -> str | None:
        problem = super().unsupported(target) or unfit_gates(self._parts(target.layers), target.layers, self.exit)
        return problem or (self._how.unsupported(target) if isinstance(self._how, Loading) else None)

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        if problem := self.unsupported(info):
            raise UserError(f"m2r2 cannot be trained for this target: {problem}")
        parts = self._parts(info.layers)
        settings = AdapterSettings(self.adapters, self.rank, self.alpha)
        streams = TwoStreams(info, parts, settings, lm_head.device, compared=self.mode != "aot")
        if self.second_stage.needed:
            streams.requires_grad_(False)
            streams.router = Router(parts, info.hidden_size, lm_head.device, attends=self.router == "arla")
        return streams

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        return streams_loss(module, lesson)

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        return streams_yardsticks(module, lesson)

    def prepare(self, target: Target) -> None:
        streams = load_modules(self, "m2r2", target, self.modules)
        assert isinstance(streams, TwoStreams)
        self._decoding = decoding_of(self._how, target, streams)

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return self._decoding.serve(target, timer)

    def counters(self) -> Mapping[str, float]:
        return self._decoding.counters() if isinstance(self._decoding, OffloadsExperts) else {}

    def step(self, context: Context) -> Step:
        return self._decoding.step(context)
