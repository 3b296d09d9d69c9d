"""What is proposed at a gate of M2R2 (arXiv 2502.02040): by the accelerated stream or, to compare with, another."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from benchctl.decoding.alignment import TwoStreams
from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target

Source = Literal["accelerated", "slow", "exit"]


class GateDrafter:
    """Draft logits of the rows that have come to one gate."""

    def __init__(self, target: Target, streams: TwoStreams, gate: int, source: Source) -> None:
        self._target, self._source = target, source
        self._part = next(part for part in streams.parts if part.gate == gate)
        self._run, self._exit = streams.run(self._part, target.blocks), streams.exit(gate)

    def propose(self, stream: Stream, rows: int) -> Tensor:
        """[rows, vocabulary] for the last ``rows`` open rows, which run up to the gate on the way."""
        target, part = self._target, self._part
        if self._source == "accelerated":
            return target.head(stream.accompany(part.first, part.gate, rows, self._run)[-1])
        stream.advance(part.gate)
        states = stream.states[-rows:]
        if self._source == "slow":
            return target.head(states)
        normed = target.final_norm(self._exit(states, target.final_norm(states)))
        return target.lm_head(normed * self._exit.gain)
