"""What the methods with two streams share: options of the streams, their trained modules, and how these load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor

from benchctl.decoding.method import Method
from benchctl.decoding.model.target import TargetInfo
from benchctl.decoding.modules.adapters import unsupported_layers
from benchctl.decoding.modules.low_rank import AdapterKind, AdapterSettings
from benchctl.decoding.modules.trainable import SecondStage, Tally, Trainable, TrainingBatch, TrainingDefaults
from benchctl.errors import UserError

from .gates import Interval, read_gates
from .training import TwoStreams, gate_loss, gate_yardsticks


@dataclass
class TwoStreamMethod(Method, Trainable):
    """Base of the methods that run an accelerated stream; they may use each other's trained modules."""

    modules: str = ""
    gates: str = ""
    rate: float = 0.0
    adapters: AdapterKind = "lora"
    rank: int = 64
    alpha: float = 256.0
    training = TrainingDefaults(rate=2e-3, schedule="linear", epochs=5.0)
    trained_for = ("rate", "alpha", "adapters")
    modules_of = "m2r2"
    default_rate: ClassVar[float] = 0.0
    compared: ClassVar[bool] = True  # whether exits of equal size are trained too

    def __post_init__(self) -> None:
        AdapterSettings(self.adapters, self.rank, self.alpha)  # raises for a rank or alpha that is not positive
        if not (self.rate == 0 or self.rate >= 1):
            raise ValueError(f"rate is {self.rate}; it must be 0 or at least 1")
        read_gates(self.gates)

    @property
    def second_stage(self) -> SecondStage:
        """A router may lie in the folder too; only m2r2_dynamic needs one."""
        return SecondStage("router", "router=arla", False, TrainingDefaults())

    def default_gates(self, layers: int) -> tuple[int, ...]:
        """1/8, 1/4 and 1/2 of the depth, each layer once and none the last (ours)."""
        gates = {max(1, round(share * layers)) for share in (1 / 8, 1 / 4, 1 / 2)}
        return tuple(gate for gate in sorted(gates) if gate < layers)

    def intervals(self, layers: int) -> list[Interval]:
        gates = read_gates(self.gates) or self.default_gates(layers)
        rate = self.rate or self.default_rate
        return [Interval(first, gate, layers, rate) for first, gate in pairwise((0, *gates))]

    def unsupported(self, target: TargetInfo) -> str | None:
        if problem := unsupported_layers(target):
            return problem
        intervals, layers = self.intervals(target.layers), target.layers
        gate = intervals[-1].gate if intervals else 1
        return f"gate {gate} is not below the target's {layers} layers" if gate >= layers or not intervals else None

    def build(self, info: TargetInfo, lm_head: Tensor) -> TwoStreams:
        settings = AdapterSettings(self.adapters, self.rank, self.alpha)
        return TwoStreams(info, self.intervals(info.layers), settings, lm_head.device, self.compared)

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        made, mine = trained.get("features", "none"), getattr(self, "features", "none")
        if made != mine:
            way = f"give features={made}" if hasattr(self, "features") else "m2r2 alone can use them"
            message = f"{folder}: trained with features={made}, not {mine}; {way}"
            raise UserError("trained_with_other_option", message)

    def loss(self, module: TwoStreams, batch: TrainingBatch) -> Tensor:
        return gate_loss(module, batch)

    def yardsticks(self, module: TwoStreams, batch: TrainingBatch) -> Mapping[str, Tally]:
        return gate_yardsticks(module, batch)
