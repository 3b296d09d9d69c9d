"""Draft with one layer that continues the target's own features; one target pass verifies a chain or a tree.

EAGLE (Li et al. 2024, arXiv 2401.15077), EAGLE-2 (2406.16858) and EAGLE-3 (2503.01840). head.py says what the versions
read, training.py how they learn. Ours: 8 nodes and depth 4; the published sizes are for GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import Frontier, Picks, grow_likeliest, grow_shape, node_probs, wide
from benchctl.decoding.drafting.trees import MOST_NODES, read_widths, wide_tree
from benchctl.decoding.method import Context, Outcome, Speculative, check_options, refuse_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary, UsesDraftVocabulary
from benchctl.decoding.modules.folders import load_modules, trained_options
from benchctl.decoding.modules.published_layers import refuse_training_options, unsupported_published
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults

from .head import Drafter, EagleModule, LayerConfig, Sizes, Traits, default_taps
from .published import read_published
from .training import eagle_loss, eagle_yardsticks

_MOST_DEPTH = 32


@dataclass
class Eagle(Speculative, Trainable, UsesDraftVocabulary):
    """Draft with one layer on the target's features, which continues with its own states.

    modules       folder of a trained layer, or folder or hub id of a published one
    version       1 (EAGLE and EAGLE-2, chosen by `tree`), 3, or 3.1 (more norms)
    tree          dynamic (EAGLE-2: the likeliest nodes of all that were scored), chain, or widths such as 4x2x1
    draft_tokens  tokens of a chain, and depth of a dynamic tree
    width         nodes that continue at each depth of a dynamic tree, and children of each; 10 in the authors' code
    nodes         rows of a dynamic tree; 59 in the authors' code, for GPUs; few here, because rows cost time on a CPU
    confidence    a dynamic tree leaves out nodes with a lower joint probability; 0, as in the papers, none
    passes        in training, tokens ahead that the layer learns to draft; 7 in EAGLE-3
    head          of versions 3 and 3.1: trained, as in the paper, or target (the target's LM head: half of the weights)
    objective     in training, of version 1: eagle (one pass) or hass
    draft_vocabulary  tokens that are scored: stored (those kept with the modules, if any), or whole with version=1
    """

    modules: str = ""
    version: Literal["1", "3", "3.1"] = "3"
    tree: str = "dynamic"
    draft_tokens: int = 4
    width: int = 4
    nodes: int = 8
    confidence: float = 0.1
    passes: int = 3
    head: Literal["trained", "target"] = "trained"
    objective: Literal["eagle", "hass"] = "eagle"
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    training = TrainingDefaults(rate=2e-3, warmup=0.05, epochs=4.0)
    trained_for = ("version", "head")
    reads_features = True
    _drafter: Drafter = field(init=False, repr=False, compare=False)
    _unread: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens", most=_MOST_DEPTH)
        check_options(self, 1, "width", "nodes", most=MOST_NODES)
        check_options(self, 1, "passes")
        check_options(self, 0, "confidence", most=1)
        tree_widths(self.tree, 1)
        if self.tree != "dynamic":
            refuse_options(self, f"with tree={self.tree}", "width", "nodes", "confidence")
            if self.tree != "chain":
                refuse_options(self, f"with tree={self.tree}", "draft_tokens")
        if self._fused:
            refuse_options(self, f"with version={self.version}", "objective", "draft_vocabulary")
        else:
            refuse_options(self, "with version=1", "head")
            if self.objective == "eagle":
                refuse_options(self, "with version=1 and objective=eagle", "passes")

    @property
    def _fused(self) -> bool:
        """Whether the features are several layers' states, as in EAGLE-3."""
        return self.version in ("3", "3.1")

    def _taps(self, layers: int) -> tuple[int, ...]:
        return default_taps(layers) if self._fused else (layers,)

    def build(self, info: TargetInfo, lm_head: Tensor) -> EagleModule:
        taps = len(self._taps(info.layers)) if self._fused else 0
        head = self.vocabulary.of(lm_head.mT).mT
        with torch.device(lm_head.device):
            scored = len(head) if taps and self.head == "trained" else 0
            module = EagleModule(Sizes.of(info, taps, scored, self.version == "3.1"))
        module.start_from(head)
        return module

    def loss(self, module: EagleModule, batch: TrainingBatch) -> Tensor:
        passes = self.passes if self._fused or self.objective == "hass" else 1
        return eagle_loss(module, batch, self._taps(len(batch.states) - 1), passes, hass=self.objective == "hass")

    def yardsticks(self, module: EagleModule, batch: TrainingBatch) -> Mapping[str, Tally]:
        return eagle_yardsticks(module, batch, self._taps(len(batch.states) - 1), self.passes)

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        if read_published(folder) is not None:
            refuse_training_options(self, folder, "passes", "head", "objective", "draft_vocabulary")

    def published(self, folder: str) -> Mapping[str, Any] | None:
        published = read_published(folder)
        return None if published is None else {"version": published.version}

    def unsupported(self, target: TargetInfo) -> str | None:
        return unsupported_published(read_published(self.modules), target)

    def prepare(self, target: Target) -> None:
        trained_options(self, "eagle", self.modules)
        self.load_vocabulary(self.modules, target.vocabulary)
        if (published := read_published(self.modules)) is not None:
            module, traits, ids = published.load(target)
            self.vocabulary = DraftVocabulary(ids)
        else:
            module = load_modules(self, "eagle", target, self.modules)
            attention = target.blocks[0].attention
            layer = LayerConfig(target.info.hidden_size, attention.heads, attention.kv_heads, attention.head_dim)
            traits = Traits(layer, self._taps(target.layers), target.rotary, feeds_normed=self.version == "3.1")
        self._drafter = Drafter(module, traits, target, self.vocabulary)

    def start(self, context: Context) -> int:
        stream, taps = context.stream, self._drafter.taps
        stream.taps = tuple(sorted(set(taps)))
        first = super().start(context)
        self._unread = dict(zip(stream.taps, stream.features, strict=True))
        self._drafter.start(context.prompt_tokens + context.limit_tokens)
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        depth = min(self.draft_tokens, budget)
        if budget < 1:
            return Draft()
        drafter = self._drafter
        drafter.read([self._unread[tap] for tap in drafter.taps], context.tokens[drafter.length + 1 :])
        self._unread = {}
        if self.tree == "dynamic":
            sizes = (self.width, depth, self.nodes)
            return grow_likeliest(self._log_probs, *sizes, self.vocabulary, self.confidence)
        picks = Picks(context.sampling, context.generator)
        shape = wide_tree(tree_widths(self.tree, depth)[:budget])
        return grow_shape(partial(self._probs, context), shape, picks)

    def _log_probs(self, frontier: Frontier) -> Tensor:
        return wide(self._drafter(frontier)).log_softmax(-1)

    def _probs(self, context: Context, frontier: Frontier) -> Tensor:
        return node_probs(self._drafter(frontier), context.sampling, self.vocabulary, context.target.vocabulary)

    def observe(self, context: Context, outcome: Outcome) -> None:
        stream = context.stream
        kept = torch.tensor(outcome.kept_rows, device=context.target.device)
        for tap, feature in zip(stream.taps, stream.features, strict=True):
            rows = feature.index_select(0, kept)
            self._unread[tap] = torch.cat((self._unread[tap], rows)) if tap in self._unread else rows


def tree_widths(tree: str, depth: int) -> tuple[int, ...]:
    """Children per node at each depth of a tree that is not dynamic; a chain has ``depth`` times one."""
    return (1,) * depth if tree in ("chain", "dynamic") else read_widths(tree, _MOST_DEPTH, "dynamic or chain")
