"""Low-rank additions to what a model computes (LoRA, arXiv 2106.09685), for training and for decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.model.kernels import Form, Linear

AdapterKind = Literal["lora", "bottleneck", "hybrid"]


class LowRank(nn.Module):
    """x [..., inputs] -> scale * up(down(x)), with SiLU in between where ``bends``; up starts as zero."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, device: torch.device, bends: bool) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False, device=device)
        self.up = nn.Linear(rank, outputs, bias=False, device=device)
        self.scale, self.bends = scale, bends
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x)
        added: Tensor = self.up(F.silu(inner) if self.bends else inner)
        return added * self.scale


@dataclass(frozen=True)
class AdapterSettings:
    """Kind, rank and alpha of adapters: what they add is multiplied by alpha / rank."""

    kind: AdapterKind
    rank: int
    alpha: float

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")

    def low_rank(self, inputs: int, outputs: int, device: torch.device, bends: bool = False) -> LowRank:
        return LowRank(inputs, outputs, self.rank, self.alpha / self.rank, device, bends)


class Delta:
    """A trained LowRank for decoding: two products in a ``form`` as of Linear, added to a result or in its place."""

    def __init__(self, trained: LowRank, form: Form, replaces: bool = False) -> None:
        self._down = Linear(trained.down.weight, None, form)
        self._up = Linear(trained.up.weight * trained.scale, None, form)
        self._bends, self._replaces = trained.bends, replaces

    def add_to(self, result: Tensor, x: Tensor) -> Tensor:
        """``result`` [rows, outputs], changed in place, for x [rows, inputs]."""
        change = self.of(x)
        return result.copy_(change) if self._replaces else result.add_(change)

    def of(self, x: Tensor) -> Tensor:
        """What it would add, [rows, outputs]."""
        inner = self._down(x)
        return self._up(F.silu(inner) if self._bends else inner)
