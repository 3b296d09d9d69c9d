"""A slow residual stream, which is the target itself, beside an accelerated one that says early what it will say.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
What the paper states and what is ours: docs/m2r2.md. The streams are in decoding.accelerated, their training in
decoding.alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor, nn

from benchctl.decoding.accelerated import AcceleratedLayer, AdapterKind, AdapterSettings, run_accelerated
from benchctl.decoding.alignment import TwoStreams, gate_loss, gate_yardsticks
from benchctl.decoding.beam import draft_beam, draft_chain
from benchctl.decoding.draft import Draft
from benchctl.decoding.gates import Interval, default_gates, intervals, read_gates
from benchctl.decoding.method import Context, Speculative
from benchctl.decoding.modules import load_modules
from benchctl.decoding.target import Target, TargetInfo
from benchctl.decoding.trainable import Lesson, Tally, Trainable, TrainingDefaults
from benchctl.errors import UserError


@dataclass
class M2R2(Speculative, Trainable):
    """Draft with the accelerated stream of the first layers; the slow stream goes on from their stored states.

    modules       folder of the trained adapters
    gates         layers where the accelerated stream may be read, joined by +; empty takes 1/8, 1/4, 1/2, 3/4 of all
    rate          slow layers that one of the accelerated stream is to be worth; 0 reaches the last layer at each gate
    adapters      lora, bottleneck or hybrid; rank and alpha are theirs: what they add is scaled by alpha / rank
    exit          the gate that drafts; 0 takes the first
    draft_tokens  tokens drafted per verification
    width         branches kept at each depth of the draft; 1 is a chain
    confidence    stop drafting once the likeliest branch has a lower probability; 0 never stops
    source        what drafts at the gate: accelerated, or, to compare with, slow or exit (LITE-style, of the same size)
    """

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
    source: Literal["accelerated", "slow", "exit"] = "accelerated"
    training = TrainingDefaults(rate=5e-4, schedule="linear", epochs=5.0)
    _streams: TwoStreams = field(init=False, repr=False, compare=False)
    _part: Interval = field(init=False, repr=False, compare=False)
    _layers: Sequence[AcceleratedLayer] = field(default=(), init=False, repr=False, compare=False)

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
        return TwoStreams(info, parts, AdapterSettings(self.adapters, self.rank, self.alpha), lm_head.device)

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        assert isinstance(module, TwoStreams)
        return gate_loss(module, lesson)

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        assert isinstance(module, TwoStreams)
        return gate_yardsticks(module, lesson)

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> None:
        streams = load_modules(self, "m2r2", target, self.modules)
        assert isinstance(streams, TwoStreams)
        self._streams = streams
        self._part = next(part for part in streams.parts if part.gate == (self.exit or streams.parts[0].gate))
        passed = range(self._part.first, self._part.gate)
        self._layers = [AcceleratedLayer(target.blocks[index], streams.adapter(index + 1)) for index in passed]

    def draft(self, context: Context, budget: int) -> Draft:
        depth, propose = min(self.draft_tokens, budget), partial(self._propose, context)
        if self.width == 1:
            return draft_chain(context, depth, propose, self.confidence)
        return draft_beam(context, depth, propose, min(self.width, context.target.vocabulary), self.confidence)

    def _propose(self, context: Context, rows: int) -> Tensor:
        stream, target, part = context.stream, context.target, self._part
        if self.source == "accelerated":
            run = partial(run_accelerated, self._layers, part.first)
            return target.head(stream.accompany(part.first, part.gate, rows, run)[-1])
        stream.advance(part.gate)
        states = stream.states[-rows:]
        if self.source == "slow":
            return target.head(states)
        found = self._streams.exit(part.gate)
        return target.lm_head(target.final_norm(found(states, target.final_norm(states))) * found.gain)
