"""SmolLM3: some layers have no positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families.family import LayerTypes


class SmolLM3(LayerTypes):
    """Table 1 turns nothing; the configuration lists the layers that read it, and those with a window."""

    types = ("smollm3",)

    def rope(self, config: Any, index: int) -> int:
        return int(not config.no_rope_layers[index])

    def tables(self, model: Any, positions: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        rotary = self.rotary(model, positions, dtype)
        return rotary, torch.ones_like(rotary)
