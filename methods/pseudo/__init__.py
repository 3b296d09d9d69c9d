"""Draft by rows that are no tokens: they run behind each candidate, in the pass that verifies it.

The logits of those behind the last accepted row are the next draft: a step runs the target once and nothing else.
Parallel prompt decoding (Chen et al. 2024, arXiv 2405.18628), Hidden Transfer (Wu et al. 2024, 2404.12022) and
Speculative Streaming (Bhendawade et al. 2024, 2402.11131); rows.py says what the kinds compute. Ours: as many
pseudo-rows behind every candidate down to a depth, a tree grown by joint probability, lossless verification. In our
port of streaming the target is frozen and adapters act on the pseudo-rows alone; the paper tunes the target itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import Picks, grow_likeliest, grow_shape, node_probs, wide
from benchctl.decoding.drafting.trees import MOST_NODES, read_widths, wide_tree
from benchctl.decoding.method import Context, Outcome, Speculative, check_options, refuse_options
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.adapters import unsupported_layers
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults

from .rows import Kind, PseudoRows, Riders, by_depth
from .training import pseudo_loss, pseudo_yardsticks


@dataclass
class Pseudo(Speculative, Trainable, UsesDraftVocabulary):
    """Draft by pseudo-rows behind each candidate, which run in the pass that verifies it.

    modules     folder of the trained pseudo-rows
    kind        prompt (trained vectors), transfer (products of a state) or streaming (these and adapters)
    rows        pseudo-rows behind each candidate, and depth of the draft
    depth       deeper candidates carry no pseudo-rows: behind one that is accepted last nothing is drafted
    layer       layers that pseudo-rows of transfer and streaming leave out; 0: half of the target's
    rank        of the adapters of streaming
    tree        dynamic (the likeliest paths) or widths such as 4x2x1; 1x1x1 is a chain
    width       tokens of each pseudo-row that a dynamic tree considers
    nodes       candidates of a dynamic tree; with three pseudo-rows a step runs up to 4 + 4 * nodes rows
    confidence  a dynamic tree leaves out candidates with a lower joint probability
    share       in training, share of the tokens that carry pseudo-rows at a step
    draft_vocabulary  tokens that are scored: stored (those kept with the modules, if any) or whole
    """

    modules: str = ""
    kind: Kind = "prompt"
    rows: int = 3
    depth: int = 3
    layer: int = 0
    rank: int = 32
    tree: str = "dynamic"
    width: int = 4
    nodes: int = 4
    confidence: float = 0.1
    share: float = 0.25
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    training = TrainingDefaults(rate=1e-2, warmup=0.05, epochs=1.0)
    trained_for = ("kind", "layer")
    at_most = "rows"
    can_combine = False
    _riders: Riders = field(init=False, repr=False, compare=False)
    _lm_head: Linear = field(init=False, repr=False, compare=False)
    _behind: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "rows", "rank", most=64)
        check_options(self, 0, "depth", "layer")
        check_options(self, 1, "width", "nodes", most=MOST_NODES)
        if self.depth > max(self.rows, type(self).depth):
            raise ValueError(f"depth is {self.depth}, and no draft is deeper than the {self.rows} rows")
        check_options(self, 0, "confidence", most=1)
        check_options(self, 0.01, "share", most=1)
        if self.kind != "streaming":
            refuse_options(self, f"with kind={self.kind}", "rank", *(("layer",) if self.kind == "prompt" else ()))
        if self.tree != "dynamic":
            read_widths(self.tree, self.rows, "dynamic")
            refuse_options(self, f"with tree={self.tree}", "width", "nodes", "confidence")

    def unsupported(self, target: TargetInfo) -> str | None:
        too_high = f"layer {self.layer} is not below the target's {target.layers} layers; give a lower one"
        return unsupported_layers(target) or (None if self.layer < target.layers else too_high)

    def build(self, info: TargetInfo, lm_head: Tensor) -> PseudoRows:
        layer = 0 if self.kind == "prompt" else self.layer or info.layers // 2
        return PseudoRows(self.kind, info, self.rows, layer, self.rank, lm_head)

    def loss(self, module: PseudoRows, batch: TrainingBatch) -> Tensor:
        return pseudo_loss(module, batch, self.share)

    def yardsticks(self, module: PseudoRows, batch: TrainingBatch) -> Mapping[str, Tally]:
        return pseudo_yardsticks(module, batch)

    def prepare(self, target: Target) -> None:
        module = load_modules(self, "pseudo", target, self.modules)
        self.load_vocabulary(self.modules, target.vocabulary)
        self._riders, self._lm_head = Riders(module, target), self.vocabulary.lm_head(target)

    def start(self, context: Context) -> int:
        stream, last = context.stream, len(context.tokens) - 1
        stream.push(context.tokens)
        self._riders.run(stream, {last: self._count(context, 0)})
        self._behind, state = self._riders.behind(last), stream.states[last : last + 1]
        stream.keep(range(last + 1))
        return context.pick(context.target.head(state))

    @property
    def drafts_from_text(self) -> bool:  # type: ignore[override]
        """Behind a candidate without pseudo-rows nothing is drafted in the next step."""
        return self.depth >= self.rows

    def _count(self, context: Context, depth: int) -> int:
        """Pseudo-rows behind a candidate so deep: no more than the next draft could use if it is accepted last."""
        return min(self.rows, context.remaining_tokens - depth - 2) if depth <= self.depth else 0

    def draft(self, context: Context, budget: int) -> Draft:
        count = min(len(self._behind), budget)
        if count < 1:
            return Draft()
        draft_logits = self._lm_head(context.target.final_norm(self._behind[:count]))
        if self.tree == "dynamic":
            expand = partial(by_depth, wide(draft_logits).log_softmax(-1))
            return grow_likeliest(expand, self.width, count, self.nodes, self.vocabulary, self.confidence)
        probs = node_probs(draft_logits, context.sampling, self.vocabulary, context.target.vocabulary)
        expand = partial(by_depth, probs)
        shape = wide_tree(read_widths(self.tree, self.rows, "dynamic")[:count])
        return grow_shape(expand, shape, Picks(context.sampling, context.generator))

    def run_draft(self, context: Context, root: int, draft: Draft) -> None:
        carriers = {root + 1 + row: self._count(context, depth) for row, depth in enumerate(draft.depths)}
        self._riders.run(context.stream, {root: self._count(context, 0)} | carriers)

    def observe(self, context: Context, outcome: Outcome) -> None:
        self._behind = self._riders.behind(outcome.kept_rows[-1])
