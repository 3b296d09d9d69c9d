"""What methods share that leave at exits of the target, or draft by them: options, exits, trained modules, steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from types import MappingProxyType
from typing import Any, Literal, cast

from torch import Tensor

from benchctl.decoding.adaptive import AdaptiveDepth, KvFill
from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Context, Exactness, MonotoneThreshold, Speculative
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.exits import ExitHead, Exits
from benchctl.decoding.modules.folder import load_modules, trained_options
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError


def read_exits(text: str) -> tuple[int, ...]:
    """Layer numbers joined by +, ascending and each once; none for an empty text. Raises ValueError for other text."""
    if not text:
        return ()
    if not all(part.isdecimal() and int(part) > 0 for part in text.split("+")):
        raise ValueError(f"exits is {text!r}; join layer numbers by +, such as 4+8")
    return tuple(sorted({int(part) for part in text.split("+")}))


def decayed(threshold: float, decay: float, at: int, of: int) -> float:
    """CALM's threshold for new token ``at`` (0, 1, ..) of ``of`` at most: clip(0.9 lambda + 0.1 exp(-decay t / T)).

    Schuster et al. 2022, arXiv 2207.07061, section 3.5, decay 4. Threshold 0.5 begins at 0.55 and, at decay 4, ends at
    0.452: early tokens must be surer, since what they get wrong all later ones see.
    """
    return min(1.0, max(0.0, 0.9 * threshold + 0.1 * exp(-decay * at / of)))


class ExitPolicy(AdaptiveDepth, Speculative, MonotoneThreshold):
    """Leaves at the first exit that is sure enough (lossy) or, mode=draft, lets the full model verify exits' proposals.

    A dataclass below has these options. Where ``modules`` are loaded, they have the exits that they were trained for;
    ``exits`` chooses among them.
    """

    mode: Literal["exit", "draft"]
    threshold: float
    exits: str
    draft_tokens: int
    modules: str
    _trained: tuple[int, ...] = ()
    _heads: Mapping[int, ExitHead] = MappingProxyType({})

    def __post_init__(self) -> None:
        if not self.threshold >= 0.0:  # nan too
            raise ValueError(f"threshold is {self.threshold}; it must not be negative")
        if self.draft_tokens < 1:
            raise ValueError(f"draft_tokens is {self.draft_tokens}; it must be at least 1")
        read_exits(self.exits)

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if self.mode == "draft" else "lossy"

    @property
    def reason(self) -> str:  # type: ignore[override]
        return "" if self.mode == "draft" else "tokens that leave early are not verified by the full target"

    @property
    @abstractmethod
    def kv_fill(self) -> KvFill:
        """What layers above an exit hold of a token that left there."""

    @abstractmethod
    def default_exits(self, layers: int) -> tuple[int, ...]:
        """For a target of so many layers, where ``exits`` names none."""

    def allowed(self, exits: tuple[int, ...]) -> tuple[int, ...]:
        """Those of ``exits`` that the other options leave."""
        return exits

    def exit_layers(self, target: Target | TargetInfo) -> tuple[int, ...]:
        return self.allowed(read_exits(self.exits) or self._trained or self.default_exits(target.layers))

    def unsupported(self, target: TargetInfo) -> str | None:
        exits = self.exit_layers(target)
        if not exits or exits[-1] >= target.layers:
            least = f"exit {exits[-1] if exits else 1} is not below the target's {target.layers} layers"
            return f"{least}; choose others with the option exits"
        return None

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        """See Trainable: exits that the modules in ``folder`` were not trained for, as far as their options tell."""
        if there := read_exits(str(trained.get("exits", ""))):
            _refuse_others(folder, self.allowed(read_exits(self.exits) or there), there)

    def load_exits(self, name: str, target: Target) -> Exits:
        """The trained modules of this method, called ``name``; from now on their exits speak and are chosen among.

        Raises UserError as load_modules does, and for exits that they were not trained for.
        """
        options = trained_options(cast(Trainable, self), name, self.modules)
        chosen = {key: options[key] for key in ("exits", "min_exit") if key in options}
        as_trained: Any = replace(self, **chosen)  # type: ignore[type-var]
        module = load_modules(as_trained, name, target, self.modules)
        assert isinstance(module, Exits)
        self._trained, self._heads = module.layers, module.heads(target)
        _refuse_others(self.modules, self.exit_layers(target), module.layers)
        return module

    def exit_head(self, target: Target, layer: int, state: Tensor) -> Tensor:
        return self._heads[layer](state) if self._heads else target.head(state)

    def draft(self, context: Context, budget: int) -> Draft:
        return self.draft_by_exits(context, min(self.draft_tokens, budget))

    def step(self, context: Context) -> Sequence[int]:
        if self.mode == "draft":
            return Speculative.step(self, context)
        return self.exit_step(context, self.kv_fill)


def _refuse_others(folder: str, asked: Sequence[int], there: Sequence[int]) -> None:
    """Raises UserError for an exit that is asked for and not there, and where none is left to ask for."""
    trained = f"{folder}: trained for exits {'+'.join(map(str, there))}"
    if not asked:
        raise UserError(
            "exits_not_trained",
            f"{trained}, all of them below min_exit; give a lower min_exit, or train modules for higher exits",
        )
    missing = [layer for layer in asked if layer not in there]
    if missing:
        raise UserError(
            "exits_not_trained",
            f"{trained}, not for {missing[0]}; choose among those with the option exits, or train modules for the "
            "exits you want",
        )
