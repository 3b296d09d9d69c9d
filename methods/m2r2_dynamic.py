"""Leave the target at the first gate where a router trusts M2R2's accelerated stream.

Bhendawade et al.: M2R2, 2025, arXiv 2502.02040; docs/m2r2.md. Lossy: what leaves early is not verified. Ours: rate_map,
and the labels that routers learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.adaptive import AdaptiveDepth, KvFill, View, absent, copy_h, copy_p, deferred_exact
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, MonotoneThreshold, check_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.losses import agreement_loss, exit_yardsticks
from benchctl.decoding.modules.trainable import SecondStage, Tally, TrainingBatch, TrainingDefaults

from .m2r2.base import TwoStreamMethod
from .m2r2.gates import Decider, Interval, Router, between
from .m2r2.streams import PairedRun
from .m2r2.training import Trajectories, TwoStreams, gate_loss, gate_yardsticks

_TRAINED_ROUTERS = ("arla", "linear")
_FILLS = {"copy_p": copy_p, "copy_h": copy_h, "deferred_exact": deferred_exact, "absent": absent}


@dataclass
class M2R2Dynamic(TwoStreamMethod, AdaptiveDepth, MonotoneThreshold):
    """Exit at the first gate where the router is confident in the accelerated state.

    modules    folder of the trained adapters and, for router=arla or linear, of the trained router
    gates      layers where the accelerated stream restarts, joined by +; empty: 1/8, 1/4 and 1/2 of the depth
    rate       slow layers per accelerated layer; 0: reach the last layer at each gate
    adapters   lora, bottleneck or hybrid, of size rank; their output is multiplied by alpha / rank
    router     arla or linear (trained), softmax_gap, softmax_max or state_cosine
    threshold  confidence that a token needs to exit; above 1 no token exits, at 0 each exits at the first gate
    kv_fill    keys and values of skipped layers: rate_map, copy_p, copy_h, deferred_exact or absent
    """

    router: Literal["arla", "linear", "softmax_gap", "softmax_max", "state_cosine"] = "arla"
    threshold: float = 0.9
    kv_fill: Literal["rate_map", "copy_p", "copy_h", "deferred_exact", "absent"] = "rate_map"
    demo = ("threshold=0.8",)
    exactness = "lossy"
    reason = "tokens that exit early are not verified by the full target"
    _runs: dict[int, PairedRun] = field(init=False, repr=False, compare=False)
    _deciders: dict[int, Decider] = field(init=False, repr=False, compare=False)
    _fill: KvFill = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, 0, "threshold")

    @property
    def second_stage(self) -> SecondStage:
        training = TrainingDefaults(2e-3, "linear", epochs=5.0)
        return SecondStage("router", f"router={self.router}", self.router in _TRAINED_ROUTERS, training)

    def build(self, info: TargetInfo, lm_head: Tensor) -> TwoStreams:
        streams = super().build(info, lm_head)
        if self.second_stage.needed:
            streams.requires_grad_(False)
            attends = self.router == "arla"
            streams.router = Router(streams.intervals, info.hidden_size, lm_head.device, attends)
        return streams

    def loss(self, module: TwoStreams, batch: TrainingBatch) -> Tensor:
        if module.router is None:
            return gate_loss(module, batch)
        return agreement_loss(*router_scores(module, batch), batch)

    @torch.no_grad()
    def yardsticks(self, module: TwoStreams, batch: TrainingBatch) -> Mapping[str, Tally]:
        if module.router is None:
            return gate_yardsticks(module, batch)
        scores, agrees = router_scores(module, batch)
        return exit_yardsticks(scores, batch, agrees)

    def prepare(self, target: Target) -> None:
        streams: TwoStreams = load_modules(self, "m2r2_dynamic", target, self.modules)
        self._runs = {interval.gate: streams.run(interval, target.blocks) for interval in streams.intervals}
        router = streams.router
        self._deciders = {} if router is None else {gate: router.of(gate).decider() for gate in self._runs}
        self._fill = _FILLS.get(self.kv_fill) or rate_map(streams.intervals, target)

    def exit_layers(self, target: Target) -> tuple[int, ...]:
        return tuple(self._runs)

    def reach(self, stream: Stream, layer: int) -> View:
        return View(layer, self._runs[layer](stream, 1), stream.target.head)

    def decide(self, context: Context, view: View) -> bool:
        if self.router == "arla" or self.router == "linear":
            return self._deciders[view.layer](view.trail) >= self.threshold
        return view.confidence(self.router) >= self.threshold

    def step(self, context: Context) -> tuple[int]:
        return self.exit_step(context, self._fill)


def rate_map(intervals: Sequence[Interval], target: Target) -> KvFill:
    """Fills from the accelerated trajectory (ours): its state stands in for the skipped slow state it was to equal."""
    shares = {interval.gate: trajectory_shares(interval).to(target.device, target.dtype) for interval in intervals}

    def fill(stream: Stream, view: View) -> None:
        stream.fill(view.layer, torch.mm(shares[view.layer], torch.cat((stream.states[-1:], *view.trail))))

    return fill


def trajectory_shares(interval: Interval) -> Tensor:
    """[layers above the gate, 1 + states of the trail]: of which known states each stand-in is made.

    Known are the slow state at the gate, then the accelerated ones from the interval's start on. For Interval(0, 2, 6),
    speed 3, what would arrive at layers 3, 4, 5, 6 are the slow states 2, 3, 4, 5: the first is known, then come the
    accelerated ones after layers 1, 4/3 and 5/3.
    """
    states = 2 + interval.gate - interval.first
    known = list(torch.eye(states, dtype=torch.float64))
    skipped = range(interval.gate + 1, interval.layers)
    stand_ins = (between(known[1:], interval.meets(depth) - interval.first) for depth in skipped)
    return torch.stack([known[0], *stand_ins])


def router_scores(module: TwoStreams, batch: TrainingBatch) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Of each gate [rows, n]: the router's scores, and whether its likeliest token is the last layer's."""
    assert isinstance(module.router, Router)
    trajectories, last = Trajectories(module, batch), batch.teacher.top_tokens
    scores: dict[int, Tensor] = {}
    agrees: dict[int, Tensor] = {}
    for interval in module.intervals:
        with torch.no_grad():
            trail = trajectories.along(interval)
            agrees[interval.gate] = batch.picks(batch.norm(trail[-1])) == last
        scores[interval.gate] = module.router.score(interval.gate, trail)
    return scores, agrees
