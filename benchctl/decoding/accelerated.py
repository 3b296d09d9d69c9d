"""The accelerated residual stream of M2R2: adapters over the target's own layers, and the pass of both streams.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
An accelerated state starts from the slow one at a gate, passes the same layers by the same weights plus small adapters,
and attends to the slow stream's keys and values. It has none of its own: nothing ever attends to it. Ours, as the
paper's equations were not at hand: where the adapters sit, and what a mixture of experts gets instead of its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.model.layers import Layer, Mlp, mix, project
from benchctl.decoding.model.target import TargetInfo

AdapterKind = Literal["lora", "bottleneck", "hybrid"]
Tell = Callable[[Tensor], None]


class LowRank(nn.Module):
    """x [..., inputs] -> scale * up(down(x)), with SiLU in between where it ``bends``; up starts as zero."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, device: torch.device, bends: bool) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False, device=device)
        self.up = nn.Linear(rank, outputs, bias=False, device=device)
        self.scale, self.bends = scale, bends
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x)
        grown: Tensor = self.up(F.silu(inner) if self.bends else inner)
        return grown * self.scale


@dataclass(frozen=True)
class AdapterSettings:
    """Their kind, their rank, and alpha: what they add is multiplied by alpha / rank."""

    kind: AdapterKind
    rank: int
    alpha: float

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")

    def low_rank(self, inputs: int, outputs: int, device: torch.device, bends: bool = False) -> LowRank:
        return LowRank(inputs, outputs, self.rank, self.alpha / self.rank, device, bends)


class Adapter(nn.Module):
    """What the accelerated stream has of its own in one layer; with every ``up`` zero it changes nothing.

    lora        W + (alpha / r) B A for the queries, the attention's output, gate and up (one product), and down
    bottleneck  queries and an output of rank r instead of the target's, and an MLP of its own with r inner units
    hybrid      lora in the attention, an MLP of its own
    The experts of a mixture are never called for an accelerated state, so there lora is hybrid.

    Queries are those of decoding.layers, heads interleaved.
    """

    def __init__(self, info: TargetInfo, settings: AdapterSettings, device: torch.device) -> None:
        super().__init__()
        width, queries, inner = info.hidden_size, info.query_size, info.mlp_size
        self.own_attention = settings.kind == "bottleneck"
        self.query = settings.low_rank(width, queries, device)
        self.out = settings.low_rank(queries, width, device)
        self.gate_up: LowRank | None = None
        if settings.kind == "lora" and inner:
            self.gate_up = settings.low_rank(width, 2 * inner, device)
            self.mlp = settings.low_rank(inner, width, device)
        else:
            self.mlp = settings.low_rank(width, width, device, bends=True)


class Delta:
    """A trained LowRank as two products that add to, or stand instead of, what is there."""

    def __init__(self, trained: LowRank, replaces: bool = False) -> None:
        self._down = trained.down.weight.t().contiguous()
        self._up = (trained.up.weight * trained.scale).t().contiguous()
        self._bends, self._keeps = trained.bends, 0 if replaces else 1

    def add_to(self, there: Tensor, x: Tensor) -> Tensor:
        """``there`` [rows, outputs], changed in place, for x [rows, inputs]."""
        return there.addmm_(self._inner(x), self._up, beta=self._keeps)

    def of(self, x: Tensor) -> Tensor:
        """What it would add, [rows, outputs]."""
        return torch.mm(self._inner(x), self._up)

    def _inner(self, x: Tensor) -> Tensor:
        inner = torch.mm(x, self._down)
        return F.silu(inner) if self._bends else inner


class AcceleratedLayer:
    """One layer of the target with its adapter: rows and companions in the same products, adapted for the latter.

    ``tell`` is given the companions behind a layer of experts, before any expert computes the rows.
    """

    def __init__(self, layer: Layer, adapter: Adapter, tell: Tell | None = None) -> None:
        self._layer, self._tell = layer, tell
        self._own = adapter.own_attention
        self._query = Delta(adapter.query, replaces=self._own)
        self._out, self._mlp = Delta(adapter.out), Delta(adapter.mlp)
        self._gate_up = None if adapter.gate_up is None else Delta(adapter.gate_up)
        self._query_size = layer.attention.heads * layer.attention.head_dim

    def run(self, states: Tensor, rows: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """``states`` [rows + companions, width] after this layer; only the rows' keys and values enter the cache."""
        attention, mixed = self._layer.attention, self._mixed(states, rows, cache, index, layout)
        if self._own:
            states = torch.cat((attention.out.add_to(states[:rows], mixed[:rows]), states[rows:]))
        else:
            states = attention.out.add_to(states, mixed)
        self._out.add_to(states[rows:], mixed[rows:])
        return self._through_mlp(states, rows)

    def lead(self, states: Tensor, rows: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """The companions alone [companions, width]: the rows leave them keys and values, and wait before this layer."""
        mixed, companions = self._mixed(states, rows, cache, index, layout)[rows:], states[rows:]
        if not self._own:
            companions = self._layer.attention.out.add_to(companions, mixed)
        return self._through_mlp(companions + self._out.of(mixed), 0)

    def _mixed(self, states: Tensor, rows: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """[rows + companions, queries] what each takes from the values it sees."""
        normed = self._layer.attention_norm(states)
        adapt = partial(self._adapt, normed[rows:])
        queries, kv = project(self._layer.attention, normed, layout.rotary, adapt)
        keys, values = cache.write(index, layout.start, kv[:, :rows])
        return mix(self._layer.attention, queries, keys, values, layout)

    def _adapt(self, normed: Tensor, flat: Tensor) -> None:
        self._query.add_to(flat[-normed.shape[0] :, : self._query_size], normed)

    def _through_mlp(self, states: Tensor, rows: int) -> Tensor:
        mlp, normed = self._layer.mlp, self._layer.mlp_norm(states)
        if self._gate_up is None or not isinstance(mlp, Mlp):
            ahead = self._mlp.add_to(states[rows:], normed[rows:])
            if self._tell is not None:
                self._tell(ahead)
            if rows == 0:
                return ahead
            return torch.cat((mlp.add_to(states[:rows], normed[:rows]), ahead))
        product = mlp.gate_up(normed)
        self._gate_up.add_to(product[rows:], normed[rows:])
        gate, up = product.chunk(2, 1)
        inner = mlp.act(gate).mul_(up)
        states = mlp.down.add_to(states, inner)
        self._mlp.add_to(states[rows:], inner[rows:])
        return states


def run_accelerated(
    layers: Sequence[AcceleratedLayer],
    first: int,
    states: Tensor,
    companions: int,
    cache: Cache,
    layout: Layout,
    waits: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Both streams through ``layers``, which are the model's from ``first`` on.

    Returns the slow ``states`` [rows, width] after them, with ``waits`` before the last of them, and the accelerated
    states [companions, width] of the last rows: those they start from, which are the slow ones, then those after each
    layer.
    """
    rows, last = states.shape[0], first + len(layers) - 1
    both = torch.cat((states, states[rows - companions :]))
    trail = [both[rows:]]
    for index, layer in enumerate(layers, first):
        if waits and index == last:
            trail.append(layer.lead(both, rows, cache, index, layout))
        else:
            both = layer.run(both, rows, cache, index, layout)
            trail.append(both[rows:])
    return both[:rows], trail
