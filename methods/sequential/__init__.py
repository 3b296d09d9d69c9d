"""Draft a tree with small heads that read the drafted tokens, behind the target's last state.

Hydra (Ankner et al. 2024, arXiv 2402.05109) and ReDrafter (Cheng et al. 2024, arXiv 2403.09919); heads.py says what the
kinds compute. Unlike Medusa's heads, theirs give each path scores of its own. Ours: the tree is grown by joint
probability for both, where Hydra's is static and ReDrafter's the union of beams, and drafts are lossless to verify.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import Frontier, Picks, grow_likeliest, grow_shape, node_probs, wide
from benchctl.decoding.drafting.trees import MOST_NODES, read_widths, wide_tree
from benchctl.decoding.method import Context, Outcome, Speculative, check_options, refuse_options
from benchctl.decoding.model.kernels import Linear, in_form
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults

from .heads import Heads, Kind, fresh_heads, sequential_loss, sequential_yardsticks


@dataclass
class Sequential(Speculative, Trainable, UsesDraftVocabulary):
    """Draft a tree with heads that read the drafted tokens; one target pass verifies it.

    modules     folder of the trained heads
    kind        hydra (a head for each depth, which reads the whole path) or redrafter (a recurrent cell for all)
    heads       depth of the tree, and in training tokens ahead that are learnt
    blocks      residual blocks of a head, the first of hydra's included
    tree        dynamic (the likeliest nodes of all that were scored) or widths such as 4x2x1; 1x1x1 is a chain
    width       nodes that continue at each depth of a dynamic tree, and children of each; 10 beams in ReDrafter's code
    nodes       rows of a dynamic tree; 63 in Hydra's code, for GPUs; few here, because rows cost time on a CPU
    confidence  a dynamic tree leaves out nodes with a lower joint probability; 0 in the papers
    draft_vocabulary  tokens that are scored: stored (those kept with the heads, if any) or whole
    """

    modules: str = ""
    kind: Kind = "hydra"
    heads: int = 4
    blocks: int = 1
    tree: str = "dynamic"
    width: int = 4
    nodes: int = 8
    confidence: float = 0.1
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    training = TrainingDefaults(rate=2e-3, warmup=0.05, epochs=4.0)
    trained_for = ("kind",)
    at_most = "heads"
    _module: Heads = field(init=False, repr=False, compare=False)
    _lm_head: Linear = field(init=False, repr=False, compare=False)
    _normed: Tensor = field(init=False, repr=False, compare=False)
    _memories: Tensor = field(init=False, repr=False, compare=False)
    _first: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "heads", "blocks", most=32)
        check_options(self, 1, "width", "nodes", most=MOST_NODES)
        check_options(self, 0, "confidence", most=1)
        if self.tree != "dynamic":
            read_widths(self.tree, self.heads, "dynamic")
            refuse_options(self, f"with tree={self.tree}", "width", "nodes", "confidence")

    def build(self, info: TargetInfo, lm_head: Tensor) -> Heads:
        with torch.device(lm_head.device):
            return fresh_heads(self.kind, info.hidden_size, self.heads, self.blocks)

    def loss(self, module: Heads, batch: TrainingBatch) -> Tensor:
        return sequential_loss(module, batch, self.heads)

    def yardsticks(self, module: Heads, batch: TrainingBatch) -> Mapping[str, Tally]:
        return sequential_yardsticks(module, batch, self.heads)

    def prepare(self, target: Target) -> None:
        self._module = load_modules(self, "sequential", target, self.modules)
        in_form(self._module, target.form)
        self.load_vocabulary(self.modules, target.vocabulary)
        self._lm_head = self.vocabulary.lm_head(target)

    def start(self, context: Context) -> int:
        state = self.prefill(context)
        self._normed = context.target.final_norm(state)
        return context.pick(context.target.head(state))

    def draft(self, context: Context, budget: int) -> Draft:
        depth = min(self.heads, budget)
        if depth < 1:
            return Draft()
        expand = partial(self._log_probs, context)
        if self.tree == "dynamic":
            return grow_likeliest(expand, self.width, depth, self.nodes, self.vocabulary, self.confidence)
        shape = wide_tree(read_widths(self.tree, self.heads, "dynamic")[:depth])
        return grow_shape(partial(self._probs, context), shape, Picks(context.sampling, context.generator))

    def _logits(self, context: Context, frontier: Frontier) -> Tensor:
        """[rows, k] behind a frontier. Growers go level by level, so parents are nodes of the frontier before."""
        if frontier.depth == 0:
            tokens, memories, self._first = tuple(context.tokens[-1:]), self._module.start(self._normed), 0
        else:
            tokens, memories = frontier.tokens, self._memories[[parent - self._first for parent in frontier.parents]]
            self._first += len(self._memories)
        positions = [len(context.tokens) - 1 + frontier.depth] * len(tokens)
        embedded = context.target.embed(tokens, positions)
        self._memories, read = self._module.step(frontier.depth, memories, embedded)
        return self._lm_head(read)

    def _log_probs(self, context: Context, frontier: Frontier) -> Tensor:
        return wide(self._logits(context, frontier)).log_softmax(-1)

    def _probs(self, context: Context, frontier: Frontier) -> Tensor:
        draft_logits = self._logits(context, frontier)
        return node_probs(draft_logits, context.sampling, self.vocabulary, context.target.vocabulary)

    def observe(self, context: Context, outcome: Outcome) -> None:
        row = 1 + outcome.verdict.path[-1] if outcome.verdict.path else 0
        self._normed = context.target.final_norm(outcome.states[row : row + 1])
