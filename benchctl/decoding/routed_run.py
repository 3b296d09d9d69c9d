"""Decoding through routed blocks (Mixture-of-Depths, arXiv 2404.02258): who passes, computed for them alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from benchctl.decoding.arla import EPS
from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.layers import Layer, mix, project, run_layers
from benchctl.decoding.model.target import Target
from benchctl.decoding.routed import BlockRouter, RoutedDepth, blend, routed_blocks


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
            run = partial(run_chosen, stream.target.blocks[index], index, list(passing.values()))
            stream.choose(index, list(passing), run)
            ran -= stream.rows - 1 not in passing
        stream.advance()
        return ran


class _Decider:
    """A BlockRouter in few operations: what it costs is much beside a small layer."""

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


def run_chosen(
    layer: Layer,
    index: int,
    weights: Sequence[float],
    states: Tensor,
    rows: Sequence[int],
    cache: Cache,
    layout: Layout,
) -> Tensor:
    """``states`` [open rows, width] after the layer, which only ``rows`` run, each of a weight; see Stream.choose."""
    shares = torch.tensor(weights, dtype=states.dtype, device=states.device).unsqueeze(1)
    if len(rows) == states.shape[0]:
        return blend(states, run_layers([layer], index, states, cache, layout), shares)
    some = torch.tensor(rows, device=states.device)
    x, attention, layout = states[some], layer.attention, layout.only(rows)
    queries, kv = project(attention, layer.attention_norm(x), layout.rotary)
    held = kv.new_zeros(kv.shape[0], states.shape[0], kv.shape[2]).index_copy_(1, some, kv)
    keys, values = cache.write(index, layout.start, held)
    after = attention.out.add_to(x, mix(attention, queries, keys, values, layout))
    after = layer.mlp.add_to(after, layer.mlp_norm(after))
    return states.index_copy(0, some, blend(x, after, shares))
