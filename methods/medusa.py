"""Draft with extra heads on the target's last state, each for a token further ahead, and verify a tree of their picks.

Cai et al.: Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, 2024, arXiv 2401.10774:
heads, static tree, typical acceptance, training with the target frozen (Medusa-1). The heads read the state of the last
accepted row, so a draft costs no pass of its own. Ours: 15 nodes, and what is assumed of heads that nobody measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.draft import Draft
from benchctl.decoding.kernels import Linear, may_copy
from benchctl.decoding.method import Context, Exactness, Outcome, Speculative
from benchctl.decoding.modules import load_modules, read_facts
from benchctl.decoding.target import Target, TargetInfo
from benchctl.decoding.trainable import Lesson, Tally, Trainable
from benchctl.decoding.trees import Path, pick, rank_shares, read_widths, sparse_tree, wide_tree
from benchctl.decoding.verify import Verdict, verify_typical

_FADE = 0.8  # what a head counts in the loss, as a share of the head before
_TOPS = {1: 0.5, 2: 0.6, 4: 0.7, 8: 0.8}  # shares assumed of the first head; each further one _FADE of the one before
_yardstick = "head_{}_top{}".format


class Head(nn.Module):
    """W2 (h + SiLU(W1 h)): W1 starts as zero and W2 as a copy of the LM head, so a fresh head says the next token."""

    def __init__(self, lm_head: Tensor) -> None:
        super().__init__()
        vocabulary, width = lm_head.shape
        self.w1 = nn.Linear(width, width, bias=False, device=lm_head.device)
        self.w2 = nn.Linear(width, vocabulary, bias=False, device=lm_head.device)
        with torch.no_grad():
            self.w1.weight.zero_()
            self.w2.weight.copy_(lm_head)

    def forward(self, final: Tensor) -> Tensor:
        return _run(self.w1, self.w2, final.to(self.w1.weight.dtype))


def _run(w1: Callable[[Tensor], Tensor], w2: Callable[[Tensor], Tensor], final: Tensor) -> Tensor:
    """Draft logits [..., vocabulary] for final states [..., width]."""
    return w2(final + F.silu(w1(final)))


@dataclass
class Medusa(Speculative, Trainable):
    """Draft a tree of what ``heads`` heads expect of the next tokens; one pass of the target verifies it.

    modules  folder of the trained heads
    heads    heads, and depth of the tree; 3, as the authors' code trains: each costs as much as the LM head
    tree     sparse (the ``nodes`` likeliest by the heads' measured shares) or widths: 4x2x1; 1x1x1 is a chain
    nodes    rows of a sparse tree; 63 in the paper, for GPUs: here 15, as 16 rows are cheap on a CPU too
    accept   exact (argmax, rejection when sampling) or typical (lossy: p above min(epsilon, delta exp(-H)))
    """

    modules: str = ""
    heads: int = 3
    tree: str = "sparse"
    nodes: int = 15
    accept: Literal["exact", "typical"] = "exact"
    epsilon: float = 0.09
    delta: float = 0.3
    _layers: Sequence[tuple[Linear, Linear]] = field(default=(), init=False, repr=False, compare=False)
    _paths: tuple[Path, ...] = field(default=(), init=False, repr=False, compare=False)
    _state: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("heads", "nodes", "epsilon", "delta"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.tree != "sparse":
            read_widths(self.tree, self.heads)

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if self.accept == "exact" else "lossy"

    @property
    def reason(self) -> str:  # type: ignore[override]
        return "" if self.accept == "exact" else "typical acceptance keeps tokens more often than the target says them"

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        return nn.ModuleList(Head(lm_head) for _ in range(self.heads))

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        """Cross-entropy of head i = 1, 2, .. to the token i + 1 ahead, each weighted _FADE ** i."""
        total = lesson.final.new_zeros((), dtype=torch.float32)
        for number, head in enumerate(module.children(), 1):
            tokens, weights = lesson.ahead(number + 1)
            losses = F.cross_entropy(head(lesson.final).flatten(0, 1).float(), tokens.flatten(), reduction="none")
            total = total + _FADE**number * (losses * weights.flatten()).sum()
        return total

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        """How often the token is among a head's first picks, such as ``head_1_top4``: what sparse trees are made of."""
        found: dict[str, Tally] = {}
        for number, head in enumerate(module.children(), 1):
            tokens, weights = lesson.ahead(number + 1)
            draft_logits = head(lesson.final)
            ranked = draft_logits.topk(min(max(_TOPS), draft_logits.shape[-1])).indices
            hits = (ranked == tokens.unsqueeze(-1)) * weights.unsqueeze(-1)
            found |= {_yardstick(number, k): Tally(float(hits[..., :k].sum()), float(weights.sum())) for k in _TOPS}
        return found

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> None:
        weights = list(load_modules(self, "medusa", target, self.modules).parameters())
        fast = may_copy(sum(weight.nbytes for weight in weights))
        linears = [Linear(weight, None, fast) for weight in weights]
        self._layers = list(zip(linears[::2], linears[1::2], strict=True))
        self._paths = self._plan(read_facts(self.modules).yardsticks, target.vocabulary)

    def _plan(self, yardsticks: Mapping[str, float], vocabulary: int) -> tuple[Path, ...]:
        """The tree's nodes; a head has no more picks than there are tokens."""
        if self.tree != "sparse":
            return wide_tree([min(width, vocabulary) for width in read_widths(self.tree, self.heads)])
        numbers = range(1, self.heads + 1)
        shares = {_yardstick(number, k): _FADE ** (number - 1) * top for number in numbers for k, top in _TOPS.items()}
        shares |= yardsticks
        ranks = [rank_shares({k: shares[_yardstick(number, k)] for k in _TOPS}) for number in numbers]
        return sparse_tree([found[:vocabulary] for found in ranks], self.nodes)

    def start(self, context: Context) -> int:
        self._state = self.prefill(context)
        return context.pick(context.target.head(self._state))

    def draft(self, context: Context, budget: int) -> Draft:
        depth = min(budget, len(self._paths[-1]))
        if depth < 1:
            return Draft()
        final = context.target.final_norm(self._state)
        draft_logits = torch.cat([_run(*layers, final) for layers in self._layers[:depth]])
        return pick(self._paths, draft_logits.topk(1 + max(map(max, self._paths))).indices.tolist())

    def observe(self, context: Context, outcome: Outcome) -> None:
        row = 1 + outcome.verdict.path[-1] if outcome.verdict.path else 0
        self._state = outcome.states[row : row + 1]

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        if self.accept == "exact":
            return super().verify(context, draft, target_logits)
        probs = context.sampling.probs(target_logits)
        return verify_typical(draft, probs, context.generator, self.epsilon, self.delta)
