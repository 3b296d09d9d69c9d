"""A slow residual stream, which is the target itself, beside an accelerated one that says early what it will say.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
What the paper states and what is ours: docs/m2r2.md. The streams are in decoding.accelerated, their training in
decoding.alignment; leaving by a router is in decoding.dynamic, its training in decoding.routing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor, nn

from benchctl.decoding.accelerated import AdapterKind, AdapterSettings
from benchctl.decoding.alignment import TwoStreams, gate_loss, gate_yardsticks
from benchctl.decoding.arla import Router
from benchctl.decoding.beam import draft_beam, draft_chain
from benchctl.decoding.draft import Draft
from benchctl.decoding.dynamic import GateDepth, KvFillName, Leaving, RouterName
from benchctl.decoding.gate_draft import GateDrafter, Source
from benchctl.decoding.gates import default_gates, intervals, read_gates
from benchctl.decoding.method import Context, Speculative, Step
from benchctl.decoding.modules import load_modules
from benchctl.decoding.routing import router_loss, router_yardsticks
from benchctl.decoding.target import Target, TargetInfo
from benchctl.decoding.trainable import Lesson, SecondStage, Tally, Trainable, TrainingDefaults
from benchctl.errors import UserError


@dataclass
class M2R2(Speculative, Trainable):
    """Say with the accelerated stream of the first layers what the target will say; verified, or left at that.

    mode          speculative (the accelerated stream drafts, the slow one goes on and verifies: exact) or dynamic (each
                  token leaves at the first gate where a router is sure enough: lossy)
    modules       folder of the trained adapters, and of the router where one is trained
    gates         layers where the accelerated stream may be read, joined by +; empty takes 1/8, 1/4, 1/2, 3/4 of all
    rate          slow layers that one of the accelerated stream is to be worth; 0 reaches the last layer at each gate
    adapters      lora, bottleneck or hybrid; rank and alpha are theirs: what they add is scaled by alpha / rank
    Of mode=speculative only:
    exit          the gate that drafts; 0 takes the first
    draft_tokens  tokens drafted per verification
    width         branches kept at each depth of the draft; 1 is a chain
    confidence    stop drafting once the likeliest branch has a lower probability; 0 never stops
    source        what drafts at the gate: accelerated, or, to compare with, slow or exit (LITE-style, of the same size)
    Of mode=dynamic only:
    router        arla or linear (trained on top of the adapters), softmax_gap, softmax_max or state_cosine
    threshold     how sure it has to be; above 1 no token leaves, at 0 each does at the first gate
    kv_fill       what layers above the exit hold of a token: rate_map, copy_p, copy_h, deferred_exact or absent
    """

    mode: Literal["speculative", "dynamic"] = "speculative"
    modules: str = ""
    gates: str = ""
    rate: float = 0.0
    adapters: AdapterKind = "lora"
    rank: int = 32
    alpha: float = 32.0
    exit: int = 0
    draft_tokens: int = 4
    width: int = 1
    confidence: float = 0.0
    source: Source = "accelerated"
    router: RouterName = "arla"
    threshold: float = 0.9
    kv_fill: KvFillName = "rate_map"
    training = TrainingDefaults(rate=5e-4, schedule="linear", epochs=5.0)
    trained_for = ("rate", "alpha")
    _drafter: GateDrafter = field(init=False, repr=False, compare=False)
    _leaving: Leaving = field(init=False, repr=False, compare=False)
    _exits: GateDepth = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("rank", "alpha", "draft_tokens", "width"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if not (self.rate == 0 or self.rate >= 1):
            raise ValueError(f"rate is {self.rate}; it must be 0 or at least 1")
        if not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence is {self.confidence}; it must lie between 0 and 1")
        gates = read_gates(self.gates)
        if self.exit < 0 or (gates and self.exit and self.exit not in gates):
            raise ValueError(f"exit {self.exit} is not among the gates {self.gates or 'of any target'}")
        self._leaving = Leaving(self.router, self.threshold, self.kv_fill)
        if self.mode == "dynamic":
            self.exactness, self.reason = "lossy", "tokens that leave early are not verified by the full target"

    @property
    def second_stage(self) -> SecondStage:
        needed = self.mode == "dynamic" and self._leaving.needs_router
        training = TrainingDefaults(rate=2e-3, schedule="linear", epochs=5.0)
        return SecondStage("router", f"mode=dynamic,router={self.router}", needed, training)

    def unsupported(self, target: Target | TargetInfo) -> str | None:
        gates = read_gates(self.gates) or default_gates(target.layers)
        if not gates or gates[-1] >= target.layers:
            return f"gate {gates[-1] if gates else 1} is not below the target's {target.layers} layers"
        if self.exit and self.exit not in gates:
            return f"exit {self.exit} is not among the gates {'+'.join(map(str, gates))}"
        return None

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        if problem := self.unsupported(info):
            raise UserError(f"m2r2 cannot be trained for this target: {problem}")
        parts = intervals(read_gates(self.gates) or default_gates(info.layers), info.layers, self.rate)
        streams = TwoStreams(info, parts, AdapterSettings(self.adapters, self.rank, self.alpha), lm_head.device)
        if self.second_stage.needed:
            streams.requires_grad_(False)
            streams.router = Router(parts, info.hidden_size, lm_head.device, attends=self.router == "arla")
        return streams

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        assert isinstance(module, TwoStreams)
        return router_loss(module, lesson) if module.router else gate_loss(module, lesson)

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        assert isinstance(module, TwoStreams)
        return router_yardsticks(module, lesson) if module.router else gate_yardsticks(module, lesson)

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> None:
        streams = load_modules(self, "m2r2", target, self.modules)
        assert isinstance(streams, TwoStreams)
        if self.mode == "dynamic":
            self._exits = GateDepth(target, streams, self._leaving)
        else:
            self._drafter = GateDrafter(target, streams, self.exit or streams.parts[0].gate, self.source)

    def step(self, context: Context) -> Step:
        return self._exits.step(context) if self.mode == "dynamic" else super().step(context)

    def draft(self, context: Context, budget: int) -> Draft:
        depth, propose = min(self.draft_tokens, budget), partial(self._drafter.propose, context.stream)
        if self.width == 1:
            return draft_chain(context, depth, propose, self.confidence)
        return draft_beam(context, depth, propose, min(self.width, context.target.vocabulary), self.confidence)
