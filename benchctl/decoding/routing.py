"""Training the routers of M2R2 on top of streams that stand still: where does the accelerated state agree?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchctl.decoding.alignment import Trajectories, TwoStreams
from benchctl.decoding.arla import Router
from benchctl.decoding.modules.exits import balanced_loss, exit_yardsticks
from benchctl.decoding.modules.trainable import Lesson, Tally


@dataclass(frozen=True)
class Routed:
    """Of each gate [rows, n]: the router's scores, and whether its likeliest token is the last layer's."""

    scores: Mapping[int, Tensor]
    agrees: Mapping[int, Tensor]


def routed(module: TwoStreams, lesson: Lesson) -> Routed:
    """What the router says of the texts of a lesson, and what it should; only its scores carry a gradient."""
    assert isinstance(module.router, Router)
    trajectories, last = Trajectories(module, lesson), lesson.head(lesson.final).argmax(-1)
    scores: dict[int, Tensor] = {}
    agrees: dict[int, Tensor] = {}
    for part in module.parts:
        with torch.no_grad():
            trail = trajectories.along(part)
            agrees[part.gate] = lesson.head(lesson.norm(trail[-1])).argmax(-1) == last
        scores[part.gate] = module.router.score(part.gate, trail)
    return Routed(scores, agrees)


def router_loss(module: TwoStreams, lesson: Lesson) -> Tensor:
    """Sum over gates of class-balanced binary cross-entropies; a token's weight is that of the one it must predict."""
    found, weights = routed(module, lesson), lesson.ahead(1).weights
    losses = [balanced_loss(found.scores[gate], found.agrees[gate], weights) for gate in found.scores]
    return torch.stack(losses).sum()


@torch.no_grad()
def router_yardsticks(module: TwoStreams, lesson: Lesson) -> dict[str, Tally]:
    """Those of exit_yardsticks, where the accelerated states are what leaves."""
    found = routed(module, lesson)
    return exit_yardsticks(found.scores, lesson, found.agrees)
