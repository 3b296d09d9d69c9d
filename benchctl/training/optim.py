"""Optimisers of a run behind one object, the length of a run, and what follows from its progress: rate and stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchctl.training.train_options import OptimizerName, ScheduleName

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
        self._parts: list[torch.optim.Optimizer] = []
        if others:
            fused = all(parameter.device.type in FUSED_DEVICES for parameter in others)
            self._parts.append(
                torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.95), weight_decay=settings.decay, fused=fused)
            )
        if matrices:
            self._parts.append(torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=settings.matrix_decay))
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


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon takes it: a trained 2-D weight that is neither an embedding, an output head nor a router."""
    owner = name.removesuffix(".weight").rpartition(".")[2]
    left = "embed" in name or "lm_head" in name or owner in ROUTERS
    return parameter.requires_grad and parameter.ndim == 2 and not left


@dataclass(frozen=True)
class Budget:
    """The length of a run: a number of steps, or seconds of training time."""

    steps: int | None = None
    seconds: float | None = None

    def progress(self, step: int, elapsed_s: float) -> float:
        """0 at the beginning, 1 when the budget is spent."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.seconds is not None
        return min(1.0, elapsed_s / self.seconds)


@dataclass(frozen=True)
class Stage:
    """Part of a run, up to the progress `until`: rows of `row_tokens` tokens, `micro_rows` of them a micro-batch."""

    until: float
    row_tokens: int
    micro_rows: int

    def micro_batches(self, batch_tokens: int) -> int:
        """How many micro-batches make up a step of `batch_tokens` tokens; one at least."""
        return max(1, batch_tokens // (self.row_tokens * self.micro_rows))


def learning_rate(progress: float, warmup: float = 0.02, schedule: ScheduleName = "cosine") -> float:
    """Factor on the peak rate: linear warm-up over that share of the run, then half a cosine or a line down to 0.

    learning_rate(0.01, warmup=0.02) is 0.5, learning_rate(0.02, warmup=0.02) is 1, learning_rate(1) is 0.
    """
    if progress < warmup or warmup == 1:
        return progress / warmup
    along = (progress - warmup) / (1 - warmup)
    return 1 - along if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * along))


def stage_index(stages: tuple[Stage, ...], progress: float) -> int:
    """The stage that `progress` falls into; the last one from its beginning to the end of the run."""
    return next((index for index, stage in enumerate(stages) if progress < stage.until), len(stages) - 1)
