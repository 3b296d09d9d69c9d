"""Training the accelerated stream: its pass over whole texts, what it is to become, and how well it has.

M2R2 (arXiv 2502.02040): all gates are trained in one pass, since each interval starts from the slow stream, which
stands still. The loss is a reconstruction; an exit of equal size in the manner of LITE (arXiv 2310.18581) is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.model.layers import Layer, Mlp, project
from benchctl.decoding.model.target import TargetInfo
from benchctl.decoding.modules.adapters import TextAttention, adapted_mlp
from benchctl.decoding.modules.exits import ExitModule
from benchctl.decoding.modules.losses import bare, exit_losses
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Numbered, Tally, TrainingBatch

from .gates import Interval, Router, between
from .streams import AcceleratedLayer, Adapter, OnState, PairedRun

COSINE_SHARE = 0.1  # of the distance to the trajectory


class TwoStreams(nn.Module):
    """The trained modules: an adapter per layer of the accelerated stream, and an exit per gate where ``compared``.

    With ``features`` (ours) the accelerated state of a token also starts from the token before: from the last layer's
    state of it, or, for a drafted one, from its accelerated state at the gate, which is trained to be that state.
    """

    def __init__(
        self,
        info: TargetInfo,
        intervals: Sequence[Interval],
        settings: AdapterSettings,
        device: torch.device,
        compared: bool = True,
        features: bool = False,
    ) -> None:
        super().__init__()
        self.intervals = intervals
        self.router: Router | None = None  # m2r2_dynamic trains one, on top of adapters that stand still
        passed = range(1, intervals[-1].gate + 1)
        self.adapters = Numbered({layer: Adapter(info, settings, device) for layer in passed})
        exits = {}
        for interval in intervals if compared else ():
            below = [self.adapters.of(layer) for layer in range(interval.first + 1, interval.gate + 1)]
            parameters = sum(weight.numel() for adapter in below for weight in adapter.parameters())
            # Of the slow stream, with as many parameters as the adapters below it, and as loud.
            width, scale = info.hidden_size, settings.alpha / settings.rank
            rank = max(1, (parameters - width) // (2 * width))
            exits[interval.gate] = ExitModule(width, rank, device, scale=scale)
        self.exits = Numbered(exits)
        width, found = info.hidden_size, {}
        for interval in intervals if features else ():
            found[interval.gate] = nn.Linear(width, width, bias=False, device=device)
            nn.init.zeros_(found[interval.gate].weight)  # at first the stream is as without features
        self.features = Numbered(found)

    def run(
        self, interval: Interval, blocks: Sequence[Layer], on_state: OnState | None = None, defers_last: bool = False
    ) -> PairedRun:
        """What takes both streams through an interval of a target with these layers; ``on_state``: AcceleratedLayer."""
        passed = range(interval.first, interval.gate)
        layers = [AcceleratedLayer(blocks[index], self.adapters.of(index + 1), on_state) for index in passed]
        return PairedRun(layers, interval.first, defers_last)


class Trajectories:
    """The accelerated stream over the texts of a batch, interval by interval."""

    def __init__(self, module: TwoStreams, batch: TrainingBatch) -> None:
        self._module, self._batch = module, batch
        self._attention = TextAttention(batch)

    def along(self, interval: Interval, known: Tensor | None = None) -> list[Tensor]:
        """Accelerated states [rows, n, width] from the interval's start, where they are the slow ones, to its gate.

        With features they also start from the ``known`` state [rows, n, width] of the token before, by default the
        last layer's; a document's first token has none before it.
        """
        state, module, batch = self._batch.states[interval.first].float(), self._module, self._batch
        if module.features:
            before = batch.final.float() if known is None else batch.norm(known)
            ahead = module.features.of(interval.gate)(before.roll(1, 1))
            state = state + ahead.masked_fill((batch.positions == 0)[..., None], 0.0)
        trail = [state]
        for layer in range(interval.first + 1, interval.gate + 1):
            state = self._through(layer, state)
            trail.append(state)
        return trail

    def _through(self, number: int, state: Tensor) -> Tensor:
        layer, adapter = self._batch.layer(number - 1), self._module.adapters.of(number)
        attention, normed = layer.attention, layer.attention_norm(state).flatten(0, 1)

        def adapt(flat: Tensor) -> None:
            wanted, base = adapter.query(normed), flat[:, : attention.heads * attention.head_dim]
            base.copy_(wanted if adapter.own_attention else base + wanted)

        # The accelerated queries take from the slow stream's values.
        queries = project(attention, normed, self._attention.rotary, adapt)[0]
        mixed = self._attention.mix(attention, queries, self._slow(number - 1)[1])
        if not adapter.own_attention:
            state = state + layer.attention.out(mixed)
        state = state + adapter.out(mixed)
        inner = layer.mlp_norm(state)
        if adapter.gate_up is None or not isinstance(layer.mlp, Mlp):
            grown: Tensor = state + adapter.mlp(inner)
            return grown
        return adapted_mlp(state, inner, layer.mlp, adapter.gate_up, adapter.mlp)

    @torch.no_grad()
    def attended(self, index: int) -> Tensor:
        """[rows, n, width] the slow state behind the attention of layer ``index``: what its MLP's norm reads."""
        layer = self._batch.layer(index)
        mixed = self._attention.mix(layer.attention, *self._slow(index))
        attended: Tensor = self._batch.states[index] + layer.attention.out(mixed)
        return attended

    @torch.no_grad()
    def _slow(self, index: int) -> tuple[Tensor, Tensor]:
        """Queries, and keys with values, of the slow stream in layer ``index``; see layers.project."""
        layer = self._batch.layer(index)
        normed = layer.attention_norm(self._batch.states[index]).flatten(0, 1)
        return project(layer.attention, normed, self._attention.rotary)


