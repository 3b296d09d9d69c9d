"""Which experts the layers ahead will want, said by the accelerated stream of M2R2: the predictor, and what it learns.

Bhendawade et al., 2025, arXiv 2502.02040, ahead-of-time expert loading. Ours, as the paper's equations were not at
hand: after l layers the accelerated state stands for the slow one after R l, so the norms and gates of layers
R (l - 1) + 1 .. R l are asked; and what they say is what is learnt (the divergence of the predicted choice from the
true one), beside the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.alignment import COSINE_SHARE, Trajectories, TwoStreams, trajectory_cosines
from benchctl.decoding.experts.offload import Offload, OffloadSettings, OffloadsExperts, rank_experts
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.gates import Interval
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, Step, all_layers, one_token
from benchctl.decoding.model.layers import Experts, Layer
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.trainable import Lesson, Tally, tally


def coming(part: Interval, layer: int) -> range:
    """Indices, from 0, of the layers whose gates the accelerated state after ``layer`` layers is asked: those that it
    has newly come to stand for, and that the slow stream has not reached.

    Interval(0, 4, 8) with rate 2 gives layer 1 (index 1), then 2 and 3, 4 and 5, 6 and 7.
    """
    first, last = part.reaches(layer - 1), part.reaches(layer)
    return range(max(int(first), layer), int(last))


@dataclass(frozen=True)
class Loading:
    """How experts are held, and how many are fetched ahead of each coming layer beyond those a token needs."""

    offload: OffloadSettings
    spare: int

    def __post_init__(self) -> None:
        if self.spare < 0:
            raise ValueError(f"spare is {self.spare}; it must not be negative")

    def unsupported(self, target: TargetInfo) -> str | None:
        """Why experts of ``target`` cannot be fetched ahead; None when they can."""
        return self.offload.unsupported(target)


class AheadOfTime(Method, OffloadsExperts):
    """Decodes with both streams, and names for each layer they pass the experts of layers to come (a Predictor)."""

    def __init__(self, target: Target, streams: TwoStreams, how: Loading) -> None:
        self.offload = Offload(target, how.offload)
        self._blocks = self.offload.view.blocks
        self._count = self.offload.top_k + how.spare
        self._state: Tensor | None = None
        self._runs = [(part, streams.run(part, self._blocks, self._note)) for part in streams.parts]
        passed = [(part, layer) for part in streams.parts for layer in range(part.first + 1, part.gate + 1)]
        self._coming = {layer - 1: coming(part, layer) for part, layer in passed}

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        self._state = None  # of a generation that failed
        return self.offload.serve(timer, self)

    def counters(self) -> Mapping[str, float]:
        return self.offload.counters()

    def _note(self, state: Tensor) -> None:
        self._state = state

    def __call__(self, layer: int, residual: Tensor) -> Mapping[int, Sequence[int]]:
        state, self._state = self._state, None  # a state is asked once; where no accelerated row ran there is none
        if state is None:
            return {}
        return {ahead: rank_experts(self._blocks[ahead], state, self._count) for ahead in self._coming[layer]}

    def step(self, context: Context) -> Step:
        return one_token(context, self._run)

    def _run(self, stream: Stream) -> int:
        for part, run in self._runs:
            stream.accompany(part.first, part.gate, 1, run)
        return all_layers(stream)


def forecast_loss(module: TwoStreams, lesson: Lesson) -> Tensor:
    """Weighted sum over tokens, of KL(true choice of experts || predicted one), meaned over the layers predicted, plus
    COSINE_SHARE * the mean over layers of 1 - cos(p^l, h^tau(l))."""
    weights, trajectories = lesson.ahead(1).weights, Trajectories(module, lesson)
    losses = torch.zeros_like(weights, dtype=torch.float32)
    for part in module.parts:
        trail = trajectories.along(part)
        found = [_divergence(*pair) for _, *pair in _choices(lesson, trajectories, part, trail)]
        if found:
            losses = losses + torch.stack(found).mean(0)
        distances = [1 - cosine for cosine in trajectory_cosines(lesson, part, trail)]
        losses = losses + COSINE_SHARE * torch.stack(distances).mean(0)
    return (losses * weights).sum()


def _divergence(true: Tensor, predicted: Tensor) -> Tensor:
    """[rows, n] for gate logits [rows, n, experts]."""
    wanted, said = true.float().log_softmax(-1), predicted.float().log_softmax(-1)
    return (wanted.exp() * (wanted - said)).sum(-1)


def _choices(
    lesson: Lesson, trajectories: Trajectories, part: Interval, trail: Sequence[Tensor]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each coming layer its number, its true gate logits [rows, n, experts] and the predicted ones."""
    for layer, state in enumerate(trail[1:], part.first + 1):
        for ahead in coming(part, layer):
            block = lesson.layer(ahead)
            if isinstance(block.mlp, Experts):
                with torch.no_grad():
                    true = _gate(block, trajectories.attended(ahead))
                yield ahead + 1, true, _gate(block, state)


def _gate(block: Layer, state: Tensor) -> Tensor:
    assert isinstance(block.mlp, Experts)
    return F.linear(block.mlp_norm(state), block.mlp.router)


@torch.no_grad()
def forecast_yardsticks(module: TwoStreams, lesson: Lesson) -> Mapping[str, Tally]:
    """Of the experts that a token needs, the share that is among as many predicted ones.

    recall_6         of layer 6, by the last accelerated state that is asked before it
    recall_6_slow    by the slow state at the same moment, with the same norm and gate: next_gate, looking further ahead
    recall           all predicted layers together, and recall_slow
    """
    weights, trajectories = lesson.ahead(1).weights, Trajectories(module, lesson)
    found: dict[str, Tally] = {}
    for part in module.parts:
        trail = trajectories.along(part)
        slow = [lesson.states[part.first], *(trajectories.attended(index) for index in range(part.first, part.gate))]
        for kind, states in (("", trail), ("_slow", slow)):
            for number, true, predicted in _choices(lesson, trajectories, part, states):
                mlp = lesson.layer(number - 1).mlp
                assert isinstance(mlp, Experts)
                found[f"recall_{number}{kind}"] = _recall(true, predicted, mlp.top_k, weights)
    for kind in ("", "_slow"):
        of_kind = [tally for name, tally in found.items() if name.endswith("_slow") == bool(kind)]
        found[f"recall{kind}"] = sum(of_kind, Tally(0.0, 0.0))
    return found


def _recall(true: Tensor, predicted: Tensor, count: int, weights: Tensor) -> Tally:
    needed, named = true.topk(count).indices, predicted.topk(count).indices
    hits = (needed.unsqueeze(-1) == named.unsqueeze(-2)).any(-1).float().mean(-1)
    return tally(hits, weights)
