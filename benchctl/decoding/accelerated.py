"""The accelerated residual stream of M2R2: adapters over the target's own layers, and the pass of both streams.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
An accelerated state starts from the slow one at a gate, passes the same layers by the same weights plus small adapters,
and attends to the slow stream's keys and values. It has none of its own: nothing ever attends to it. Ours, as the
paper's equations were not at hand: where the adapters sit, and what a mixture of experts gets instead of its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.cache import Cache
from benchctl.decoding.kernels import Linear
from benchctl.decoding.layers import Layer, Mlp, finish, mix
from benchctl.decoding.layout import Layout
from benchctl.decoding.target import TargetInfo

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

    def change(self) -> Tensor:
        """[outputs, inputs] scale * up down, in float32 at least: what merging adds to a weight."""
        kind = torch.promote_types(self.up.weight.dtype, torch.float32)
        merged: Tensor = self.scale * (self.up.weight.to(kind) @ self.down.weight.to(kind))
        return merged


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


class Adapted:
    """A product of the target for rows and companions, with an adapter's added for the companions.

    The adapter is two small products more, so the weights are read once for both streams. On a CPU, whose products of
    few rows cost as much as these rows one by one, weights with the adapter merged into them save the small ones.
    """

    def __init__(self, linear: Linear, trained: LowRank) -> None:
        self._linear, self._delta, self._outputs = linear, Delta(trained), trained.up.out_features
        self._both: Tensor | None = None
        if linear.is_copied:
            plain, added = linear.weight.t(), trained.change().t()
            self._both = torch.stack((plain, plain + F.pad(added, (0, plain.shape[1] - self._outputs))))

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        """[rows + companions, outputs] for x [rows + companions, inputs]; the adapter's outputs are the first ones."""
        if (merged := self._merged(x, rows)) is None:
            product = self._linear(x)
            self._delta.add_to(product[rows:, : self._outputs], x[rows:])
            return product
        product = torch.bmm(x.unsqueeze(1), merged).squeeze(1)
        return product if self._linear.bias is None else product.add_(self._linear.bias)

    def add_to(self, states: Tensor, x: Tensor, rows: int) -> Tensor:
        """``states`` [rows + companions, outputs] plus the product."""
        if (merged := self._merged(x, rows)) is None:
            states = self._linear.add_to(states, x)
            self._delta.add_to(states[rows:], x[rows:])
            return states
        grown = torch.baddbmm(states.unsqueeze(1), x.unsqueeze(1), merged).squeeze(1)
        return grown if self._linear.bias is None else grown.add_(self._linear.bias)

    def _merged(self, x: Tensor, rows: int) -> Tensor | None:
        """[rows + companions, inputs, outputs] where merged weights are the faster way: for a companion and at most
        one row."""
        if self._both is None or x.shape[0] != rows + 1 or rows > 1:
            return None
        return self._both[1 - rows :]


class AcceleratedLayer:
    """One layer of the target with its adapter: rows and companions in the same products, adapted for the latter.

    ``tell`` is given the companions behind a layer of experts, before any expert computes the rows.
    """

    def __init__(self, layer: Layer, adapter: Adapter, tell: Tell | None = None) -> None:
        self._layer, self._tell = layer, tell
        self._own = adapter.own_attention
        attention, mlp = layer.attention, layer.mlp
        self._query_size = attention.heads * attention.head_dim
        if self._own:
            self._query, self._own_out = Delta(adapter.query, replaces=True), Delta(adapter.out)
        else:
            self._qkv, self._out = Adapted(attention.qkv, adapter.query), Adapted(attention.out, adapter.out)
        self._gate_up: Adapted | None = None
        if adapter.gate_up is not None and isinstance(mlp, Mlp):
            self._gate_up, self._down = Adapted(mlp.gate_up, adapter.gate_up), Adapted(mlp.down, adapter.mlp)
        else:
            self._own_mlp = Delta(adapter.mlp)

    def run(self, states: Tensor, rows: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """``states`` [rows + companions, width] after this layer; only the rows' keys and values enter the cache."""
        mixed = self._mixed(states, rows, cache, index, layout)
        if not self._own:
            return self._through_mlp(self._out.add_to(states, mixed, rows), rows)
        slow = self._layer.attention.out.add_to(states[:rows], mixed[:rows])
        return self._through_mlp(torch.cat((slow, states[rows:] + self._own_out.of(mixed[rows:]))), rows)

    def lead(self, states: Tensor, rows: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """The companions alone [companions, width]: the rows leave them keys and values, and wait before this layer."""
        mixed, companions = self._mixed(states, rows, cache, index, layout)[rows:], states[rows:]
        if not self._own:
            return self._through_mlp(self._out.add_to(companions, mixed, 0), 0)
        return self._through_mlp(companions + self._own_out.of(mixed), 0)

    def _mixed(self, states: Tensor, rows: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """[rows + companions, queries] what each takes from the values it sees."""
        attention, normed = self._layer.attention, self._layer.attention_norm(states)
        if self._own:
            flat = attention.qkv(normed)
            self._query.add_to(flat[rows:, : self._query_size], normed[rows:])
        else:
            flat = self._qkv(normed, rows)
        queries, kv = finish(attention, flat, layout.rotary)
        keys, values = cache.write(index, layout.start, kv[:, :rows])
        return mix(attention, queries, keys, values, layout)

    def _through_mlp(self, states: Tensor, rows: int) -> Tensor:
        mlp, normed = self._layer.mlp, self._layer.mlp_norm(states)
        if self._gate_up is None or not isinstance(mlp, Mlp):
            ahead = self._own_mlp.add_to(states[rows:], normed[rows:])
            if self._tell is not None:
                self._tell(ahead)
            if rows == 0:
                return ahead
            return torch.cat((mlp.add_to(states[:rows], normed[:rows]), ahead))
        gate, up = self._gate_up(normed, rows).chunk(2, 1)
        return self._down.add_to(states, mlp.act(gate).mul_(up), rows)


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
