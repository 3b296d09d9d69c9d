"""Leave the target early, at the first layer that is confident enough.

Schuster et al.: Confident Adaptive Language Modeling (CALM), 2022, arXiv 2207.07061: confidence measures of section
3.5, state propagation of section 3.1. ``deferred_exact`` (missing layers computed later) is the just-in-time rule of
DEED, Tang et al. 2023, arXiv 2311.08623. mode=draft is ours: the exits propose, the full model verifies, as in
LayerSkip (2404.16710).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from benchctl.decoding.adaptive import AdaptiveDepth, View
from benchctl.decoding.draft import Draft
from benchctl.decoding.exits import agreements, balanced_loss, chance, exit_yardsticks
from benchctl.decoding.kv_fill import copy_h, deferred_exact
from benchctl.decoding.method import Context, Exactness, Speculative, Step
from benchctl.decoding.modules import load_modules
from benchctl.decoding.target import Target, TargetInfo
from benchctl.decoding.trainable import Lesson, Tally, Trainable
from benchctl.errors import UserError


@dataclass
class EarlyExit(AdaptiveDepth, Speculative, Trainable):
    """Exit where confidence reaches ``threshold``; a threshold above 1 never exits, 0 exits at the first layer.

    mode          exit (lossy) or draft (exits propose, the full model verifies: exact)
    confidence    softmax_gap (top1 - top2), softmax_max, state_cosine (of the last two states), classifier (trained)
    min_exit      first layer that may be an exit; 0 takes half of the depth (ours; lower exits rarely agree)
    exits         exit layers joined by +, such as 4+8; empty means every layer from min_exit
    kv_policy     what skipped layers hold of a token: propagate or deferred_exact (mode=draft always defers)
    draft_tokens  tokens drafted per verification in mode=draft
    modules       folder of the trained classifiers, one per exit layer
    """

    mode: Literal["exit", "draft"] = "exit"
    confidence: Literal["softmax_gap", "softmax_max", "state_cosine", "classifier"] = "softmax_gap"
    threshold: float = 0.9
    min_exit: int = 0
    exits: str = ""
    kv_policy: Literal["propagate", "deferred_exact"] = "propagate"
    draft_tokens: int = 4
    modules: str = ""
    _classifiers: nn.Module = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.threshold >= 0.0:  # nan too
            raise ValueError(f"threshold is {self.threshold}; it must not be negative")
        if self.draft_tokens < 1:
            raise ValueError(f"draft_tokens is {self.draft_tokens}; it must be at least 1")
        if self.min_exit < 0:
            raise ValueError(f"min_exit is {self.min_exit}; it must not be negative")
        if self.exits and not all(part.isdecimal() and int(part) > 0 for part in self.exits.split("+")):
            raise ValueError(f"exits is {self.exits!r}; join layer numbers by +, such as 4+8")
        if self.exits and self._chosen()[-1] < self.min_exit:
            raise ValueError(f"every exit of {self.exits} lies below min_exit {self.min_exit}; none would be left")
        if self.modules and not self.needs_modules:
            raise ValueError(f"confidence={self.confidence} has no modules; they are for confidence=classifier")

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if self.mode == "draft" else "lossy"

    @property
    def reason(self) -> str:  # type: ignore[override]
        return "" if self.mode == "draft" else "tokens that leave early are not verified by the full target"

    @property
    def compares_states(self) -> bool:  # type: ignore[override]
        return self.confidence == "state_cosine"

    @property
    def needs_modules(self) -> bool:
        return self.confidence == "classifier"

    def unsupported(self, target: Target | TargetInfo) -> str | None:
        beyond = [layer for layer in self._chosen() if layer >= target.layers]
        if beyond or self.min_exit >= target.layers:
            return f"exit {max([*beyond, self.min_exit])} is not below the target's {target.layers} layers"
        return None

    def exit_layers(self, target: Target | TargetInfo) -> tuple[int, ...]:
        first = self.min_exit or max(1, target.layers // 2)
        return tuple(layer for layer in self._chosen() or range(first, target.layers) if layer >= self.min_exit)

    def _chosen(self) -> tuple[int, ...]:
        return tuple(sorted({int(part) for part in self.exits.split("+")})) if self.exits else ()

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        """For each exit a linear score of its state, named after its layer."""
        if not self.needs_modules:
            raise UserError(f"confidence={self.confidence} has nothing to train; early_exit[confidence=classifier] has")
        if problem := self.unsupported(info):
            raise UserError(f"early_exit cannot be trained for this target: {problem}")
        score = partial(nn.Linear, info.hidden_size, 1, device=lm_head.device)
        return nn.ModuleDict({str(layer): score() for layer in self.exit_layers(info)})

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        """Of all exits together; a token's weight is that of the one it must predict."""
        scores, weights = _scores(module, lesson), lesson.ahead(1).weights
        right = agreements(lesson, tuple(scores))
        return torch.stack([balanced_loss(scores[layer], right[layer], weights) for layer in scores]).sum()

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        return exit_yardsticks(_scores(module, lesson), lesson)

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> None:
        if self.needs_modules:
            self._classifiers = load_modules(self, "early_exit", target, self.modules)

    def decide(self, context: Context, view: View) -> bool:
        if self.confidence != "classifier":
            return view.confidence(self.confidence) >= self.threshold
        score = self._classifiers.get_submodule(str(view.layer))(view.state)
        return chance(score) >= self.threshold

    def draft(self, context: Context, budget: int) -> Draft:
        return self.draft_by_exits(context, min(self.draft_tokens, budget))

    def step(self, context: Context) -> Step:
        if self.mode == "draft":
            return Speculative.step(self, context)
        return self.exit_step(context, copy_h if self.kv_policy == "propagate" else deferred_exact)


def _scores(module: nn.Module, lesson: Lesson) -> dict[int, Tensor]:
    """Scores [rows, n] of each exit layer."""
    dtype = next(module.parameters()).dtype
    return {int(name): score(lesson.states[int(name)].to(dtype))[..., 0] for name, score in module.named_children()}
