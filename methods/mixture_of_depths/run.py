"""Decoding through routed blocks (Mixture-of-Depths, arXiv 2404.02258): who passes, computed for them alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.layers import Layer, mix, project, run_layers
from benchctl.decoding.model.target import Target

from .routers import EPS, BlockRouter, RoutedDepth, blend, routed_blocks


class RoutedRun:
    """Routed decoding on merged layers; ``threshold`` is the chance above which the predictor lets a token pass."""

    def __init__(self, module: RoutedDepth, target: Target, threshold: float) -> None:
        self.view = module.adapters.merge(target)
        self._deciders = {index: _Decider(module.router(index), threshold) for index in routed_blocks(target.layers)}

    def advance(self, stream: Stream) -> int:
        """Take the open rows through all layers, routed where they are; how many of these the last row ran."""
        ran = stream.target.layers
        for index, decider in self._deciders.items():
            stream.advance(index)
            passing = decider(stream.states)
            run_some(stream, index, passing)
            ran -= stream.rows - 1 not in passing
        stream.advance()
        return ran


class _Decider:
    """A BlockRouter in few operations: its cost matters next to a small layer."""

    def __init__(self, router: BlockRouter, threshold: float) -> None:
        products, biases = router.products()
        self._products = products.t().contiguous()
        self._of_score, self._of_weight = biases.tolist()
        self._bound = bound_of(threshold)

    def __call__(self, states: Tensor) -> dict[int, float]:
        """The rows of ``states`` [rows, width] that pass, ascending, and the weight of each."""
        wide = states.to(self._products.dtype)
        length = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        said = torch.cat((torch.mm(wide, self._products), length), 1).tolist()
        passing: dict[int, float] = {}
        for row, (score, weight, norm) in enumerate(said):
            factor = (norm * norm / states.shape[1] + EPS) ** -0.5
            if score * factor + self._of_score > self._bound:
                passing[row] = weight * factor + self._of_weight
        return passing


def bound_of(threshold: float) -> float:
    """The score whose sigmoid is ``threshold``."""
    if threshold <= 0:
        return -math.inf
    return math.inf if threshold >= 1 else math.log(threshold / (1 - threshold))


def run_some(stream: Stream, index: int, passing: Mapping[int, float]) -> None:
    """Take the open rows through block ``index``, which only rows in ``passing`` run, each with a weight; the others
    pass it by: no row sees them there. Raises ValueError where not all open rows wait for the block."""
    if not passing:
        stream.pass_by(index, index + 1)
        return
    stream.run_rows(index, index + 1, partial(_run_chosen, stream.target.blocks[index], index, passing), stream.rows)


class ChosenLayout(Layout):
    """The layout of some of the rows of a pass, ascending; the other rows of the pass are hidden from them."""

    def __init__(self, layout: Layout, rows: Sequence[int]) -> None:
        self.start, self._all, self._chosen = layout.start, layout, torch.tensor(rows)
        chosen = set(rows)
        hidden = [layout.start + row for row in range(layout.rows) if row not in chosen]
        self.hidden, self._hidden = hidden, torch.tensor(hidden)
        self.rotary = layout.rotary[self._chosen.to(layout.rotary.device)]

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor | None:
        """[copies * chosen rows, slots]; see Layout."""
        bias = self._all.bias(window, dtype)
        assert bias is not None, "a pass of several rows has a bias"
        device = bias.device
        chosen = bias[self._chosen.to(device)].index_fill_(1, self._hidden.to(device), -torch.inf)
        return chosen if copies == 1 else chosen.repeat(copies, 1)


def _run_chosen(
    layer: Layer, index: int, passing: Mapping[int, float], states: Tensor, cache: Cache, layout: Layout
) -> Tensor:
    """``states`` [open rows, width] after the layer; see Stream.run_rows."""
    weights = torch.tensor(list(passing.values()), dtype=states.dtype, device=states.device).unsqueeze(1)
    if len(passing) == states.shape[0]:
        return blend(states, run_layers([layer], index, states, cache, layout), weights)
    rows = torch.tensor(list(passing), device=states.device)
    x, attention, chosen = states[rows], layer.attention, ChosenLayout(layout, list(passing))
    queries, kv = project(attention, layer.attention_norm(x), chosen.rotary)
    # Slots of the other rows get zeros: they are hidden, but a weight of 0 times what memory holds need not be 0.
    held = kv.new_zeros(kv.shape[0], states.shape[0], kv.shape[2]).index_copy_(1, rows, kv)
    keys, values = cache.write(index, layout.start, held)
    cache.leave_out(index, chosen.hidden)
    after = attention.out.add_to(x, mix(attention, queries, keys, values, chosen))
    after = layer.mlp.add_to(after, layer.mlp_norm(after))
    return states.index_copy(0, rows, blend(x, after, weights))
