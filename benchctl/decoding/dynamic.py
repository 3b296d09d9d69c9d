"""Decoding that leaves by the accelerated stream of M2R2: gate by gate both streams run, and a router decides.

Bhendawade et al., 2025, arXiv 2502.02040, dynamic computing. Lossy: what leaves early is not verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchctl.decoding.adaptive import AdaptiveDepth, KvFill, View
from benchctl.decoding.alignment import TwoStreams
from benchctl.decoding.arla import Decider
from benchctl.decoding.kv.kv_fill import RateMap, absent, copy_h, copy_p, deferred_exact
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Step
from benchctl.decoding.model.target import Target

RouterName = Literal["arla", "linear", "softmax_gap", "softmax_max", "state_cosine"]
KvFillName = Literal["rate_map", "copy_p", "copy_h", "deferred_exact", "absent"]


@dataclass(frozen=True)
class Leaving:
    """When a token leaves at a gate, and what the layers above then hold of it."""

    router: RouterName
    threshold: float
    kv_fill: KvFillName

    def __post_init__(self) -> None:
        if not self.threshold >= 0.0:  # nan too
            raise ValueError(f"threshold is {self.threshold}; it must not be negative")

    @property
    def needs_router(self) -> bool:
        """Whether it is a trained one that decides."""
        return self.router in ("arla", "linear")


class GateDepth(AdaptiveDepth):
    """Each token leaves at the first gate where the router is sure enough of the accelerated state.

    In each interval the last row runs twice, as the slow stream and as the accelerated one, which starts from the slow
    state at the gate below. A row that leaves nowhere runs the layers above the last gate by itself and gives the
    target's own token.
    """

    def __init__(self, target: Target, streams: TwoStreams, how: Leaving) -> None:
        self._parts = {part.gate: part for part in streams.parts}
        self._runs = {part.gate: streams.run(part, target.blocks) for part in streams.parts}
        self._how, self._deciders = how, dict[int, Decider]()
        if how.needs_router:
            assert streams.router is not None
            self._deciders = {gate: streams.router.decider(gate) for gate in self._parts}
        self._fill = self._kv_fill(target, streams)

    def _kv_fill(self, target: Target, streams: TwoStreams) -> KvFill:
        if self._how.kv_fill == "rate_map":
            return RateMap(streams.parts, target.embedding)
        fills = {"copy_p": copy_p, "copy_h": copy_h, "deferred_exact": deferred_exact, "absent": absent}
        return fills[self._how.kv_fill]

    def exit_layers(self, target: Target) -> tuple[int, ...]:
        return tuple(self._parts)

    def reach(self, stream: Stream, layer: int) -> View:
        part = self._parts[layer]
        trail = stream.accompany(part.first, part.gate, 1, self._runs[layer])
        return View(layer, trail[-1], trail[-2], stream.target.head, trail)

    def decide(self, context: Context, view: View) -> bool:
        return self._confidence(view) >= self._how.threshold

    def _confidence(self, view: View) -> float:
        router = self._how.router
        if router == "arla" or router == "linear":
            return self._deciders[view.layer](view.trail)
        return view.confidence(router)

    def step(self, context: Context) -> Step:
        return self.exit_step(context, self._fill)
