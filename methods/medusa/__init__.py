"""Draft a tree with extra heads on the target's last state; each head predicts a token further ahead.

Cai et al.: Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, 2024, arXiv 2401.10774:
heads, static tree, typical acceptance, training with a frozen target (Medusa-1). The heads read the state of the last
accepted row. Ours: 4 nodes; soft labels (heads.py); whole paths are measured where training chooses the tree; assumed
shares for published heads, which were not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.trees import Path, pick, read_widths, wide_tree
from benchctl.decoding.method import Context, Exactness, Outcome, Speculative, refuse_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.folders import FACTS, load_modules, read_facts, trained_options
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch
from benchctl.decoding.verify import Verdict, verify_typical
from benchctl.errors import UserError

from .heads import KEPT_NODES, Heads, fresh_heads, heads_loss, path_shares, sparse_plan, top_shares, tree_findings
from .published import read_published


@dataclass
class Medusa(Speculative, Trainable, UsesDraftVocabulary):
    """Draft a tree with extra heads on the target's last state; one target pass verifies it.

    modules         folder of the trained heads, or of published heads in the authors' format
    heads           heads, and depth of the tree; 3 as in the authors' code; each costs as much as the LM head
    head            own (each with an LM head of its own) or shared (all use the target's; the authors' version 2)
    tree            sparse (the ``nodes`` most frequent paths in training) or widths such as 4x2x1; 1x1x1 is a chain
    nodes           rows of a sparse tree; 63 in the paper, for GPUs; few here, because rows cost time on a CPU
    accept          exact (argmax, or rejection when sampling) or typical (lossy: p above min(epsilon, delta exp(-H)))
    epsilon, delta  constants of accept=typical
    draft_vocabulary  tokens that heads score: stored (those kept with the heads, if any) or whole
    """

    modules: str = ""
    heads: int = 3
    head: Literal["own", "shared"] = "own"
    tree: str = "sparse"
    nodes: int = 4
    accept: Literal["exact", "typical"] = "exact"
    epsilon: float = 0.09
    delta: float = 0.3
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    demo = ("heads=2",)
    trained_for = ("head",)
    at_most = "heads"
    _heads: Heads = field(init=False, repr=False, compare=False)
    _paths: tuple[Path, ...] = field(default=(), init=False, repr=False, compare=False)
    _state: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, most in (("heads", KEPT_NODES), ("nodes", KEPT_NODES), ("epsilon", 1), ("delta", 1)):
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive, and {most} at most")
        if self.tree != "sparse":
            read_widths(self.tree, self.heads, "sparse")
            refuse_options(self, f"with tree={self.tree}", "nodes")
        if self.accept == "exact":
            refuse_options(self, "with accept=exact", "epsilon", "delta")

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if self.accept == "exact" else "lossy"

    @property
    def reason(self) -> str:  # type: ignore[override]
        return "" if self.accept == "exact" else "typical acceptance keeps tokens more often than the target would"

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        return fresh_heads(lm_head, self.heads, self.head == "shared")

    def loss(self, module: nn.Module, batch: TrainingBatch) -> Tensor:
        return heads_loss(module, batch)

    def yardsticks(self, module: nn.Module, batch: TrainingBatch) -> Mapping[str, Tally]:
        return top_shares(module, batch)

    def findings(self, module: nn.Module, batches: Iterable[TrainingBatch]) -> Mapping[str, Any]:
        return {"tree": tree_findings(path_shares(module, batches))}

    def published(self, folder: str) -> Mapping[str, Any] | None:
        heads = read_published(folder)
        return None if heads is None else {"heads": heads.heads, "head": "shared" if heads.shared else "own"}

    def prepare(self, target: Target) -> None:
        trained_options(self, "medusa", self.modules)
        self.load_vocabulary(self.modules, target.vocabulary)
        findings: Mapping[str, Any] = {}
        if (published := read_published(self.modules)) is not None:
            weights = published.fit(target, self.heads)
        else:
            module = load_modules(self, "medusa", target, self.modules)
            weights, findings = module.state_dict(), read_facts(self.modules).findings
        shared = self.vocabulary.lm_head(target) if self.head == "shared" else None
        self._heads = Heads(weights, self.heads, target.form, self.vocabulary, shared)
        ids = self.vocabulary.ids
        self._paths = self._plan(findings, target.vocabulary if ids is None else len(ids))

    def _plan(self, findings: Mapping[str, Any], vocabulary: int) -> tuple[Path, ...]:
        """The tree's nodes; a head has no more picks than tokens that it scores."""
        if self.tree != "sparse":
            return wide_tree([min(width, vocabulary) for width in read_widths(self.tree, self.heads, "sparse")])
        try:
            return sparse_plan(findings.get("tree", {}), self.heads, self.nodes, vocabulary)
        except (ValueError, TypeError) as error:
            message = f"{self.modules}: {FACTS} holds no tree ({error}); train the heads again"
            raise UserError("no_tree", message) from error

    def start(self, context: Context) -> int:
        self._state = self.prefill(context)
        return context.pick(context.target.head(self._state))

    def draft(self, context: Context, budget: int) -> Draft:
        depth = min(budget, len(self._paths[-1]))
        if depth < 1:
            return Draft()
        draft_logits = self._heads(context.target.final_norm(self._state), depth)
        places = draft_logits.topk(1 + max(map(max, self._paths))).indices.tolist()
        return pick(self._paths, [list(map(self.vocabulary.token, of_head)) for of_head in places])

    def observe(self, context: Context, outcome: Outcome) -> None:
        row = 1 + outcome.verdict.path[-1] if outcome.verdict.path else 0
        self._state = outcome.states[row : row + 1]

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        if self.accept == "exact":
            return super().verify(context, draft, target_logits)
        rows = context.sampling.rows(target_logits)
        return verify_typical(draft, rows, context.generator, self.epsilon, self.delta)
