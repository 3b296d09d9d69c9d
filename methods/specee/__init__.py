"""Exit where a small predictor trusts a layer's view of a few drafted tokens, and the full head then names one of them.

SpecEE: Xu et al. 2025, arXiv 2504.08850. At each exit the LM head scores four drafted tokens only; a predictor reads
these logits, their probabilities among themselves, and how these changed. If it is sure, the full head is asked, and
the token leaves if the argmax is one of the four. Ours: the drafter is a trained exit at a low layer, which needs no
cache, instead of an EAGLE layer; keys and values of skipped layers are those of early_exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from torch import Tensor

from benchctl.decoding.adaptive import AdaptiveDepth, View, copy_h, deferred_exact
from benchctl.decoding.method import Context, MonotoneThreshold, check_options, refuse_options
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.exits import ExitHead, chance, read_exits, refuse_other_exits
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.trainable import SecondStage, Tally, Trainable, TrainingBatch, TrainingDefaults

from .guided import TOKENS, Guided, features, probs_of


@dataclass
class SpecEE(AdaptiveDepth, Trainable, MonotoneThreshold):
    """Exit at the first exit where the predictor is sure and the likeliest token is one of four drafted ones.

    predictor  trained, or none: ask the full head at every exit
    threshold  of the predictor, from 0 to 1; above 1: never exit
    guide      layer whose trained exit drafts the four tokens; 0: an eighth of the depth
    exits      exit layers joined by +, such as 4+8; empty: those of the modules, else every eighth of the depth
    kv_policy  keys and values of skipped layers: propagate or deferred_exact, as in early_exit
    modules    folder of the trained drafter and predictors
    """

    predictor: Literal["trained", "none"] = "trained"
    threshold: float = 0.5
    guide: int = 0
    exits: str = ""
    kv_policy: Literal["propagate", "deferred_exact"] = "propagate"
    modules: str = ""
    exactness = "lossy"
    reason = "tokens that exit early are not verified by the full target"
    trained_for = ("guide",)
    _module: Guided = field(init=False, repr=False, compare=False)
    _draft: ExitHead = field(init=False, repr=False, compare=False)
    _trained: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    _table: Tensor = field(init=False, repr=False, compare=False)
    _ids: Tensor = field(init=False, repr=False, compare=False)  # of this token: drafted, their head, and
    _head: Linear = field(init=False, repr=False, compare=False)  # their probabilities at the exit before
    _before: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 0, "threshold", "guide")
        read_exits(self.exits)
        if self.predictor == "none":
            refuse_options(self, "with predictor=none", "threshold")

    @property
    def second_stage(self) -> SecondStage:
        """The predictors: what they see is known once the drafter stands still."""
        needed, first = self.predictor == "trained", "specee[predictor=none]"
        return SecondStage("predictor", "predictor=trained", needed, TrainingDefaults(), first)

    def guide_layer(self, layers: int) -> int:
        return self.guide or max(1, layers // 8)

    def exit_layers(self, target: Target | TargetInfo) -> tuple[int, ...]:
        spacing = max(1, target.layers // 8)
        first = self.guide_layer(target.layers) + spacing
        return read_exits(self.exits) or self._trained or tuple(range(first, target.layers, spacing))

    def unsupported(self, target: TargetInfo) -> str | None:
        if target.vocabulary < TOKENS:
            return f"it drafts {TOKENS} tokens, and the target has a vocabulary of {target.vocabulary}"
        guide, exits = self.guide_layer(target.layers), self.exit_layers(target)
        if not exits or not guide < exits[0] <= exits[-1] < target.layers:
            listed = "+".join(map(str, exits)) or "none"
            return f"exits {listed} do not lie between the guide {guide} and the target's {target.layers} layers"
        return None

    def build(self, info: TargetInfo, lm_head: Tensor) -> Guided:
        predicts, guide = self.predictor == "trained", self.guide_layer(info.layers)
        exits = self.exit_layers(info) if predicts else ()
        module = Guided(info.hidden_size, guide, exits, lm_head.device)
        module.guide.requires_grad_(not predicts)
        return module

    def loss(self, module: Guided, batch: TrainingBatch) -> Tensor:
        return module.loss(batch)

    def yardsticks(self, module: Guided, batch: TrainingBatch) -> Mapping[str, Tally]:
        return module.yardsticks(batch)

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        if there := read_exits(str(trained.get("exits", ""))):
            refuse_other_exits(folder, read_exits(self.exits) or there, there)

    def as_trained(self, options: Mapping[str, Any]) -> Self:
        return replace(self, exits=str(options.get("exits", "")))

    def prepare(self, target: Target) -> None:
        module: Guided = load_modules(self, "specee", target, self.modules)
        if self.predictor == "trained":
            self._trained = module.predictor.numbers
            refuse_other_exits(self.modules, self.exit_layers(target), self._trained)
        self._module, (guide,) = module, module.guide.layers
        self._draft = module.guide.heads(target.final_norm, target.lm_head)[guide]
        self._table = target.head_table()

    def climb(self, context: Context) -> View:
        stream, target = context.stream, context.target
        stream.advance(self.guide_layer(target.layers))
        self._ids, self._before = self._draft(stream.states[-1:])[0].topk(TOKENS).indices, None
        weight, bias = self._table[self._ids], target.lm_head.bias
        if target.form == "float16":
            weight = weight.half()  # as the LM head rounds it
        # Of so few rows the plain product is over before others have packed them.
        self._head = target.lm_head.like(weight.to(target.dtype), None if bias is None else bias[self._ids], "plain")
        return super().climb(context)

    def decide(self, context: Context, view: View) -> bool:
        if self.predictor == "trained":
            seen = features(self._head(context.target.final_norm(view.state)), self._before)
            self._before = probs_of(seen)
            if chance(self._module.predictor.of(view.layer)(seen)) < self.threshold:
                return False
        return bool((self._ids == view.logits.argmax()).any())

    def step(self, context: Context) -> tuple[int]:
        return self.exit_step(context, copy_h if self.kv_policy == "propagate" else deferred_exact)
