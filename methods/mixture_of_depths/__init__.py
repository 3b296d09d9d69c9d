"""Let only some tokens pass every other block; the others skip it and are not seen there.

Raposo et al.: Mixture-of-Depths: Dynamically allocating compute in transformer-based language models, 2024, arXiv
2404.02258. Ours: a frozen, trained target is adapted with routers, predictors and low-rank adapters; see routers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.kv.cache import Cache, Layout
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, check_options, one_token
from benchctl.decoding.model.layers import Layer, mix, project, run_layers
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.adapters import unsupported_layers
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults

from .routers import EPS, BlockRouter, RoutedDepth, blend, routed_loss, routed_yardsticks


@dataclass
class MixtureOfDepths(Method, Trainable):
    """Let every other block process only the tokens that a predictor selects.

    modules      folder of the trained routers, predictors and adapters
    capacity     share of a sequence that a routed block processes in training; 0.125 in the paper
    threshold    probability above which a token passes; 0.5 in the paper; at 0 all pass, at 1 none
    rank, alpha  size and scale of the adapters: their output is multiplied by alpha / rank
    """

    modules: str = ""
    capacity: float = 0.125
    threshold: float = 0.02
    rank: int = 32
    alpha: float = 32.0
    exactness = "lossy"
    reason = "tokens skip blocks of the target, and no token is verified"
    no_batch_reason = "each sequence of a batch would skip different blocks"
    training = TrainingDefaults(rate=5e-4, schedule="linear", epochs=5.0)
    trained_for = ("capacity", "alpha")
    draws_tokens = True
    _view: Target = field(init=False, repr=False, compare=False)
    _deciders: dict[int, _Decider] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        AdapterSettings("lora", self.rank, self.alpha)  # refuses what cannot be
        if not 0 < self.capacity <= 1:
            raise ValueError(f"capacity is {self.capacity}; it must be above 0 and at most 1")
        check_options(self, 0, "threshold", most=1)

    def unsupported(self, target: TargetInfo) -> str | None:
        too_few = "it has one layer, and the first is never routed"
        return unsupported_layers(target) or (too_few if target.layers < 2 else None)

    def build(self, info: TargetInfo, lm_head: Tensor) -> RoutedDepth:
        settings = AdapterSettings("lora", self.rank, self.alpha)
        return RoutedDepth(info, settings, self.capacity, lm_head.device)

    def pace(self, module: RoutedDepth, progress: float) -> None:
        module.pace(progress)

    def loss(self, module: RoutedDepth, target_batch: TrainingBatch) -> Tensor:
        return routed_loss(module, target_batch)

    def yardsticks(self, module: RoutedDepth, target_batch: TrainingBatch) -> Mapping[str, Tally]:
        return routed_yardsticks(module, target_batch, bound_of(self.threshold))

    def prepare(self, target: Target) -> None:
        module: RoutedDepth = load_modules(self, "mixture_of_depths", target, self.modules)
        self._view, routers = module.adapters.merge(target), module.routers
        self._deciders = {number - 1: _Decider(routers.of(number), self.threshold) for number in routers.numbers}

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return nullcontext(self._view)

    def start(self, context: Context) -> int:
        return context.pick(context.target.head(self.prefill(context, self._advance)))

    def step(self, context: Context) -> tuple[int]:
        return one_token(context, self._advance)

    def _advance(self, stream: Stream) -> None:
        """Take the open rows through all layers, routed where they are."""
        for index, decider in self._deciders.items():
            stream.advance(index)
            run_some(stream, index, decider(stream.states))
        stream.advance()


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
    if threshold <= 0:
        return -math.inf
    return math.inf if threshold >= 1 else math.log(threshold / (1 - threshold))


def run_some(stream: Stream, index: int, passing: Mapping[int, float]) -> None:
    """Take the open rows through block ``index``, which only rows in ``passing`` run, each with a weight.

    The others are seen by no row there. Raises ValueError where not all open rows wait for the block.
    """
    if not passing:
        stream.pass_by(index, index + 1)
        return
    stream.run_rows(index, index + 1, partial(_run_chosen, stream.target.blocks[index], index, passing), stream.rows)


class ChosenLayout(Layout):
    """The layout of some of the rows of a pass, ascending; the others are hidden from them."""

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
    after = layer.finish(x, mix(attention, queries, keys, values, chosen))
    return states.index_copy(0, rows, blend(x, after, weights))
