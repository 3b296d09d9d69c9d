"""The accelerated residual stream of M2R2: its adapters over the target's layers, and the pass that runs both streams.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
An accelerated state starts from the slow one at a gate, passes the same layers by the same weights plus small adapters,
and attends to the slow stream's keys and values. No row ever attends to it. Ours: where the adapters sit, and the MLP
in place of experts. In every pass the accelerated rows stand behind the slow ones: [rows + pairs, width].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchctl.decoding.kv.cache import Cache, Layout
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.layers import Layer, Mlp, mix, project
from benchctl.decoding.model.target import TargetInfo
from benchctl.decoding.modules.low_rank import AdapterSettings, Delta, LowRank

OnState = Callable[[Tensor], None]


class Adapter(nn.Module):
    """What the accelerated stream has of its own in one layer; with every ``up`` zero it changes nothing.

    lora        W + (alpha / r) B A for the queries, the attention's output, gate and up (one product), and down
    bottleneck  queries and an output of rank r instead of the target's, and an MLP of its own with r inner units
    hybrid      lora in the attention, an MLP of its own; so is lora where the layer has experts
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


class PairedLayout(Layout):
    """The layout of rows of which the last ``pairs`` run twice: an accelerated row stands and sees as its slow row."""

    def __init__(self, layout: Layout, pairs: int) -> None:
        self.start, self._slow, self._pairs = layout.start, layout, pairs
        self.rotary = _with_pairs(layout.rotary, pairs)
        self._paired_bias: dict[tuple[int | None, int], Tensor | None] = {}

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor | None:
        """[copies * (rows + pairs), slots], or [1, slots] where all rows may see the same; see Layout."""
        key = (window, copies)
        if key not in self._paired_bias:
            bias = self._slow.bias(window, dtype)
            if bias is not None and bias.shape[0] > 1:
                bias = _with_pairs(bias, self._pairs).repeat(copies, 1)
            self._paired_bias[key] = bias
        return self._paired_bias[key]


def _with_pairs(lines: Tensor, pairs: int) -> Tensor:
    return torch.cat((lines, lines[-pairs:]))


class AcceleratedLayer:
    """One layer of the target with its adapter: slow and accelerated rows share the products, adapted for the latter.

    ``on_state`` is called with the accelerated states behind a layer of experts, before any expert computes the rows.
    """

    def __init__(self, layer: Layer, adapter: Adapter, on_state: OnState | None = None) -> None:
        self._layer, self._on_state = layer, on_state
        self._own, form = adapter.own_attention, layer.attention.qkv.form
        self._query = Delta(adapter.query, form, replaces=self._own)
        self._out, self._mlp = Delta(adapter.out, form), Delta(adapter.mlp, form)
        self._gate_up = None if adapter.gate_up is None else Delta(adapter.gate_up, form)
        self._query_size = layer.attention.heads * layer.attention.head_dim

    def run(self, states: Tensor, rows: int, cache: Cache, index: int, layout: PairedLayout) -> Tensor:
        """``states`` [rows + pairs, width] after this layer; only the slow rows' keys and values enter the cache."""
        attention, mixed = self._layer.attention, self._mixed(states, rows, cache, index, layout)
        if self._own:  # a bottleneck has its own output product, so the target's is for the slow rows alone
            states = torch.cat((attention.out.add_to(states[:rows], mixed[:rows]), states[rows:]))
        else:
            states = attention.out.add_to(states, mixed)
        self._out.add_to(states[rows:], mixed[rows:])
        return self._through_mlp(states, rows)

    def lead(self, states: Tensor, rows: int, cache: Cache, index: int, layout: PairedLayout) -> Tensor:
        """The accelerated rows alone, [pairs, width]: the slow rows only leave them keys and values in this layer."""
        mixed, accelerated = self._mixed(states, rows, cache, index, layout)[rows:], states[rows:]
        if not self._own:
            accelerated = self._layer.attention.out.add_to(accelerated, mixed)
        return self._through_mlp(accelerated + self._out.of(mixed), 0)

    def _mixed(self, states: Tensor, rows: int, cache: Cache, index: int, layout: PairedLayout) -> Tensor:
        """[rows + pairs, queries] what each row takes from the values that it sees."""
        normed = self._layer.attention_norm(states)

        def adapt(flat: Tensor) -> None:
            self._query.add_to(flat[rows:, : self._query_size], normed[rows:])

        queries, kv = project(self._layer.attention, normed, layout.rotary, adapt)
        keys, values = cache.write(index, layout.start, kv[:, :rows])  # those of the accelerated rows are dropped
        return mix(self._layer.attention, queries, keys, values, layout)

    def _through_mlp(self, states: Tensor, rows: int) -> Tensor:
        mlp, normed = self._layer.mlp, self._layer.mlp_norm(states)
        if self._gate_up is None or not isinstance(mlp, Mlp):  # the accelerated rows have their own small MLP
            accelerated = self._mlp.add_to(states[rows:], normed[rows:])
            if self._on_state is not None:
                self._on_state(accelerated)
            if rows == 0:
                return accelerated
            return torch.cat((mlp.add_to(states[:rows], normed[:rows]), accelerated))
        product = mlp.gate_up(normed)
        self._gate_up.add_to(product[rows:], normed[rows:])
        gate, up = product.chunk(2, 1)
        inner = mlp.act(gate).mul_(up)
        states = mlp.down.add_to(states, inner)
        self._mlp.add_to(states[rows:], inner[rows:])
        return states


