"""Let only some tokens pass every other block; the rest go around it, unseen there.

Raposo et al.: Mixture-of-Depths: Dynamically allocating compute in transformer-based language models, 2024, arXiv
2404.02258. Theirs is trained from nothing; here a trained target, frozen, is adapted to it by routers, predictors and
low-rank adapters, which is ours, as is the falling capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor, nn

from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.method import Context, Method, Step, one_token
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.folder import load_modules
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Lesson, Tally, Trainable, TrainingDefaults
from benchctl.errors import UserError

from .routers import RoutedDepth, routed_loss, routed_yardsticks
from .run import RoutedRun, bound_of


@dataclass
class MixtureOfDepths(Method, Trainable):
    """Every other block takes only the tokens that a predictor expects to be worth it.

    modules      folder of the trained routers, predictors and adapters
    capacity     share of a sequence that a routed block was trained to take; 0.125 in the paper
    threshold    chance above which the predictor lets a token pass; 0.5 in the paper, at 0 all pass, at 1 none
    rank, alpha  of the adapters: what they add is scaled by alpha / rank
    """

    modules: str = ""
    capacity: float = 0.125
    threshold: float = 0.5
    rank: int = 32
    alpha: float = 32.0
    demo = ("threshold=0.02",)
    exactness = "lossy"
    reason = "tokens go around blocks that the target takes them through, and nothing is verified"
    no_batch_reason = "each sequence of a batch would go around other blocks"
    training = TrainingDefaults(rate=5e-4, schedule="linear", epochs=5.0)
    trained_for = ("capacity", "alpha")
    _run: RoutedRun = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        AdapterSettings("lora", self.rank, self.alpha)  # refuses what cannot be
        if not 0 < self.capacity <= 1:
            raise ValueError(f"capacity is {self.capacity}; it must be above 0 and at most 1")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}; it must lie between 0 and 1")

    def unsupported(self, target: TargetInfo) -> str | None:
        one_layer = "it has one layer, and the first is never routed" if target.layers < 2 else None
        return super().unsupported(target) or one_layer

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        if problem := self.unsupported(info):
            raise UserError("cannot_be_trained", f"mixture_of_depths cannot be trained for this target: {problem}")
        settings = AdapterSettings("lora", self.rank, self.alpha)
        return RoutedDepth(info, settings, self.capacity, lm_head.device)

    def pace(self, module: nn.Module, progress: float) -> None:
        assert isinstance(module, RoutedDepth)
        module.pace(progress)

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        assert isinstance(module, RoutedDepth)
        return routed_loss(module, lesson)

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        assert isinstance(module, RoutedDepth)
        return routed_yardsticks(module, lesson, bound_of(self.threshold))

    def prepare(self, target: Target) -> None:
        module = load_modules(self, "mixture_of_depths", target, self.modules)
        assert isinstance(module, RoutedDepth)
        self._run = RoutedRun(module, target, self.threshold)

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return nullcontext(self._run.view)

    def prefill(self, context: Context) -> Tensor:
        stream = context.stream
        stream.push(context.tokens)
        self._run.advance(stream)
        last = stream.states[-1:]
        stream.keep(range(stream.rows))
        return last

    def step(self, context: Context) -> Step:
        return one_token(context, self._run.advance)
