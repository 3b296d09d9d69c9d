"""What the layers above an exit hold of a row that left there: keys and values of stand-ins, later ones, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchctl.decoding.adaptive import View
from benchctl.decoding.gates import Interval, between
from benchctl.decoding.kv.stream import Stream


def copy_h(stream: Stream, view: View) -> None:
    """Of the slow state at the exit, in every layer: state propagation (CALM 2207.07061, section 3.1)."""
    stream.fill(view.layer)


def copy_p(stream: Stream, view: View) -> None:
    """Of the state that spoke at the exit, in every layer."""
    stream.fill(view.layer, view.state)


def deferred_exact(stream: Stream, view: View) -> None:
    """The row's own, computed with the next row that goes deeper (DEED 2311.08623)."""


def absent(stream: Stream, view: View) -> None:
    """Nothing: later rows do not see it there (as Mixture-of-Depths, 2404.02258, has it)."""
    stream.skip(view.layer)


class RateMap:
    """Of the accelerated trajectory (ours): where it was to equal a skipped slow state, it stands in for that.

    What arrives at the first layer above the exit is no skipped state: that is the slow one at the exit itself.
    """

    def __init__(self, parts: Sequence[Interval], like: Tensor) -> None:
        self._shares = {part.gate: trajectory_shares(part).to(like) for part in parts}

    def __call__(self, stream: Stream, view: View) -> None:
        known = torch.cat((stream.states[-1:], *view.trail))
        stream.fill(view.layer, torch.mm(self._shares[view.layer], known))


def trajectory_shares(part: Interval) -> Tensor:
    """[layers above the gate, 1 + states of the trail]: of which known states each stand-in is made.

    Known are the slow state at the gate, then the accelerated ones from the interval's start on. For Interval(0, 2, 6),
    speed 3, what would arrive at layers 3, 4, 5, 6 are the slow states 2, 3, 4, 5: the one known, then the accelerated
    ones after layers 1, 4/3 and 5/3.
    """
    states = 2 + part.gate - part.first
    known = list(torch.eye(states, dtype=torch.float64))
    skipped = range(part.gate + 1, part.layers)
    return torch.stack([known[0], *(between(known[1:], part.meets(depth) - part.first) for depth in skipped)])
