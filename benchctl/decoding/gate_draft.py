"""Drafting at a gate of M2R2 (arXiv 2502.02040): with the accelerated stream or, to compare with, another source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from benchctl.decoding.alignment import TwoStreams
from benchctl.decoding.beam import draft_beam, draft_chain
from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Speculative
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.exits import ExitHead

Source = Literal["accelerated", "slow", "exit"]


@dataclass(frozen=True)
class Drafting:
    """At which gate, how far and how wide, when to stop, and by what; see the options of m2r2."""

    exit: int
    draft_tokens: int
    width: int
    confidence: float
    source: Source

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "width"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence is {self.confidence}; it must lie between 0 and 1")


class GateDrafter(Speculative):
    """Drafts with the layers below one gate; verification goes on from the slow states that they left.

    Those of the accelerated stream stop before the gate's last layer, where they leave keys and values: verification
    runs that layer for all of them in one batch, which costs less than one by one.
    """

    def __init__(self, target: Target, streams: TwoStreams, how: Drafting) -> None:
        self._target, self._how = target, how
        gate = how.exit or streams.parts[0].gate
        self._part = next(part for part in streams.parts if part.gate == gate)
        # Each source holds its own part alone: what one is compared with is no part of its memory.
        self._run = streams.run(self._part, target.blocks, waits=True) if how.source == "accelerated" else None
        self._exit = ExitHead(streams.exit(gate), target) if how.source == "exit" else target.head

    def draft(self, context: Context, budget: int) -> Draft:
        how, propose = self._how, partial(self._propose, context.stream)
        depth, width = min(how.draft_tokens, budget), min(how.width, context.target.vocabulary)
        if width == 1:
            return draft_chain(context, depth, propose, how.confidence)
        return draft_beam(context, depth, propose, width, how.confidence)

    def _propose(self, stream: Stream, rows: int) -> Tensor:
        """[rows, vocabulary] for the last ``rows`` open rows, which run up to the gate on the way."""
        target, part = self._target, self._part
        if self._run is not None:
            return target.head(stream.accompany(part.first, part.gate, rows, self._run, waits=True)[-1])
        stream.advance(part.gate)
        return self._exit(stream.states[-rows:])
