"""What M2R2's two streams are for, and by that: which options count, how they decode, what they learn and measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from benchctl.decoding.ahead import AheadOfTime, Loading, forecast_loss, forecast_yardsticks
from benchctl.decoding.alignment import TwoStreams, gate_loss, gate_yardsticks
from benchctl.decoding.dynamic import GateDepth, Leaving
from benchctl.decoding.gate_draft import Drafting, GateDrafter
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import Lesson, Tally
from benchctl.decoding.routing import router_loss, router_yardsticks

How = Drafting | Leaving | Loading
_OPTIONS = {
    "speculative": ("exit", "draft_tokens", "width", "confidence", "source"),
    "dynamic": ("router", "threshold", "kv_fill"),
    "aot": ("policy", "capacity", "bandwidth_mb_s", "tier", "spare"),
}


def refuse_idle_options(method: Any, mode: str) -> None:
    """Raises ValueError for an option that was given though another mode than ``mode`` has it: it would do nothing."""
    for other, names in _OPTIONS.items():
        idle = [name for name in names if other != mode and getattr(method, name) != getattr(type(method), name)]
        if idle:
            raise ValueError(f"{idle[0]} is an option of mode={other}, not of mode={mode}; leave it out")


def decoding_of(how: How, target: Target, streams: TwoStreams) -> Method:
    """What decodes in that way."""
    if isinstance(how, Drafting):
        return GateDrafter(target, streams, how)
    if isinstance(how, Leaving):
        return GateDepth(target, streams, how)
    return AheadOfTime(target, streams, how)


def streams_loss(module: nn.Module, lesson: Lesson) -> Tensor:
    """Weighted sum over tokens in nats: the router's where there is one, else that of the gates or of the forecast."""
    assert isinstance(module, TwoStreams)
    if module.router is not None:
        return router_loss(module, lesson)
    return gate_loss(module, lesson) if module.exits else forecast_loss(module, lesson)


def streams_yardsticks(module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
    """What they are good for, likewise."""
    assert isinstance(module, TwoStreams)
    if module.router is not None:
        return router_yardsticks(module, lesson)
    return gate_yardsticks(module, lesson) if module.exits else forecast_yardsticks(module, lesson)