class PairedRun:
    """Takes open rows through an interval of layers, ``first`` on, and the last of them also as accelerated rows.

    With ``defers_last`` the slow rows leave only keys and values in the last layer, and run it later, with other rows.
    """

    def __init__(self, layers: Sequence[AcceleratedLayer], first: int, defers_last: bool = False) -> None:
        self._layers, self._first, self._last = layers, first, first + len(layers) - 1
        self._defers_last = defers_last

    def __call__(self, stream: Stream, pairs: int, ahead: Tensor | None = None) -> list[Tensor]:
        """The accelerated states [pairs, width] of the last ``pairs`` rows: their start, the slow ones at layer
        ``first`` plus ``ahead`` [pairs, width], then those after each layer. Raises ValueError as Stream.run_rows
        does, and for too many pairs."""
        trail: list[Tensor] = []
        run = partial(self._run, pairs, trail, ahead)
        if self._defers_last:
            absent = stream.cache.absent
            if absent[self._last] != absent[self._first]:  # run_rows checks the layers before the last
                raise ValueError(f"rows are absent from some of layers {self._first} to {self._last + 1} only")
            stream.run_rows(self._first, self._last, run, rows=pairs)
        else:
            stream.run_rows(self._first, self._last + 1, run)
        return trail

    def _run(
        self, pairs: int, trail: list[Tensor], ahead: Tensor | None, states: Tensor, cache: Cache, layout: Layout
    ) -> Tensor:
        rows, paired = states.shape[0], PairedLayout(layout, pairs)
        if pairs > rows:
            raise ValueError(f"{pairs} rows cannot be accelerated, as only {rows} run these layers")
        start = states[rows - pairs :]
        both = torch.cat((states, start if ahead is None else start + ahead))
        trail.append(both[rows:])
        for index, layer in enumerate(self._layers, self._first):
            if self._defers_last and index == self._last:
                done = cache.lengths[index]
                if done > layout.start:
                    raise ValueError(f"layer {index} has already run rows that were to wait before it")
                trail.append(layer.lead(both, rows, cache, index, paired))
                cache.lengths[index] = done  # writing keys and values counted the rows as done, but they still wait
            else:
                both = layer.run(both, rows, cache, index, paired)
                trail.append(both[rows:])
        return both[:rows]
