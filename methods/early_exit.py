"""Exit from the target at the first layer that is confident enough.

Schuster et al.: Confident Adaptive Language Modeling (CALM), 2022, arXiv 2207.07061: confidence measures and decay of
section 3.5, state propagation of section 3.1. Varshney et al.: LITE, 2023, arXiv 2310.18581: trained exits, at every
eighth of the depth from a quarter on; ours are modules next to a frozen target. deferred_exact: DEED, Tang et al. 2023,
arXiv 2311.08623. mode=draft (ours): the exits draft and the full model verifies, as in LayerSkip (2404.16710).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.adaptive import KvFill, View, copy_h, deferred_exact
from benchctl.decoding.method import Context, PlainDrafter, check_options, refuse_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.exits import (
    ExitModule,
    ExitPolicy,
    Exits,
    chance,
    decayed,
    eighths,
    exits_loss,
    read_exits,
)
from benchctl.decoding.modules.losses import agreement_loss
from benchctl.decoding.modules.trainable import Numbered, SecondStage, Trainable, TrainingBatch, TrainingDefaults


@dataclass
class EarlyExit(ExitPolicy, Trainable):
    """Exit at the first layer whose confidence reaches ``threshold``.

    mode          exit (lossy) or draft (exits draft, the full model verifies: exact)
    head          target (its own norm and head at every exit) or trained (a small module before them)
    confidence    softmax_gap (top1 - top2), softmax_max, state_cosine (of the last two states), classifier (trained)
    threshold     confidence that a token needs to exit; 0 exits at the first exit, above 1 never
    decay         lowers the threshold along the answer: 4 in the paper, 0 keeps it constant
    min_exit      lowest layer that may be an exit; 0: half of the depth for head=target (ours)
    exits         exit layers joined by +, such as 4+8; empty: all exits of the modules, else every layer from min_exit
                  (in training of head=trained: every eighth of the depth from a quarter on)
    kv_policy     keys and values of skipped layers: propagate or deferred_exact (mode=draft always defers)
    draft_tokens  tokens drafted per verification in mode=draft
    rank, alpha   inner units of a trained exit, and its scale: its output is multiplied by alpha / rank (ours)
    modules       folder of the trained exits and classifiers
    draft_vocabulary  tokens that exits score in mode=draft: stored (those kept with the modules, if any) or whole;
                  confidences are shares of these tokens
    """

    mode: Literal["exit", "draft"] = "exit"
    head: Literal["target", "trained"] = "target"
    confidence: Literal["softmax_gap", "softmax_max", "state_cosine", "classifier"] = "softmax_gap"
    threshold: float = 0.9
    decay: float = 0.0
    min_exit: int = 0
    exits: str = ""
    kv_policy: Literal["propagate", "deferred_exact"] = "propagate"
    draft_tokens: int = 4
    rank: int = 64
    alpha: float = 256.0
    modules: str = ""
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    supports_encoder_decoder = True
    demo = ("head=trained,confidence=classifier,threshold=0.6,exits=8+12",)
    trained_for = ("alpha",)
    _classifiers: Numbered[nn.Linear] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drafts:
            refuse_options(self, "with mode=draft", "kv_policy")
        check_options(self, 0, "min_exit")
        if self.exits and read_exits(self.exits)[-1] < self.min_exit:
            raise ValueError(f"every exit of {self.exits} lies below min_exit {self.min_exit}; none would be left")
        if not self.decay >= 0.0 or (self.decay and self.threshold > 1):
            raise ValueError(
                f"decay is {self.decay}; it must be 0 or more, and works only with a threshold of at most 1"
            )
        for name, given, default in (("rank", self.rank, type(self).rank), ("alpha", self.alpha, type(self).alpha)):
            if not given > 0 or (self.head == "target" and given != default):
                raise ValueError(f"{name} is {given}; it must be positive, and is an option of head=trained")
        if self.modules and not self.needs_modules:
            raise ValueError("modules have no effect with head=target; leave them out, or add head=trained")
        if not self.needs_modules:
            refuse_options(self, "without modules", "draft_vocabulary")

    @property
    def compares_states(self) -> bool:  # type: ignore[override]
        return self.confidence == "state_cosine"

    @property
    def needs_modules(self) -> bool:
        return self.head == "trained" or self.confidence == "classifier"

    @property
    def draws_tokens(self) -> bool:  # type: ignore[override]
        return self.head == "trained"

    @property
    def second_stage(self) -> SecondStage | None:
        """The classifiers of trained exits: their labels are known once those stand still, as in CALM."""
        if self.head == "target":
            return None
        needed = self.confidence == "classifier"
        options, first = "head=trained,confidence=classifier", "early_exit[head=trained]"
        return SecondStage("classifier", options, needed, TrainingDefaults(), first)

    @property
    def kv_fill(self) -> KvFill:
        return copy_h if self.kv_policy == "propagate" else deferred_exact

    def default_exits(self, layers: int) -> tuple[int, ...]:
        if self.head == "trained":
            return eighths(layers, self.min_exit)
        return tuple(range(self.min_exit or max(1, layers // 2), layers))

    def allowed(self, exits: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer for layer in exits if layer >= self.min_exit)

    def unsupported(self, target: TargetInfo) -> str | None:
        if self.min_exit >= target.layers:
            return f"min_exit {self.min_exit} is not below the target's {target.layers} layers"
        return super().unsupported(target)

    def build(self, info: TargetInfo, lm_head: Tensor) -> Exits:
        """For each exit a module where they are trained, and a linear score of its state where it is classified."""
        layers, width, device = self.exit_layers(info), info.hidden_size, lm_head.device
        trained, classified, scale = self.head == "trained", self.confidence == "classifier", self.alpha / self.rank
        modules = {layer: ExitModule(width, self.rank, device, scale=scale) for layer in layers if trained}
        for module in modules.values():
            module.requires_grad_(not classified)
        return Exits(modules, {layer: nn.Linear(width, 1, device=device) for layer in layers if classified})

    def loss(self, module: Exits, batch: TrainingBatch) -> Tensor:
        if module.classifier:
            return agreement_loss(module.scores(batch), module.agreements(batch), batch)
        return exits_loss(module, batch)

    def prepare(self, target: Target) -> None:
        if self.needs_modules:
            self._classifiers = self.load_exits("early_exit", target).classifier

    def decide(self, context: Context, view: View) -> bool:
        threshold, answered = self.threshold, context.stream.length - context.prompt_tokens
        if self.decay:
            threshold = decayed(threshold, self.decay, answered, context.limit_tokens)
        if threshold == 0:
            return True  # without a softmax
        if self.confidence == "classifier":
            return chance(self._classifiers.of(view.layer)(view.state)) >= threshold
        return view.confidence(self.confidence) >= threshold

    def plain_drafter(self, target: Target, draft_model: Target | None) -> PlainDrafter | None:
        """Of mode=draft without trained modules or decay: proposals up to the first token that no exit is sure of."""
        if self.mode != "draft" or self.needs_modules or self.decay or target.encoder is not None:
            return None

        def confidence(states: Tensor, layer: int) -> float:
            if self.confidence == "state_cosine":
                return max(0.0, float(F.cosine_similarity(states[layer - 1], states[layer], dim=0)))
            first, second = target.head(states[layer][None])[0].softmax(-1).topk(2).values.tolist()
            return float(first - second if self.confidence == "softmax_gap" else first)

        def propose(text: list[int], budget: int) -> list[int]:
            proposal: list[int] = []
            for _ in range(min(self.draft_tokens, budget)):
                states = target.last_states([*text, *proposal])
                sure = (layer for layer in self.exit_layers(target) if confidence(states, layer) >= self.threshold)
                if (layer := next(sure, None)) is None:
                    break
                proposal.append(int(target.head(states[layer][None]).argmax()))
            return proposal

        return propose
