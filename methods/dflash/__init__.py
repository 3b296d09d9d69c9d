"""Draft a whole block in one pass of a small model over the target's features; one target pass verifies the chain.

DFlash, Chen et al. 2026, arXiv 2602.06036. drafter.py says how a block is drafted, training.py how the layers learn.
The Markov head is DSpark's (arXiv 2607.05147). Ours: 2 layers and 7 tokens, and drafts that end where they are
unlikely; the published sizes, 5 layers and 15 tokens, are for GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import wide
from benchctl.decoding.method import Chain, Context, Outcome, Speculative, check_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import ALL_TOKENS, UsesDraftVocabulary
from benchctl.decoding.modules.folders import load_modules, trained_options
from benchctl.decoding.modules.published_layers import refuse_training_options, unsupported_published
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults

from .drafter import Drafter
from .layers import DflashModule, Sizes, own_taps
from .published import read_published
from .training import dflash_loss, dflash_yardsticks

_MOST_TOKENS = 63


@dataclass
class Dflash(Speculative, Trainable, UsesDraftVocabulary):
    """Draft a block of tokens in one pass of a few layers on the target's features.

    modules       folder of trained layers, or folder or hub id of published ones
    layers        layers of the drafter
    draft_tokens  tokens drafted per verification, and in training tokens of a block, which has one row more
    confidence    a draft ends before its joint probability falls below this; 0, as in the paper, drafts the whole block
    markov        rank of a head that corrects each token's logits for the token before it; 0, as in DFlash, none;
                  256 in DSpark
    gamma         in training, token k of a block counts exp(-(k - 1) / gamma)
    draft_vocabulary  tokens that are scored: stored (those kept with the modules, if any), or whole
    """

    modules: str = ""
    layers: int = 2
    draft_tokens: int = 7
    confidence: float = 0.1
    markov: int = 0
    gamma: float = 4.0
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    training = TrainingDefaults(rate=2e-3, warmup=0.05, epochs=4.0)
    at_most = "draft_tokens"
    reads_features = True
    _drafter: Drafter = field(init=False, repr=False, compare=False)
    _taps: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "layers")
        check_options(self, 1, "draft_tokens", most=_MOST_TOKENS)
        check_options(self, 0, "confidence", most=1)
        check_options(self, 0, "markov")
        check_options(self, 1e-3, "gamma")

    def build(self, info: TargetInfo, lm_head: Tensor) -> DflashModule:
        draft_head = self.vocabulary.of(lm_head.mT).mT
        sizes = Sizes.of(info, self.layers)
        with torch.device(lm_head.device):
            module = DflashModule(replace(sizes, rank=self.markov, tokens=len(draft_head)))
        module.start_from(lm_head, draft_head)
        return module

    def loss(self, module: DflashModule, batch: TrainingBatch) -> Tensor:
        return dflash_loss(
            module, batch, own_taps(len(batch.states) - 1, self.layers), self.draft_tokens + 1, self.gamma
        )

    def yardsticks(self, module: DflashModule, batch: TrainingBatch) -> Mapping[str, Tally]:
        return dflash_yardsticks(module, batch, own_taps(len(batch.states) - 1, self.layers), self.draft_tokens + 1)

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        if read_published(folder) is not None:
            refuse_training_options(self, folder, "layers", "markov", "gamma", "draft_vocabulary")

    def published(self, folder: str) -> Mapping[str, Any] | None:
        published = read_published(folder)
        return None if published is None else {"draft_tokens": published.block_tokens}

    def unsupported(self, target: TargetInfo) -> str | None:
        return unsupported_published(read_published(self.modules), target)

    def prepare(self, target: Target) -> None:
        block = 1 + int(trained_options(self, "dflash", self.modules)["draft_tokens"])
        if (published := read_published(self.modules)) is not None:
            parts, self._taps, self.vocabulary = published.load(target), published.taps(target.layers), ALL_TOKENS
            module, mask, rotary = parts.module, parts.mask, parts.rotary
        else:
            self.load_vocabulary(self.modules, target.vocabulary)
            module = load_modules(self, "dflash", target, self.modules)
            self._taps = own_taps(target.layers, self.layers)
            mask, rotary = module.mask, target.rotary
        self._drafter = Drafter(module, target, self.vocabulary, block, mask, rotary)

    def start(self, context: Context) -> int:
        stream = context.stream
        stream.taps = tuple(sorted(set(self._taps)))
        first = super().start(context)
        self._drafter.start(context.prompt_tokens + context.limit_tokens)
        self._read(context, slice(None))
        return first

    def _read(self, context: Context, rows: slice | Sequence[int]) -> None:
        features = dict(zip(context.stream.taps, context.stream.features, strict=True))
        self._drafter.read([features[tap][rows] for tap in self._taps])

    def draft(self, context: Context, budget: int) -> Draft:
        if budget < 1:
            return Draft()
        drafter, chain, token, joint = self._drafter, Chain(context, self.vocabulary), context.tokens[-1], 1.0
        for row in torch.split(drafter(token), 1)[: min(budget, self.draft_tokens)]:
            draft_logits = drafter.after(token, row)
            if self.confidence:
                joint *= float(wide(draft_logits).softmax(-1).max())
                if joint < self.confidence:
                    break
            chain.add(draft_logits)
            token = chain.tokens[-1]
            if chain.ended:
                break
        return chain.draft()

    def observe(self, context: Context, outcome: Outcome) -> None:
        self._read(context, list(outcome.kept_rows))
