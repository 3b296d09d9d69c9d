"""The optimisers of a run behind one object: Muon for the weight matrices, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from benchctl.errors import UserError

OptimizerName = Literal["muon", "adamw"]


@dataclass(frozen=True)
class OptimizerSettings:
    """`matrix_rate` is Muon's own learning rate; without Muon everything learns at `rate`."""

    name: OptimizerName = "muon"
    rate: float = 4e-3
    matrix_rate: float = 0.02
    matrix_decay: float = 0.05
    decay: float = 0.01
    clip: float = 1.0


class Optimizers:
    """Steps several optimisers as one; `factor` scales every peak learning rate."""

    def __init__(self, module: nn.Module, settings: OptimizerSettings) -> None:
        matrices = [p for name, p in module.named_parameters() if settings.name == "muon" and is_matrix(name, p)]
        taken = {id(parameter) for parameter in matrices}
        others = [p for p in module.parameters() if p.requires_grad and id(p) not in taken]
        self._parameters = matrices + others
        self._clip = settings.clip
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.95), weight_decay=settings.decay, fused=True)
        ]
        if matrices:
            muon = torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=settings.matrix_decay)
            self._parts.append(muon)
        self._peaks = [part.param_groups[0]["lr"] for part in self._parts]

    def step(self, factor: float) -> None:
        """Clips the gradients, applies them at `factor` times the peak rates and clears them."""
        torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        for part, peak in zip(self._parts, self._peaks, strict=True):
            part.param_groups[0]["lr"] = peak * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        return {str(index): part.state_dict() for index, part in enumerate(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the state that `state_dict` gave."""
        for index, part in enumerate(self._parts):
            part.load_state_dict(state[str(index)])


def optimizer_name(text: str) -> OptimizerName:
    """The optimiser of that name. Raises UserError for another one, listing those there are."""
    names: tuple[OptimizerName, ...] = get_args(OptimizerName)
    found = next((name for name in names if name == text), None)
    if found is None:
        raise UserError(f"unknown optimiser '{text}'; there are {' and '.join(names)}")
    return found


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon takes it: a trained 2-D weight that is neither an embedding nor an output head."""
    return parameter.requires_grad and parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
