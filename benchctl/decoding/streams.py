"""What two streams learn and how it is measured, by what they are for: gates, a router on top, or experts ahead."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from benchctl.decoding.ahead import forecast_loss, forecast_yardsticks
from benchctl.decoding.alignment import TwoStreams, gate_loss, gate_yardsticks
from benchctl.decoding.routing import router_loss, router_yardsticks
from benchctl.decoding.trainable import Lesson, Tally


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
