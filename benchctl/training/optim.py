"""The optimisers of a run behind one object: Muon for the weight matrices if asked for, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from benchctl.errors import UserError

OptimizerName = Literal["muon", "adamw"]
FUSED_DEVICES = ("cpu", "cuda")
ROUTERS = ("gate", "router")  # which expert a row stands for matters; orthogonal rows ask all experts equally strongly


@dataclass(frozen=True)
class OptimizerSettings:
    """`matrix_rate` is Muon's own learning rate; without Muon everything learns at `rate`."""

    name: OptimizerName = "muon"
    rate: float = 4e-3
    matrix_rate: float = 0.02
    matrix_decay: float = 0.05
    decay: float = 0.01


class Optimizers:
    """Steps several optimisers as one. `parameters` are the trained ones: those of the module with requires_grad."""

    def __init__(self, module: nn.Module, settings: OptimizerSettings) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise ValueError("nothing to train: no parameter of the module requires a gradient")
        matrices = [p for name, p in named if settings.name == "muon" and is_matrix(name, p)]
        taken = {id(parameter) for parameter in matrices}
        others = [p for _, p in named if id(p) not in taken]
        self.parameters: Sequence[nn.Parameter] = matrices + others
        self._parts = [part for part in (_adamw(others, settings), _muon(matrices, settings)) if part is not None]
        self._peaks = [float(part.param_groups[0]["lr"]) for part in self._parts]

    def clip(self, limit: float) -> Tensor:
        """Scales the gradients down to the norm `limit` together; returns the norm they had, a scalar."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit)

    def step(self, factor: float) -> None:
        """Applies the gradients at `factor` times the peak rates and clears them."""
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
    """Whether Muon takes it: a trained 2-D weight that is neither an embedding, an output head nor a router."""
    owner = name.removesuffix(".weight").rpartition(".")[2]
    left = "embed" in name or "lm_head" in name or owner in ROUTERS
    return parameter.requires_grad and parameter.ndim == 2 and not left


def _adamw(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer | None:
    if not parameters:
        return None
    fused = all(parameter.device.type in FUSED_DEVICES for parameter in parameters)
    return torch.optim.AdamW(parameters, lr=settings.rate, betas=(0.9, 0.95), weight_decay=settings.decay, fused=fused)


def _muon(matrices: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer | None:
    if not matrices:
        return None
    if not hasattr(torch.optim, "Muon"):
        raise UserError(f"Muon comes with torch 2.9, this is {torch.__version__}; use --optimizer adamw")
    return torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=settings.matrix_decay)