def gate_loss(module: TwoStreams, batch: TrainingBatch) -> Tensor:
    """Weighted sum over tokens, gates and both kinds of exit of exit_losses.

    The accelerated stream adds COSINE_SHARE * the mean over its layers of 1 - cos(p^l, h^tau(l)). With features it
    passes again, on its own states of the first pass, as it drafts, and both passes count.
    """
    weights, trajectories = batch.ahead(1).weights, Trajectories(module, batch)
    normed, losses = list[Tensor](), torch.zeros_like(weights, dtype=torch.float32)
    for interval in module.intervals:
        for trail in passes(trajectories, module, interval):
            normed.append(batch.norm(trail[-1]))
            distances = [1 - cosine for cosine in trajectory_cosines(batch, interval, trail)]
            losses = losses + COSINE_SHARE * torch.stack(distances).mean(0)
        normed.append(module.exits.of(interval.gate).normed(batch, interval.gate))
    return ((losses + exit_losses(batch, normed).sum(0)) * weights).sum()


def passes(trajectories: Trajectories, module: TwoStreams, interval: Interval) -> Iterator[list[Tensor]]:
    """The states along an interval; with features also those that follow from its own states of the token before."""
    trail = trajectories.along(interval)
    yield trail
    if module.features:
        yield trajectories.along(interval, trail[-1])


def trajectory_cosines(batch: TrainingBatch, interval: Interval, trail: Sequence[Tensor]) -> Iterator[Tensor]:
    """[rows, n] for each layer of the interval: cosine of the accelerated state and the slow one it is to become."""
    for layer, state in enumerate(trail[1:], interval.first + 1):
        yield F.cosine_similarity(state, slow_state(batch.states, interval.reaches(layer)), dim=-1)


def slow_state(states: Sequence[Tensor], depth: float) -> Tensor:
    below = int(depth)
    return between([state.float() for state in states[below : below + 2]], depth - below)


@torch.no_grad()
def gate_yardsticks(module: TwoStreams, batch: TrainingBatch) -> Mapping[str, Tally]:
    """How early the streams align with the last layer; every token counts by the weight of the one it must predict.

    gate_4_slow, gate_4_accelerated, gate_4_exit  share of tokens whose likeliest successor there is the last layer's:
        by the slow state, by the accelerated one, by a LITE-style exit of the same size
    gate_4_own  with features: by the accelerated state that follows from its own state of the token before
    cosine_3_slow, cosine_3_accelerated, cosine_3_target  mean cosine of the state after layer 3 with the last layer's,
        and of the accelerated one with the slow one it is to equal
    """
    weights, trajectories = batch.ahead(1).weights, Trajectories(module, batch)
    total, last = float(weights.sum()), batch.states[-1].float()
    final = batch.teacher.top_tokens
    tallies: dict[str, Tally] = {}

    def note(name: str, values: Tensor) -> None:
        tallies[name] = Tally(float((values.float() * weights).sum()), total)

    found = [list(passes(trajectories, module, interval)) for interval in module.intervals]
    trails = [trails[0] for trails in found]
    for interval, (trail, *own) in zip(module.intervals, found, strict=True):
        gate = interval.gate
        if own:
            note(f"gate_{gate}_own", batch.picks(batch.norm(own[0][-1])) == final)
        note(f"gate_{gate}_slow", batch.picks(bare(batch, gate)) == final)
        note(f"gate_{gate}_accelerated", batch.picks(batch.norm(trail[-1])) == final)
        note(f"gate_{gate}_exit", batch.picks(module.exits.of(gate).normed(batch, gate)) == final)
    for interval, trail in zip(module.intervals, trails, strict=True):
        for layer, target in enumerate(trajectory_cosines(batch, interval, trail), interval.first + 1):
            note(f"cosine_{layer}_slow", F.cosine_similarity(batch.states[layer].float(), last, dim=-1))
            note(f"cosine_{layer}_accelerated", F.cosine_similarity(trail[layer - interval.first], last, dim=-1))
            note(f"cosine_{layer}_target", target)
    return tallies
