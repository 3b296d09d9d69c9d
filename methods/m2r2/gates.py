"""Gates of M2R2 (arXiv 2502.02040): the layers where the accelerated stream may be read, and routers that decide it.

A router reads the accelerated states of one interval, divided by their root mean square (ours), and decides whether the
last of them may speak for the target. ARLA is a reconstruction: docs/m2r2.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.modules.exits import read_layers
from benchctl.decoding.modules.trainable import Numbered


@dataclass(frozen=True)
class Interval:
    """Layers ``first`` + 1 .. ``gate`` of a target with ``layers``. Rate 0 reaches the last one's state at the gate.

    Interval(0, 4, 16) has speed 4: after layer 1 the accelerated state is to be what the slow one is after layer 4.
    """

    first: int
    gate: int
    layers: int
    rate: float = 0.0

    @property
    def speed(self) -> float:
        """Layers of the slow stream for each of the accelerated one: R = (N - E_{k-1}) / (E_k - E_{k-1}) by default."""
        return self.rate or (self.layers - self.first) / (self.gate - self.first)

    def reaches(self, layer: int) -> float:
        """tau(l): the depth whose slow state the accelerated one is to equal after ``layer`` layers."""
        return min(self.first + self.speed * (layer - self.first), float(self.layers))

    def meets(self, depth: float) -> float:
        """The inverse of tau, or the gate beyond it: after which layer the accelerated state is to equal that slow one.

        Interval(0, 4, 16).meets(6) is 1.5: halfway from layer 1 to layer 2.
        """
        return min(self.first + (depth - self.first) / self.speed, float(self.gate))


def between(states: Sequence[Tensor], depth: float) -> Tensor:
    """The state at a depth; between two of ``states``, ours, the mean of both weighted by nearness."""
    below = int(depth)
    share = depth - below
    return states[below] if share == 0 else states[below] + share * (states[below + 1] - states[below])


def read_gates(text: str) -> tuple[int, ...]:
    """Layer numbers joined by +, ascending; none for an empty text. Raises ValueError for anything else."""
    gates = read_layers("gates", text)
    if gates != sorted(set(gates)):
        raise ValueError(f"gates {text} are out of order; each must lie above the one before")
    return tuple(gates)


def default_gates(layers: int) -> tuple[int, ...]:
    """1/8, 1/4 and 1/2 of the depth, each layer once and none the last (ours)."""
    gates = {max(1, round(share * layers)) for share in (1 / 8, 1 / 4, 1 / 2)}
    return tuple(gate for gate in sorted(gates) if gate < layers)


def intervals_between(gates: Sequence[int], layers: int, rate: float = 0.0) -> list[Interval]:
    return [Interval(first, gate, layers, rate) for first, gate in zip((0, *gates), gates, strict=False)]


LATENT = 64
EPS = torch.finfo(torch.float32).eps  # added to mean squares; what half precision has would drown those of early states

Decider = Callable[[Sequence[Tensor]], float]
"""Accelerated states of one token, [1, width] each, to the chance that the last of them agrees with the last layer."""


class Arla(nn.Module):
    """z = down(trail / rms) + depth; the last z attends to all; score = w [context; last z] + b."""

    def __init__(self, width: int, states: int, device: torch.device) -> None:
        super().__init__()
        self.down = nn.Linear(width, LATENT, bias=False, device=device)
        self.depth = nn.Parameter(torch.zeros(states, LATENT, device=device))
        self.score = nn.Linear(2 * LATENT, 1, device=device)

    def forward(self, trail: Tensor) -> Tensor:
        """Scores [...] of trails [..., states, width]."""
        latent: Tensor = self.down(F.rms_norm(trail, trail.shape[-1:], eps=EPS)) + self.depth
        last = latent[..., -1:, :]
        shares = (last @ latent.mT * LATENT**-0.5).softmax(-1)
        scores: Tensor = self.score(torch.cat((shares @ latent, last), -1))
        return scores[..., 0, 0]

    def decider(self) -> Decider:
        """The same for one token, in few operations."""
        down, depth = self.down.weight.t().contiguous(), self.depth.detach()
        of_context, of_last = self.score.weight[0].view(2, LATENT)
        bias, eps = self.score.bias, _eps(depth)

        def decide(trail: Sequence[Tensor]) -> float:
            states = torch.cat(tuple(trail))
            latent = torch.addcmul(depth, torch.mm(states, down), _factor(states, eps))
            last = latent[-1]
            shares = torch.mv(latent, last).mul_(LATENT**-0.5).softmax(0)
            return _chance(torch.mv(latent, of_context).dot(shares) + last.dot(of_last) + bias)

        return decide


class Last(nn.Module):
    """A linear score of the last state of a trail."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, device=device)

    def forward(self, trail: Tensor) -> Tensor:
        scores: Tensor = self.score(F.rms_norm(trail[..., -1, :], trail.shape[-1:], eps=EPS))
        return scores[..., 0]

    def decider(self) -> Decider:
        weight, bias = self.score.weight[0], self.score.bias
        eps = _eps(weight)

        def decide(trail: Sequence[Tensor]) -> float:
            return _chance(torch.mv(trail[-1], weight).mul_(_factor(trail[-1], eps)[0]) + bias)

        return decide


class Router(Numbered[Arla | Last]):
    """A scorer for each gate, named after it: one that attends to the interval, or one of its last state only."""

    def __init__(self, intervals: Sequence[Interval], width: int, device: torch.device, attends: bool) -> None:
        states = {interval.gate: interval.gate - interval.first + 1 for interval in intervals}
        super().__init__(
            {gate: Arla(width, n, device) if attends else Last(width, device) for gate, n in states.items()}
        )

    def score(self, gate: int, trail: Sequence[Tensor]) -> Tensor:
        """Scores [...] of accelerated states [..., width]: where one is above 0, agreement is likelier than not."""
        scores: Tensor = self.of(gate)(torch.stack(list(trail), -2))
        return scores


def _eps(like: Tensor) -> Tensor:
    """EPS where ``like`` is, in float32 at least: squares of half precision overflow."""
    return torch.tensor([EPS], dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)


def _factor(states: Tensor, eps: Tensor) -> Tensor:
    """[states, 1] one divided by the root mean square of each of ``states`` [states, width]."""
    length = torch.linalg.vector_norm(states, dim=1, keepdim=True, dtype=eps.dtype)
    return torch.addcmul(eps, length, length, value=1 / states.shape[1]).rsqrt_().to(states.dtype)


def _chance(score: Tensor) -> float:
    """Of a tensor of one element; a sigmoid that cannot overflow."""
    return 0.5 + 0.5 * math.tanh(0.5 * float(score))
