"""Run fewer layers the longer the answer gets: a fixed depth for each position, which never grows.

Del Corro et al.: SkipDecode: Autoregressive Skip Decoding with Batching and Caching for Efficient LLM Inference, 2023,
arXiv 2307.02628. A few layers at the bottom always run, then the top ones; no key or value is ever missing, and all
sequences of a batch run the same layers. Ours: the defaults, which the paper does not give, and low-rank adapters
instead of tuning all weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from benchctl.decoding.batch import Batched
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, check_options, one_token, refuse_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.adapters import Adapters, unsupported_layers
from benchctl.decoding.modules.folders import load_modules, read_facts
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Tally, Trainable, TrainingBatch, TrainingDefaults
from benchctl.errors import UserError

from .schedule import DepthSchedule, schedule_loss, schedule_yardsticks


@dataclass
class SkipDecode(Method, Batched, Trainable):
    """Skip more and more middle layers along the answer, down to ``min_layers``.

    modules        folder of the trained adapters
    min_layers     depth at the end of the fall; 0: half of the target's layers
    max_layers     depth of the prompt and of the first new token; 0: all layers
    warmup_layers  layers at the bottom that always run
    fall_tokens    new tokens over which the depth falls linearly
    adapters       lora (trained under the schedule, target frozen) or none (the target's own layers)
    rank, alpha    size and scale of the adapters: their output is multiplied by alpha / rank
    """

    modules: str = ""
    min_layers: int = 0
    max_layers: int = 0
    warmup_layers: int = 1
    fall_tokens: int = 32
    adapters: Literal["lora", "none"] = "lora"
    rank: int = 32
    alpha: float = 32.0
    demo = ("min_layers=10",)
    exactness = "lossy"
    training = TrainingDefaults(rate=5e-4, schedule="linear", epochs=5.0)
    trained_for = ("warmup_layers", "alpha")
    draws_tokens = True
    _view: Target | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        AdapterSettings("lora", self.rank, self.alpha)  # refuses what cannot be
        check_options(self, 0, "min_layers", "max_layers", "warmup_layers")
        check_options(self, 1, "fall_tokens")
        if self.max_layers and self.min_layers > self.max_layers:
            raise ValueError(f"min_layers {self.min_layers} is above max_layers {self.max_layers}: depth never grows")
        least = self.min_layers or self.max_layers
        if least and self.warmup_layers > least:
            raise ValueError(f"warmup_layers {self.warmup_layers} always run, but a token may have {least} layers only")
        if not self.needs_modules:
            refuse_options(self, "with adapters=none", "modules", "rank", "alpha")

    @property
    def reason(self) -> str:  # type: ignore[override]
        trained = "" if self.needs_modules else ", and its layers were not trained for that"
        return f"later tokens skip layers and are not verified by the full target{trained}"

    @property
    def needs_modules(self) -> bool:
        return self.adapters == "lora"

    def unsupported(self, target: TargetInfo) -> str | None:
        for name in ("max_layers", "min_layers", "warmup_layers"):
            if getattr(self, name) > target.layers:
                return f"{name} {getattr(self, name)} is more than the target's {target.layers} layers"
        return unsupported_layers(target) if self.needs_modules else None

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        layers = read_facts(folder).target.layers
        options = {name: trained[name] for name in ("min_layers", "max_layers", "warmup_layers") if name in trained}
        asked, least = self.schedule(layers).least, replace(self, **options).schedule(layers).least
        if asked < least:
            raise UserError(
                "depths_not_trained",
                f"{folder}: trained for depths of {least} layers and more, not for {asked}; give min_layers={least} or "
                "more and no lower max_layers, or train adapters for lower depths",
            )

    def schedule(self, layers: int) -> DepthSchedule:
        most = self.max_layers or layers
        least = self.min_layers or min(most, max(self.warmup_layers, layers // 2, 1))
        return DepthSchedule(layers, most, least, self.warmup_layers, self.fall_tokens)

    def build(self, info: TargetInfo, lm_head: Tensor) -> Adapters:
        return Adapters(info, AdapterSettings("lora", self.rank, self.alpha), lm_head.device)

    def loss(self, module: Adapters, target_batch: TrainingBatch) -> Tensor:
        return schedule_loss(self.schedule(module.info.layers), module, target_batch)

    def yardsticks(self, module: Adapters, target_batch: TrainingBatch) -> Mapping[str, Tally]:
        return schedule_yardsticks(self.schedule(module.info.layers), module, target_batch)

    def prepare(self, target: Target) -> None:
        if self.needs_modules:
            module: Adapters = load_modules(self, "skip_decode", target, self.modules)
            self._view = module.merge(target)

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return nullcontext(self._view or target)

    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        schedule = self.schedule(target.layers)
        bottom, top = schedule.running(schedule.depth(new_tokens - 1))
        return [*bottom, *top]

    def start(self, context: Context) -> int:
        return context.pick(context.target.head(self.prefill(context, partial(self._run, 0))))

    def step(self, context: Context) -> tuple[int]:
        return one_token(context, partial(self._run, context.new_tokens - 1))

    def _run(self, new_token: int, stream: Stream) -> None:
        schedule = self.schedule(stream.target.layers)
        bottom, top = schedule.running(schedule.depth(new_token))
        stream.advance(bottom.stop)
        stream.pass_by(bottom.stop, top.start)
        stream.advance()
