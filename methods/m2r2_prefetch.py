"""Load experts ahead of time: the accelerated stream of M2R2 predicts the experts of coming layers.

Bhendawade et al.: M2R2, 2025, arXiv 2502.02040; docs/m2r2.md. Ours: after l layers the accelerated state stands for the
slow one after R l, so the norms and gates of layers R (l - 1) + 1 .. R l predict from it; and the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.experts.fast_tier import PolicyName
from benchctl.decoding.experts.offload import Offload, OffloadSettings, OffloadsExperts, Timer, rank_experts
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, check_options, one_token
from benchctl.decoding.model.layers import Experts, Layer
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.folders import load_modules, read_facts
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, tally
from benchctl.errors import UserError

from .m2r2.base import TwoStreamMethod
from .m2r2.gates import Interval
from .m2r2.streams import PairedRun
from .m2r2.training import COSINE_SHARE, Trajectories, TwoStreams, trajectory_cosines


@dataclass
class M2R2Prefetch(TwoStreamMethod, OffloadsExperts):
    """Decode a mixture of experts and load experts early, as the accelerated stream predicts.

    modules   folder of the trained adapters
    gates     layers where the accelerated stream restarts, joined by +; empty: half of the depth
    rate      slow layers per accelerated layer; 0: 2
    adapters  lora, bottleneck or hybrid, of size rank; their output is multiplied by alpha / rank
    policy, capacity, bandwidth_mb_s, spare: as for expert_offload
    """

    policy: PolicyName = "lru"
    capacity: int = 0
    bandwidth_mb_s: float = 0.0
    spare: int = 0
    no_batch_reason = "each sequence of a batch would need experts of its own"
    default_rate = 2.0
    compared = False
    _offload: Offload = field(init=False, repr=False, compare=False)
    _predictor: StreamPredictor = field(init=False, repr=False, compare=False)
    _runs: list[PairedRun] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings()  # raises for what cannot be
        check_options(self, 0, "spare")

    def _settings(self) -> OffloadSettings:
        return OffloadSettings(self.policy, self.capacity, self.bandwidth_mb_s)

    def default_gates(self, layers: int) -> tuple[int, ...]:
        """One interval up to half of the depth: at rate 2 the state there stands for the last layer's."""
        return (layers // 2,) if layers > 1 else ()

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        """Without exits, adapters of other gates have the same shapes."""
        super().refuse(folder, trained)
        layers, there = read_facts(folder).target.layers, str(trained.get("gates") or "")
        if self.intervals(layers) != replace(self, gates=there).intervals(layers):
            message = f"{folder}: trained with gates={there or 'the default'}, not {self.gates or 'the default'}"
            raise UserError("trained_with_other_option", f"{message}; give the gates of its training")

    def unsupported(self, target: TargetInfo) -> str | None:
        return super().unsupported(target) or self._settings().unsupported(target)

    def loss(self, module: TwoStreams, target_batch: TrainingBatch) -> Tensor:
        """KL(true choice of experts || predicted one), mean of layers, + COSINE_SHARE * mean of 1 - cosine."""
        weights, trajectories = target_batch.ahead(1).weights, Trajectories(module, target_batch)
        losses = torch.zeros_like(weights, dtype=torch.float32)
        for interval in module.intervals:
            trail = trajectories.along(interval)
            divergences = []
            for _, true, predicted in _choices(target_batch, trajectories, interval, trail):
                wanted, said = true.float().log_softmax(-1), predicted.float().log_softmax(-1)
                divergences.append((wanted.exp() * (wanted - said)).sum(-1))
            if divergences:
                losses = losses + torch.stack(divergences).mean(0)
            distances = [1 - cosine for cosine in trajectory_cosines(target_batch, interval, trail)]
            losses = losses + COSINE_SHARE * torch.stack(distances).mean(0)
        return (losses * weights).sum()

    @torch.no_grad()
    def yardsticks(self, module: TwoStreams, target_batch: TrainingBatch) -> Mapping[str, Tally]:
        """Of the experts that a token needs, the share that is among as many predicted ones.

        recall, recall_6            of all layers, of layer 6, by the last accelerated state that is asked before it
        recall_slow, recall_6_slow  by the slow state at the same moment: next_gate, looking further ahead
        """
        weights, trajectories = target_batch.ahead(1).weights, Trajectories(module, target_batch)
        tallies: dict[str, Tally] = {}
        for interval in module.intervals:
            trail = trajectories.along(interval)
            attended = map(trajectories.attended, range(interval.first, interval.gate))
            slow = [target_batch.states[interval.first], *attended]
            for kind, states in (("", trail), ("_slow", slow)):
                for number, true, predicted in _choices(target_batch, trajectories, interval, states):
                    mlp = target_batch.layer(number - 1).mlp
                    assert isinstance(mlp, Experts)
                    needed, named = (logits.topk(mlp.top_k).indices for logits in (true, predicted))
                    hits = (needed.unsqueeze(-1) == named.unsqueeze(-2)).any(-1).float().mean(-1)
                    tallies[f"recall_{number}{kind}"] = tally(hits, weights)
        for kind in ("", "_slow"):
            of_kind = [tally for name, tally in tallies.items() if name.endswith("_slow") == bool(kind)]
            tallies[f"recall{kind}"] = sum(of_kind, Tally(0.0, 0.0))
        return tallies

    def prepare(self, target: Target) -> None:
        streams: TwoStreams = load_modules(self, "m2r2_prefetch", target, self.modules)
        self._offload = Offload(target, self._settings())
        blocks = self._offload.view.blocks
        self._predictor = StreamPredictor(blocks, streams.intervals, self._offload.top_k + self.spare)
        self._runs = [streams.run(interval, blocks, self._predictor.note) for interval in streams.intervals]

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        self._predictor.state = None  # that of a generation that failed
        return self._offload.serve(timer, self._predictor)

    def counters(self) -> Mapping[str, float]:
        return self._offload.counters()

    def step(self, context: Context) -> tuple[int]:
        return one_token(context, self._run)

    def _run(self, stream: Stream) -> None:
        for run in self._runs:
            run(stream, 1)
        stream.advance()


class StreamPredictor:
    """Names, for each layer that both streams pass, the experts of layers to come (a Predictor of offload)."""

    def __init__(self, blocks: Sequence[Layer], intervals: Sequence[Interval], experts: int) -> None:
        self._blocks, self._experts = blocks, experts
        self.state: Tensor | None = None
        self._coming = dict[int, list[int]]()
        for interval in intervals:
            waiting = list[int]()  # what dense layers could have asked for: the next layer of experts asks for it too
            for layer in range(interval.first + 1, interval.gate + 1):
                waiting += coming(interval, layer)
                if isinstance(blocks[layer - 1].mlp, Experts):
                    asked = [ahead for ahead in waiting if ahead >= layer and isinstance(blocks[ahead].mlp, Experts)]
                    self._coming[layer - 1], waiting = asked, []

    def note(self, state: Tensor) -> None:
        self.state = state

    def __call__(self, layer: int, residual: Tensor) -> Mapping[int, Sequence[int]]:
        state, self.state = self.state, None  # a state is asked once; where no accelerated row ran there is none
        if state is None:
            return {}
        return {ahead: rank_experts(self._blocks[ahead], state, self._experts) for ahead in self._coming.get(layer, ())}


def coming(interval: Interval, layer: int) -> range:
    """Indices of the layers ahead that the accelerated state after ``layer`` layers newly stands for.

    Interval(0, 4, 8) with rate 2 gives layer 1 (index 1), then 2 and 3, 4 and 5, 6 and 7.
    """
    first, last = interval.reaches(layer - 1), interval.reaches(layer)
    return range(max(int(first), layer), int(last))


def _choices(
    target_batch: TrainingBatch, trajectories: Trajectories, interval: Interval, trail: Sequence[Tensor]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each coming layer its number, its true gate logits [rows, n, experts] and the predicted ones."""
    for layer, state in enumerate(trail[1:], interval.first + 1):
        for ahead in coming(interval, layer):
            block = target_batch.layer(ahead)
            if isinstance(block.mlp, Experts):
                with torch.no_grad():
                    true = block.gate_logits(trajectories.attended(ahead))
                yield ahead + 1, true, block.gate_logits(state)
