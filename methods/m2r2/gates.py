"""Gates: the layers where the accelerated stream of M2R2 (arXiv 2502.02040) may be read, and the intervals between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

_SHARES = (1 / 8, 1 / 4, 1 / 2)


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
        """The inverse of tau: after which layer, perhaps between two, the accelerated state is to equal that slow one.

        The gate for depths that it does not reach. Interval(0, 4, 16).meets(6) is 1.5: halfway from layer 1 to layer 2.
        """
        return min(self.first + (depth - self.first) / self.speed, float(self.gate))


def between(states: Sequence[Tensor], depth: float) -> Tensor:
    """The state at a depth; between two of ``states``, ours, the mean of both weighted by nearness."""
    below = int(depth)
    share = depth - below
    return states[below] if share == 0 else states[below] + share * (states[below + 1] - states[below])


def read_gates(text: str) -> tuple[int, ...]:
    """Layer numbers joined by +, ascending; none for an empty text. Raises ValueError for anything else."""
    if not text:
        return ()
    if not all(layer.isdecimal() and int(layer) > 0 for layer in text.split("+")):
        raise ValueError(f"gates is {text!r}; join layer numbers by +, such as 2+4+8")
    gates = tuple(int(layer) for layer in text.split("+"))
    if any(after <= before for before, after in zip(gates, gates[1:], strict=False)):
        raise ValueError(f"gates {text} are out of order; each must lie above the one before")
    return gates


def default_gates(layers: int) -> tuple[int, ...]:
    """1/8, 1/4 and 1/2 of the depth, each layer once and none the last (ours)."""
    return tuple(gate for gate in sorted({max(1, round(share * layers)) for share in _SHARES}) if gate < layers)


def unfit_gates(intervals: Sequence[Interval], layers: int) -> str | None:
    """Why a target of this depth has no such intervals; None when it has."""
    gate = intervals[-1].gate if intervals else 1
    return f"gate {gate} is not below the target's {layers} layers" if gate >= layers or not intervals else None


def intervals_between(gates: Sequence[int], layers: int, rate: float = 0.0) -> list[Interval]:
    """The intervals that end at these gates, ascending."""
    return [Interval(first, gate, layers, rate) for first, gate in zip((0, *gates), gates, strict=False)]
