"""Draft from an early layer of the target through an attention adapter; the layers above it verify the chain.

Liu et al.: Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, 2024, arXiv 2404.18911. The second
early exit ends a draft after a token that the adapter is unsure of. Ours: the default exit, other rules that end a
draft, and training that starts from the bare exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.side import SideLayers
from benchctl.decoding.drafting.stops import Stop, StopRule
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Chain, Context, Outcome, Speculative, check_options, refuse_options
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.losses import bare, exit_losses
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults, tally

from .adapter import Adapter


@dataclass
class Kangaroo(Speculative, Trainable, UsesDraftVocabulary):
    """Draft from an early exit through an attention adapter, and verify with the layers above it.

    modules       folder of the trained adapter
    exit          layers below the adapter; 0: an eighth of the depth
    draft_tokens  tokens drafted per verification
    confidence    the draft ends where the adapter is less confident; 0 never stops
    stop          measure of that confidence: confidence (the token's draft probability, as in the paper), product (of
                  the draft's tokens) or entropy (AdaEDL's bound of acceptance); or bandit: learn the best length
    token_cost    for stop=bandit, time of drafting and verifying a token in target passes
    draft_vocabulary  tokens that the adapter scores: stored (those kept with the modules, if any) or whole
    """

    modules: str = ""
    exit: int = 0
    draft_tokens: int = 6
    confidence: float = 0.6
    stop: StopRule = "confidence"
    token_cost: float = 0.15
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    training = TrainingDefaults()
    trained_for = ("exit",)
    can_combine = False
    _layer: Layer = field(init=False, repr=False, compare=False)
    _lm_head: Linear = field(init=False, repr=False, compare=False)
    _stop: Stop = field(init=False, repr=False, compare=False)
    _side: SideLayers = field(init=False, repr=False, compare=False)
    _unread: Tensor = field(init=False, repr=False, compare=False)  # exit states that the adapter has yet to read

    def __post_init__(self) -> None:
        check_options(self, 0, "exit", "token_cost")
        check_options(self, 1, "draft_tokens")
        check_options(self, 0, "confidence", most=1)
        refuse_options(self, f"with stop={self.stop}", "confidence" if self.stop == "bandit" else "token_cost")

    @property
    def drafts_from_text(self) -> bool:  # type: ignore[override]
        return self.stop != "bandit"

    def exit_layer(self, layers: int) -> int:
        return self.exit or max(1, layers // 8)

    def unsupported(self, target: TargetInfo) -> str | None:
        if (exit_layer := self.exit_layer(target.layers)) < target.layers:
            return None
        return f"exit {exit_layer} is not below the target's {target.layers} layers"

    def build(self, info: TargetInfo, lm_head: Tensor) -> Adapter:
        with torch.device(lm_head.device):
            return Adapter(info)

    def loss(self, module: Adapter, batch: TrainingBatch) -> Tensor:
        """KL(target's distribution || adapter's): the paper's soft cross-entropy, less a constant."""
        normed = module.normed(batch, self.exit_layer(len(batch.states) - 1))
        return (exit_losses(batch, [normed], ce_share=0.0)[0] * batch.ahead(1).weights).sum()

    @torch.no_grad()
    def yardsticks(self, module: Adapter, batch: TrainingBatch) -> Mapping[str, Tally]:
        """exit_2_top1, exit_2_bare_top1: agreement with the last layer, by the adapter and by the target's own norm."""
        exit_layer = self.exit_layer(len(batch.states) - 1)
        found = {"top1": module.normed(batch, exit_layer), "bare_top1": bare(batch, exit_layer)}
        last, weights = batch.teacher.top_tokens, batch.ahead(1).weights
        return {f"exit_{exit_layer}_{name}": tally(batch.picks(each) == last, weights) for name, each in found.items()}

    def prepare(self, target: Target) -> None:
        module: Adapter = load_modules(self, "kangaroo", target, self.modules)
        self.load_vocabulary(self.modules, target.vocabulary)
        self._layer, self._lm_head = module.layer(target), self.vocabulary.lm_head(target)

    def start(self, context: Context) -> int:
        stream, target = context.stream, context.target
        stream.taps = (self.exit_layer(target.layers),)
        first = super().start(context)
        (self._unread,) = stream.features
        stream.taps = stream.features = ()  # drafted rows wait at the exit
        capacity = context.prompt_tokens + context.limit_tokens
        self._side = SideLayers([self._layer], target.rotary, self._unread, capacity)
        self._stop = Stop(self.stop, self.confidence, self.draft_tokens, self.token_cost)
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        chain, stream = Chain(context, self.vocabulary), context.stream
        for _ in range(min(self._stop.begin(), budget)):
            self._reach_exit(stream)
            draft_logits = self._lm_head(self._side.read(self._unread)[-1:])
            self._unread = self._unread[:0]
            place = chain.add(draft_logits)
            stream.push(chain.tokens[-1:])
            if self._stop.ends(draft_logits, place) or chain.ended:
                break
        self._reach_exit(stream)  # the last token too: verification leaves no state of this layer
        return chain.draft()

    def _reach_exit(self, stream: Stream) -> None:
        """Run the new row up to the exit, and keep its state for the adapter."""
        stream.advance(self.exit_layer(stream.target.layers))
        rows = stream.length - self._side.length - len(self._unread)
        self._unread = torch.cat((self._unread, stream.states[-rows:]))

    def observe(self, context: Context, outcome: Outcome) -> None:
        self._stop.learn(len(outcome.draft), len(outcome.verdict.path))
        committed, side = context.stream.length, self._side
        side.truncate(min(side.length, committed))
        self._unread = self._unread[: committed - side.length]
