"""Pseudo-rows: where they begin, and how they run the target's layers behind its rows, in decoding and in training.

Pseudo-row j = 1, 2, .. behind a row v stands j positions after it, begins with a state that is made of v's, and sees
what v sees, v and the pseudo-rows 1 .. j of v. Its logits are for the token j + 1 after v.

prompt     begins before layer 1, with a trained vector e_j (Chen et al. 2405.18628, section 3.1)
transfer   begins after layer t, with W_j h for v's state h after t layers (Wu et al. 2404.12022)
streaming  begins after layer t, with W_j h + e_j; has adapters in the layers above (Bhendawade et al. 2402.11131)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from benchctl.decoding.drafting.grow import Frontier
from benchctl.decoding.kv.cache import Cache, Layout
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.layers import Layer, Mlp, mix, project
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.adapters import LayerAdapter
from benchctl.decoding.modules.low_rank import AdapterSettings, Delta
from benchctl.decoding.modules.trainable import Numbered

Kind = Literal["prompt", "transfer", "streaming"]


class PseudoRows(nn.Module):
    """The weights of ``rows`` pseudo-rows that begin after ``layer`` layers."""

    def __init__(self, kind: Kind, info: TargetInfo, rows: int, layer: int, rank: int, lm_head: Tensor) -> None:
        super().__init__()
        width, device = info.hidden_size, lm_head.device
        self.rows, self.layer = rows, layer
        # Vectors of prompt begin as loud as embeddings are where the LM head is tied to them.
        loud = lm_head.float().std() if kind == "prompt" else 0.0
        vectors = loud * torch.randn(rows, width, device=device)
        self.vectors = None if kind == "transfer" else nn.Parameter(vectors)
        self.products: nn.Linear | None = None
        if kind != "prompt":
            self.products = nn.Linear(width, rows * width, bias=False, device=device)
            self.products.weight.data = torch.eye(width, device=device).repeat(rows, 1)
        settings = AdapterSettings("lora", rank, float(rank))
        adapted = range(layer + 1, info.layers + 1) if kind == "streaming" else ()
        self.adapters = Numbered({number: LayerAdapter(info, settings, device) for number in adapted})

    def begin(self, states: Tensor) -> Tensor:
        """[.., rows, width] of the pseudo-rows behind rows with ``states`` [.., width] after ``layer`` layers."""
        if self.products is None:
            assert self.vectors is not None, "prompt"
            return self.vectors.expand(*states.shape[:-1], -1, -1)
        begun: Tensor = self.products(states).unflatten(-1, (self.rows, -1))
        return begun if self.vectors is None else begun + self.vectors


class AdaptedLayer:
    """A layer of the target whose last rows, the pseudo-rows, have an adapter; the others run the target's weights."""

    def __init__(self, layer: Layer, adapter: LayerAdapter) -> None:
        self._layer, form = layer, layer.attention.qkv.form
        self._qkv, self._out = Delta(adapter.qkv, form), Delta(adapter.out, form)
        self._gate_up = None if adapter.gate_up is None else Delta(adapter.gate_up, form)
        self._down = None if adapter.down is None else Delta(adapter.down, form)

    def run(self, states: Tensor, first: int, cache: Cache, index: int, layout: Layout) -> Tensor:
        """``states`` [rows, width] after this layer; those from row ``first`` on are pseudo-rows."""
        layer, normed = self._layer, self._layer.attention_norm(states)

        def adapt(flat: Tensor) -> None:
            self._qkv.add_to(flat[first:], normed[first:])

        queries, kv = project(layer.attention, normed, layout.rotary, adapt)
        mixed = mix(layer.attention, queries, *cache.write(index, layout.start, kv), layout)
        states = layer.attention.out.add_to(states, mixed)
        self._out.add_to(states[first:], mixed[first:])
        mlp, normed = layer.mlp, layer.mlp_norm(states)
        if not isinstance(mlp, Mlp) or self._gate_up is None or self._down is None:
            return mlp.add_to(states, normed)
        product = mlp.gate_up(normed)
        self._gate_up.add_to(product[first:], normed[first:])
        gate, up = product.chunk(2, 1)
        inner = mlp.act(gate).mul_(up)
        states = mlp.down.add_to(states, inner)
        self._down.add_to(states[first:], inner[first:])
        return states


class Riders:
    """Pseudo-rows at work on one text after another."""

    def __init__(self, module: PseudoRows, target: Target) -> None:
        self._module, adapters = module, module.adapters
        self._adapted = [AdaptedLayer(target.blocks[number - 1], adapters.of(number)) for number in adapters.numbers]
        self._spans: dict[int, slice] = {}

    def run(self, stream: Stream, carriers: Mapping[int, int]) -> None:
        """Run all open rows, with so many pseudo-rows behind those open rows that ``carriers`` names."""
        layer, layers, first = self._module.layer, stream.target.layers, stream.rows
        stream.advance(layer)
        parents, self._spans = list[int](), {}
        counts = {row: count for row, count in carriers.items() if count > 0}
        for row, count in counts.items():
            start = first + len(parents)
            self._spans[row] = slice(len(parents), len(parents) + count)
            parents += [row, *range(start, start + count - 1)]
        if counts:
            begun = self._module.begin(stream.states[list(counts)])
            chosen = [states[:count] for states, count in zip(begun, counts.values(), strict=True)]
            stream.push([0] * len(parents), parents, torch.cat(chosen))
            stream.pass_by(0, layer)
        if self._adapted:
            stream.run_rows(layer, layers, partial(self._run, layer, first))
        else:
            stream.advance()
        self._states = stream.states[first:]

    def _run(self, layer: int, first: int, states: Tensor, cache: Cache, layout: Layout) -> Tensor:
        for index, adapted in enumerate(self._adapted, layer):
            states = adapted.run(states, first, cache, index, layout)
        return states

    def behind(self, row: int) -> Tensor:
        """[rows, width] last states of the pseudo-rows behind an open row, in the latest pass; none for others."""
        return self._states[self._spans.get(row, slice(0))]


def by_depth(scores: Tensor, frontier: Frontier) -> Tensor:
    """The row of ``scores`` [depths, k] for this depth, for each node: pseudo-rows see no drafted token before them."""
    return scores[frontier.depth].expand(max(1, len(frontier.tokens)), -1)
