"""Draft with an accelerated residual stream, whose state at a gate predicts the state of much later layers.

Bhendawade et al.: M2R2: Mixture of Multi-rate Residuals for Efficient Transformer Inference, 2025, arXiv 2502.02040.
docs/m2r2.md separates the paper's statements from our choices. m2r2_dynamic and m2r2_prefetch use the same modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Outcome, Speculative, check_options
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.exits import ExitHead
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.low_rank import AdapterSettings

from .base import TwoStreamMethod
from .drafting import BEFORE_ROOT, draft_beam, draft_chain
from .gates import read_gates
from .streams import PairedRun
from .training import TwoStreams

Heads = Callable[[Tensor], Tensor]


@dataclass
class M2R2(TwoStreamMethod, Speculative, UsesDraftVocabulary):
    """Draft with the accelerated stream at a gate, and verify with the target.

    modules       folder of the trained adapters
    gates         layers where the accelerated stream restarts, joined by +; empty: 1/8, 1/4 and 1/2 of the depth
    rate          slow layers per accelerated layer; 0: reach the last layer at each gate
    adapters      lora, bottleneck or hybrid, of size rank; their output is multiplied by alpha / rank
    exit          the gate that drafts; 0: the first
    draft_tokens  tokens drafted per verification
    width         branches kept at each depth of the draft; 1 is a chain
    confidence    stop before the likeliest branch would have a lower probability; 0 never stops
    source        what drafts: accelerated, or for comparison slow or exit (LITE-style exit of the same size)
    features      last (ours): a trained product of the previous token's state is added at the start: of its last
                  layer's state, or, if it is drafted, of its accelerated state at the gate; none: as in the paper
    draft_vocabulary  tokens that the gate scores: stored (those kept with the modules, if any) or whole; confidences
                  are shares of these tokens
    """

    exit: int = 0
    draft_tokens: int = 6
    width: int = 1
    confidence: float = 0.2
    source: Literal["accelerated", "slow", "exit"] = "accelerated"
    features: Literal["none", "last"] = "none"
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    runs_rows = True
    _gate: int = field(init=False, repr=False, compare=False)
    _run: PairedRun | None = field(init=False, repr=False, compare=False)
    _head: Heads = field(init=False, repr=False, compare=False)
    _of_feature: Heads | None = field(init=False, repr=False, compare=False)
    _known: Tensor = field(init=False, repr=False, compare=False)  # [1 + rows that proposed, width], see _propose

    def __post_init__(self) -> None:
        super().__post_init__()
        gates = read_gates(self.gates)
        if self.exit < 0 or (gates and self.exit and self.exit not in gates):
            raise ValueError(f"exit {self.exit} is not among the gates {self.gates or 'of any target'}")
        check_options(self, 1, "draft_tokens", "width")
        check_options(self, 0, "confidence", most=1)

    def unsupported(self, target: TargetInfo) -> str | None:
        gates = [interval.gate for interval in self.intervals(target.layers)]
        if (problem := super().unsupported(target)) or not self.exit or self.exit in gates:
            return problem
        return f"exit {self.exit} is not among the gates {'+'.join(map(str, gates))}"

    def prepare(self, target: Target) -> None:
        streams: TwoStreams = load_modules(self, "m2r2", target, self.modules)
        self._gate = self.exit or streams.intervals[0].gate
        interval = next(interval for interval in streams.intervals if interval.gate == self._gate)
        # Only the source that drafts is kept: what it is compared with is not part of its memory.
        accelerated = self.source == "accelerated"
        self._run = streams.run(interval, target.blocks, defers_last=True) if accelerated else None
        self._of_feature = None
        if accelerated and self.features == "last":
            feature = Linear(streams.features.of(self._gate).weight, None, target.form)
            self._of_feature = lambda states: feature(target.final_norm(states))
        self.load_vocabulary(self.modules, target.vocabulary)
        norm, lm_head = target.final_norm, self.vocabulary.lm_head(target)
        if self.source == "exit":
            self._head = ExitHead(streams.exits.of(self._gate), norm, lm_head)
        else:
            self._head = lambda states: lm_head(norm(states))

    def build(self, info: TargetInfo, lm_head: Tensor) -> TwoStreams:
        settings, features = AdapterSettings(self.adapters, self.rank, self.alpha), self.features == "last"
        return TwoStreams(info, self.intervals(info.layers), settings, lm_head.device, self.compared, features)

    def start(self, context: Context) -> int:
        first = super().start(context)
        assert context.prompt_state is not None
        self._known = context.prompt_state
        return first

    def observe(self, context: Context, outcome: Outcome) -> None:
        path = outcome.verdict.path
        last = 1 + path[-1] if path else 0
        self._known = outcome.states[last : last + 1]

    def draft(self, context: Context, budget: int) -> Draft:
        propose = partial(self._propose, context.stream)
        depth = min(self.draft_tokens, budget)
        if self.width == 1:
            return draft_chain(context, depth, propose, self.vocabulary, self.confidence)
        return draft_beam(context, depth, propose, self.vocabulary, self.width, self.confidence)

    def _propose(self, stream: Stream, parents: Sequence[int]) -> Tensor:
        """Draft logits [rows, k] of the last open rows, which run up to the gate on the way; see Propose."""
        rows = len(parents)
        if self._run is None:
            stream.advance(self._gate)
            return self._head(stream.states[-rows:])
        if self._of_feature is None:
            return self._head(self._run(stream, rows)[-1])
        before = self._known[[parent - BEFORE_ROOT for parent in parents]]
        states = self._run(stream, rows, self._of_feature(before))[-1]
        self._known = torch.cat((self._known, states))
        return self._head(states)
