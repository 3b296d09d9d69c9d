"""Low-rank additions to what a model computes (LoRA, arXiv 2106.09685), for training and for decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    """A trained LowRank for decoding: two products that are added to a result, or replace it."""

    def __init__(self, trained: LowRank, replaces: bool = False) -> None:
        # Transposed once here: [inputs, rank] and [rank, outputs] are what addmm reads without a copy.
        self._down = trained.down.weight.t().contiguous()
        self._up = (trained.up.weight * trained.scale).t().contiguous()
        self._bends, self._beta = trained.bends, 0 if replaces else 1

    def add_to(self, result: Tensor, x: Tensor) -> Tensor:
        """``result`` [rows, outputs], changed in place, for x [rows, inputs]."""
        return result.addmm_(self._inner(x), self._up, beta=self._beta)

    def of(self, x: Tensor) -> Tensor:
        """What it would add, [rows, outputs]."""
        return torch.mm(self._inner(x), self._up)

    def _inner(self, x: Tensor) -> Tensor:
        inner = torch.mm(x, self._down)
        return F.silu(inner) if self._bends else inner
